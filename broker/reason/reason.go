// Package reason gives errors of the broker their MQTT reason codes and reason strings.
package reason

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/protocol"
)

// String is err as an MQTT reason string, see packet.ReasonString.
func String(err error) string { return packet.ReasonString(err.Error()) }

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
	Log     string // for the log in its place, where the client is not to read all; "": Message
}

// Error says why, for the log.
func (e *Refusal) Error() string { return cmp.Or(e.Log, e.Message) }

// A shown error has a text for the client, which must not read all of it, such as
// access.BadCredentials.
type shown interface {
	error
	Shown() string
}

// OfConnect is the reason code of CONNACK with which a connection is refused: a return code for
// versions before MQTT 5.
func OfConnect(err error, v5 bool) packets.Code {
	var code packets.Code
	refused, ok := errors.AsType[*Refusal](err)
	if ok {
		code, err = refused.Code, errors.New(refused.Message)
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
	if part, ok := errors.AsType[shown](err); ok {
		err = errors.New(part.Shown())
	}
	code.Reason = String(err)
	return code
}

// Held refuses a client id that another identity has: with a connection, or else with a session that is stored.
func Held(client, holder string, connected bool) *Refusal {
	r := &Refusal{Code: packets.ErrClientIdentifierNotValid, Message: fmt.Sprintf("client id %s belongs to another identity: use another one, or ask the operator of the broker, whose log says whose it is", client)}
	if connected {
		r.Log = fmt.Sprintf("client id %s is in use by %s: kick that client, or let one of the two use another client id", client, holder)
	} else {
		r.Log = fmt.Sprintf("client id %s has a session of %s, which is away: colony site broker kick --session ends it; or let one of the two use another client id", client, holder)
	}
	return r
}

// OfFilter is what a filter that was refused with a reason code is counted under.
func OfFilter(code byte) string {
	if code == packets.ErrQuotaExceeded.Code {
		return "quota"
	}
	return "access"
}
