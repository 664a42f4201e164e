package stream

import (
	"github.com/klauspost/compress/zstd"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/items"
)

// encoding is the name of zstd in Batch.Encoding.
const encoding = "zstd"

// minCompress is the size below which compression is not tried, in bytes.
const minCompress = 128

// An Effort is what an Encoder spends.
type Effort int

const (
	// Least is for a sender with many receivers: little time.
	Least Effort = iota
	// More is for a sender behind a slow link: more time and about 5 MB, for fewer bytes.
	More
)

// An Encoder packs events into batches: a CBOR sequence (RFC 8742), compressed with
// zstd (RFC 8878) where that is worth it. It is made once for many streams, because
// it holds megabytes. Its methods may be called concurrently.
type Encoder struct{ zstd *zstd.Encoder }

// NewEncoder returns an Encoder. It starts nothing, so that there is nothing to close.
func NewEncoder(e Effort) *Encoder {
	options := []zstd.EOption{zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)}
	if e == More {
		options = append(options, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(512<<10))
	}
	z, err := zstd.NewWriter(nil, options...)
	if err != nil {
		panic(err) // the options are constants
	}
	return &Encoder{z}
}

// Pack sets Events and Encoding of b to a sequence of events, compressed where that
// is worth the receiver's work. b may then share memory with raw.
func (e *Encoder) Pack(b *protocol.Batch, raw []byte) {
	b.Events, b.Encoding = raw, ""
	if len(raw) < minCompress {
		return
	}
	// A little smaller is not worth it.
	if packed := e.zstd.EncodeAll(raw, make([]byte, 0, len(raw)/4)); len(packed) < len(raw)-len(raw)/16 {
		b.Events, b.Encoding = packed, encoding
	}
}

// Sequence encodes events as a sequence.
func Sequence(events []protocol.Event) []byte {
	var out []byte
	for i := range events {
		out = append(out, protocol.Marshal(&events[i])...)
	}
	return out
}

// maxEvents bounds the events of a batch after decompression, in bytes. A sender
// stays far below it; what is larger is an attack or a fault.
const maxEvents = protocol.MaxMessage - items.ArrayHead

// maxCount bounds their number, as protocol.Unmarshal does, before there is memory
// for as many: a byte of a batch can claim to be an event, which needs 72.
const maxCount = 1 << 16

// A Decoder unpacks the events of batches. Its methods may be called concurrently.
type Decoder struct{ zstd *zstd.Decoder }

// NewDecoder returns a Decoder that decompresses so many batches at a time; 0 means
// one for each processor. It starts nothing, so that there is nothing to close.
func NewDecoder(concurrency int) *Decoder {
	z, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxEvents), zstd.WithDecoderConcurrency(concurrency))
	if err != nil {
		panic(err) // only a negative concurrency is refused
	}
	return &Decoder{z}
}

// Unreadable is the kind of an event that stands for an item that is none. No
// sender sends it.
const Unreadable protocol.EventKind = "unreadable"

// Events returns the events of a batch, as many as it says. An item that is
// well-formed CBOR and no event must not hold up the others: it becomes an event of
// kind Unreadable, with the item as its Body. The error is Invalid where the batch
// is not one of this protocol or exceeds its bounds; sending it again does not help.
func (d *Decoder) Events(b protocol.Batch) ([]protocol.Event, error) {
	array, err := d.array(b)
	if err != nil || array == nil {
		return nil, err
	}
	events := make([]protocol.Event, 0, b.Count)
	if protocol.Unmarshal(array, &events) == nil {
		return events, nil
	}
	var list []item
	if err := protocol.Unmarshal(array, &list); err != nil {
		return nil, err
	}
	events = make([]protocol.Event, len(list))
	for i, it := range list {
		if protocol.Unmarshal(it, &events[i]) != nil {
			events[i] = protocol.Event{Kind: Unreadable, Body: []byte(it)}
		}
	}
	return events, nil
}

// array returns the decompressed sequence with a head in front: so it is an array of
// exactly as many items as the batch says, which the protocol's bounded decoder
// reads. It is nil where there are none.
func (d *Decoder) array(b protocol.Batch) ([]byte, error) {
	if b.Count == 0 {
		return nil, nil
	}
	raw := b.Events
	switch b.Encoding {
	case "":
	case encoding:
		var err error
		if raw, err = d.zstd.DecodeAll(b.Events, nil); err != nil {
			return nil, protocol.Errorf(protocol.Invalid, "decompress batch: %w", err)
		}
	default:
		return nil, protocol.Errorf(protocol.Invalid, "batch is encoded as %q: this program knows zstd", b.Encoding)
	}
	if len(raw) > maxEvents {
		return nil, protocol.Errorf(protocol.Invalid, "batch of %d bytes: the limit is %d", len(raw), maxEvents)
	}
	if uint64(b.Count) > uint64(len(raw)) {
		return nil, protocol.Errorf(protocol.Invalid, "batch says %d events in %d bytes", b.Count, len(raw))
	}
	if b.Count > maxCount {
		return nil, protocol.Errorf(protocol.Invalid, "batch says %d events: the limit is %d", b.Count, maxCount)
	}
	return items.Array(b.Count, raw), nil
}

// An item is one encoded item of a sequence.
type item []byte

// UnmarshalCBOR keeps the bytes.
func (it *item) UnmarshalCBOR(b []byte) error {
	*it = append([]byte(nil), b...)
	return nil
}
