package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/colonyfleet/colony/protocol"
)

// fakeCO is the reference receiver: the contract of the package comment, on a
// database in memory.
type fakeCO struct {
	t  *testing.T
	mu sync.Mutex
	db database

	applied int  // events stored, ever; not undone by a restore
	silent  bool // as an earlier release: no Ack says that an epoch is retired
	behind  bool // its record lacks something, until a snapshot comes
	never   bool // no snapshot helps
	downErr error
}

// database is what a transaction changes, and what a backup holds.
type database struct {
	epoch   string
	seq     uint64
	retired map[string]bool
	log     []stored
	gaps    []gap
}

type stored struct {
	epoch string
	seq   uint64
	event protocol.Event
}

// gap says that lost events of an epoch are missing before position at of the log.
type gap struct {
	epoch string
	lost  uint64
	at    int
}

func (d database) clone() database {
	d.log, d.gaps = slices.Clone(d.log), slices.Clone(d.gaps)
	left := map[string]bool{}
	for e := range d.retired {
		left[e] = true
	}
	d.retired = left
	return d
}

// accept commits one batch and returns the Ack.
func (c *fakeCO) accept(payload []byte) (protocol.Ack, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.downErr != nil {
		return protocol.Ack{}, c.downErr
	}
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		c.t.Errorf("batch: %v", err)
		return protocol.Ack{}, err
	}
	events, err := decode(b)
	if err != nil {
		c.t.Errorf("events of batch %d: %v", b.First, err)
		return protocol.Ack{}, err
	}
	c.commit(b, events)
	for _, e := range events {
		c.behind = c.behind && (c.never || e.Kind != protocol.SnapshotEvent)
	}
	ack := protocol.Ack{V: protocol.Version, Epoch: c.db.epoch, Seq: c.db.seq, Resync: c.behind}
	if c.db.retired[b.Epoch] && !c.silent {
		ack.Retired = b.Epoch
	}
	return ack, nil
}

func (c *fakeCO) commit(b protocol.Batch, events []protocol.Event) {
	d := &c.db
	if b.Count == 0 {
		return
	}
	if b.Epoch != d.epoch {
		if d.retired[b.Epoch] || b.First != b.Trimmed+1 {
			return
		}
		if d.epoch != "" {
			d.retired[d.epoch] = true
		}
		have := uint64(0)
		if d.epoch != "" && b.Previous.Epoch == d.epoch {
			have = min(d.seq, b.Previous.Through)
		}
		if d.epoch != "" || b.Trimmed > 0 {
			d.gaps = append(d.gaps, gap{b.Epoch, b.Trimmed - min(have, b.Trimmed), len(d.log)})
		}
		d.epoch, d.seq = b.Epoch, max(b.Trimmed, have)
	}
	if b.Trimmed > d.seq {
		if b.First != b.Trimmed+1 {
			return
		}
		d.gaps = append(d.gaps, gap{b.Epoch, b.Trimmed - d.seq, len(d.log)})
		d.seq = b.Trimmed
	}
	if b.First > d.seq+1 {
		return
	}
	for i, e := range events {
		if seq := b.First + uint64(i); seq > d.seq {
			d.log = append(d.log, stored{b.Epoch, seq, e})
			d.seq = seq
			c.applied++
		}
	}
}

func decode(b protocol.Batch) ([]protocol.Event, error) {
	raw := b.Events
	if b.Encoding == "zstd" {
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer dec.Close()
		if raw, err = dec.DecodeAll(raw, nil); err != nil {
			return nil, err
		}
	}
	var events []protocol.Event
	for len(raw) > 0 {
		var e protocol.Event
		rest, err := cbor.UnmarshalFirst(raw, &e)
		if err != nil {
			return nil, err
		}
		events, raw = append(events, e), rest
	}
	if len(events) != int(b.Count) {
		return nil, fmt.Errorf("%d events, Count says %d: %w", len(events), b.Count, io.ErrUnexpectedEOF)
	}
	return events, nil
}

func (c *fakeCO) backup() database {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.db.clone()
}

func (c *fakeCO) restore(d database) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.db = d
}

// seen returns the database as it is.
func (c *fakeCO) seen() database { return c.backup() }

// network carries batches and Acks, badly.
type network struct {
	c  *fakeCO
	mu sync.Mutex
	faults

	rng *rand.Rand
	up  *Uplink
	wg  sync.WaitGroup
	n   int // publishes
	out int // bytes
}

// faults are in percent: of a publish, of an Ack.
type faults struct {
	refuse, hang, lose, double, late int
	loseAck, doubleAck, lateAck      int
}

var errRefused = errors.New("refused")

func (n *network) chance(percent int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return percent > 0 && n.rng.IntN(100) < percent
}

func (n *network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.rng.IntN(400)) * time.Millisecond
}

// perfect ends all faults.
func (n *network) perfect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = faults{}
}

func (n *network) publish(_ context.Context, _ string, payload []byte) (func(context.Context) error, error) {
	n.mu.Lock()
	n.n++
	n.out += len(payload)
	f := n.faults
	n.mu.Unlock()
	switch {
	case n.chance(f.refuse):
		return answer(errRefused)
	case n.chance(f.hang):
		return func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, nil
	case n.chance(f.lose):
		return answer(nil) // the broker acknowledged it, the CO never received it
	}
	if n.chance(f.double) {
		n.later(func() { _ = n.deliver(payload) })
	}
	if !n.chance(f.late) {
		return answer(n.deliver(payload))
	}
	return func(ctx context.Context) error {
		select {
		case <-time.After(n.delay()):
			return n.deliver(payload)
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

// answer is what Publish returns for a message that is answered at once.
func answer(err error) (outcome func(context.Context) error, _ error) {
	return func(context.Context) error { return err }, nil
}

func (n *network) deliver(payload []byte) error {
	ack, err := n.c.accept(payload)
	if err != nil {
		return err
	}
	n.mu.Lock()
	f, up := n.faults, n.up
	n.mu.Unlock()
	switch {
	case n.chance(f.loseAck):
	case n.chance(f.lateAck):
		n.later(func() { up.Ack(ack) })
	default:
		up.Ack(ack)
		if n.chance(f.doubleAck) {
			n.later(func() { up.Ack(ack) })
		}
	}
	return nil
}

func (n *network) later(do func()) {
	d := n.delay()
	n.wg.Go(func() {
		<-time.After(d)
		do()
	})
}
