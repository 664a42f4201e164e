package ingest

import (
	"encoding/binary"

	"github.com/colonyfleet/colony/protocol"
)

// maxEvents bounds the events of a batch after decompression, in bytes. A site
// sends far less; what is larger is an attack or a fault.
const maxEvents = protocol.MaxMessage - arrayHead

// arrayHead is the length of a CBOR array head with a 32-bit count (RFC 8949,
// section 3).
const arrayHead = 5

// decode reads a batch and its events.
func (in *Ingest) decode(payload []byte) (protocol.Batch, []protocol.Event, error) {
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		return b, nil, err
	}
	if b.Count == 0 {
		return b, nil, nil
	}
	raw := b.Events
	switch b.Encoding {
	case "":
	case "zstd":
		var err error
		if raw, err = in.zstd.DecodeAll(b.Events, nil); err != nil {
			return b, nil, protocol.Errorf(protocol.Invalid, "decompress batch: %w", err)
		}
	default:
		return b, nil, protocol.Errorf(protocol.Invalid, "batch is encoded as %q: this program knows zstd", b.Encoding)
	}
	if len(raw) > maxEvents {
		return b, nil, protocol.Errorf(protocol.Invalid, "batch of %d bytes: the limit is %d", len(raw), maxEvents)
	}
	events, err := split(raw, b.Count)
	b.Events = nil
	return b, events, err
}

// split decodes a CBOR sequence of count events: with a head in front it is an
// array, which the protocol's bounded decoder reads, and which has exactly as
// many items as the batch says.
func split(raw []byte, count uint32) ([]protocol.Event, error) {
	if uint64(count) > uint64(len(raw)) {
		return nil, protocol.Errorf(protocol.Invalid, "batch says %d events in %d bytes", count, len(raw))
	}
	array := make([]byte, arrayHead, arrayHead+len(raw))
	array[0] = 4<<5 | 26
	binary.BigEndian.PutUint32(array[1:], count)
	array = append(array, raw...)
	events := make([]protocol.Event, 0, count)
	if protocol.Unmarshal(array, &events) == nil {
		return events, nil
	}
	// An item may be well-formed and yet no event. It must not hold up the others:
	// the store records it as an anomaly.
	var items []item
	if err := protocol.Unmarshal(array, &items); err != nil {
		return nil, err
	}
	events = make([]protocol.Event, len(items))
	for i, it := range items {
		if protocol.Unmarshal(it, &events[i]) != nil {
			events[i] = protocol.Event{Kind: "unreadable", Body: []byte(it)}
		}
	}
	return events, nil
}

// An item is one encoded item of a sequence.
type item []byte

// UnmarshalCBOR keeps the bytes.
func (it *item) UnmarshalCBOR(b []byte) error {
	*it = append([]byte(nil), b...)
	return nil
}
