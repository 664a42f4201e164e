package sign

import "github.com/fxamacker/cbor/v2"

// Fields are an encoded message, or a part of one, as its fields by key, each as the bytes
// that arrived. So a receiver signs, checks and hands on fields that a later release
// added and that it does not know: protocol.Marshal gives the sender's bytes again, as long as
// those were in the encoding of protocol.Marshal.
type Fields map[uint64]cbor.RawMessage

// Without returns the fields but those of some keys.
func (f Fields) Without(keys ...uint64) Fields {
	out := make(Fields, len(f))
	for k, v := range f {
		out[k] = v
	}
	for _, k := range keys {
		delete(out, k)
	}
	return out
}
