// Package reason gives errors of the broker their MQTT reason codes and reason strings.
package reason

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/protocol"
)

// String is err as an MQTT reason string: short, valid UTF-8, no controls.
func String(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}

// Malformed is err, with a reason code if it has none.
func Malformed(err error) error {
	if _, ok := Of(err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", packets.ErrMalformedPacket, err)
}

// Of is the reason code of an error in the packets of a client.
func Of(err error) (packets.Code, bool) {
	if bad, ok := errors.AsType[*packet.Error](err); ok {
		return packets.Code{Code: bad.Code, Reason: String(bad)}, true
	}
	code, ok := errors.AsType[packets.Code](err)
	return code, ok && code.Code >= packets.ErrUnspecifiedError.Code
}

// OfPublish is the reason code with which a message is refused.
func OfPublish(err error) packets.Code {
	code := packets.ErrImplementationSpecificError
	switch protocol.KindOf(err) {
	case protocol.Invalid:
		code = packets.ErrPayloadFormatInvalid
	case protocol.Denied:
		code = packets.ErrNotAuthorized
	case protocol.NotFound:
		code = packets.ErrTopicNameInvalid
	case protocol.Unavailable:
		code = packets.ErrQuotaExceeded
	case protocol.Conflict, protocol.Internal:
	}
	code.Reason = String(err)
	return code
}

// A Refusal refuses a CONNECT with a reason code that no Kind stands for.
type Refusal struct {
	Code    packets.Code
	Message string // for the client and the log
}

// Error says why.
func (e *Refusal) Error() string { return e.Message }

// OfConnect is the reason code of CONNACK with which a connection is refused: a return code for
// versions before MQTT 5.
func OfConnect(err error, v5 bool) packets.Code {
	var code packets.Code
	if refused, ok := errors.AsType[*Refusal](err); ok {
		code = refused.Code
	} else {
		switch protocol.KindOf(err) {
		case protocol.Invalid, protocol.Conflict:
			code = packets.ErrClientIdentifierNotValid
		case protocol.Denied, protocol.NotFound:
			code = packets.ErrNotAuthorized
		case protocol.Unavailable, protocol.Internal:
			code = packets.ErrServerBusy
		}
	}
	if !v5 { // [MQTT-3.1.1 3.2.2.3]
		switch code.Code {
		case packets.ErrUnsupportedProtocolVersion.Code:
			return packets.Code{Code: 0x01}
		case packets.ErrClientIdentifierNotValid.Code:
			return packets.Code{Code: 0x02}
		case packets.ErrNotAuthorized.Code:
			return packets.Code{Code: 0x05}
		default:
			return packets.Code{Code: 0x03}
		}
	}
	code.Reason = String(err)
	return code
}

// OfFilter is what a filter that was refused with a reason code is counted under.
func OfFilter(code byte) string {
	if code == packets.ErrQuotaExceeded.Code {
		return "quota"
	}
	return "access"
}
