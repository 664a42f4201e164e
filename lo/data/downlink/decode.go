package downlink

import "github.com/colonyfleet/colony/protocol"

// decode reads a batch and its events.
func (d *Downlink) decode(payload []byte) (protocol.Batch, []protocol.Event, error) {
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		return b, nil, err
	}
	if b.Stream == "" || len(b.Stream) > 256 || len(b.Epoch) > 256 {
		return b, nil, protocol.Errorf(protocol.Invalid, "batch of lane %.64q and epoch %.64q: no lane of machine data", b.Stream, b.Epoch)
	}
	events, err := d.decoder.Events(b)
	b.Events = nil
	return b, events, err
}
