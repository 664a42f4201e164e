package protocol

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/colonyfleet/colony/protocol/items"
)

// MaxMessage is the largest encoded message that Unmarshal accepts, in bytes.
const MaxMessage = 4 << 20

// A map, and each element of an array, becomes a structure of up to a kilobyte in memory, even if it
// takes a single byte on the wire. So a message may hold manyParts of them, or one for each
// partBytes of its length where that is more: reports of a site with a thousand nodes are that
// large.
const (
	manyParts = 1 << 16
	partBytes = 16
	// maxLevels is how deep the parts of a message may be nested.
	maxLevels = 16
)

// ContentType is the MQTT 5 content type of every message.
const ContentType = "application/cbor"

var (
	encMode = must(cbor.EncOptions{
		Sort:          cbor.SortCoreDeterministic,
		IndefLength:   cbor.IndefLengthForbidden,
		NilContainers: cbor.NilContainerAsEmpty,
	}.EncMode())
	decMode = must(cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		MaxNestedLevels:  maxLevels,
		MaxArrayElements: 1 << 16,
		MaxMapPairs:      1 << 12,
		UTF8:             cbor.UTF8RejectInvalid,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Marshal encodes a message of this package in RFC 8949 core deterministic
// encoding: equal messages have equal bytes. It panics on a type that cannot be
// encoded, which is a mistake in this package and never one of its input.
func Marshal(message any) []byte {
	return must(encMode.Marshal(message))
}

// Unmarshal decodes one message of this package. Its work is bounded by
// MaxMessage and by limits of depth and count; it never panics on any input. It
// refuses trailing bytes, and a message of a later major version.
func Unmarshal(b []byte, message any) error {
	if len(b) > MaxMessage {
		return Errorf(Invalid, "message of %d bytes: the limit is %d", len(b), MaxMessage)
	}
	if most := max(manyParts, len(b)/partBytes); len(b) > most && items.Count(b, maxLevels) > most { // a part takes a byte at least
		return Errorf(Invalid, "message of %d bytes: it holds more than %d maps and elements of arrays", len(b), most)
	}
	if err := decMode.Unmarshal(b, message); err != nil {
		return &Error{Kind: Invalid, Message: fmt.Sprintf("decode %T: %v", message, err), Err: err}
	}
	if v, ok := message.(interface{ version() uint16 }); ok && v.version() > Version {
		return Errorf(Invalid, "message %T has protocol version %d, this program knows %d: upgrade it", message, v.version(), Version)
	}
	return nil
}
