package downlink

import (
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// decode reads a batch and its events.
func (d *Downlink) decode(payload []byte) (protocol.Batch, []protocol.Event, error) {
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		return b, nil, err
	}
	if b.Stream == "" || len(b.Stream) > maxName || len(b.Epoch) > stream.MaxEpoch {
		return b, nil, protocol.Errorf(protocol.Invalid, "batch of stream %.64q and epoch %.64q: no stream of machine data", b.Stream, b.Epoch)
	}
	events, err := d.decoder.Events(b)
	b.Events = nil
	return b, events, err
}

// maxName bounds the name of a stream, in bytes.
const maxName = 256
