package uplink

import (
	"context"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// encoding is the word for zstd in Batch.Encoding.
const encoding = "zstd"

// minCompress is the size below which compression is not tried, in bytes.
const minCompress = 128

// publishTimeout ends a Publish that neither succeeds nor fails.
const publishTimeout = 2 * time.Minute

// flight is a batch on its way. A probe has no events and last 0.
type flight struct {
	first, last uint64
	payload     []byte
	raw         int
	started     time.Time
	returned    time.Time // when Publish returned without an error
	ready       time.Time // when the rate limit lets it go
}

// result is how a Publish ended.
type result struct {
	f   *flight
	err error
}

// load reads the next batch from the journal; nil means that there is none.
func (l *link) load(declared uint64) (*flight, error) {
	u := l.u
	size := min(u.opts.MaxBatchBytes, max(l.budget, minBudget))
	first, bodies, err := u.opts.Journal.Bodies(l.next-1, u.opts.MaxBatchEvents, size)
	if err != nil || len(bodies) == 0 {
		return nil, err
	}
	if first != l.next {
		return nil, protocol.Errorf(protocol.Unavailable, "journal gave event %d for %d", first, l.next)
	}
	var raw []byte
	for _, b := range bodies {
		raw = append(raw, b...)
	}
	b := protocol.Batch{V: protocol.Version, Epoch: l.epoch, First: first, Count: uint32(len(bodies)), Events: raw, Trimmed: declared}
	if len(raw) >= minCompress {
		// A little smaller is not worth the receiver's work.
		if z := u.encoder.EncodeAll(raw, nil); len(z) < len(raw)-len(raw)/16 {
			b.Events, b.Encoding = z, encoding
		}
	}
	f := &flight{first: first, last: first + uint64(len(bodies)) - 1, payload: protocol.Marshal(b), raw: len(raw)}
	return f, nil
}

func (l *link) newProbe() *flight {
	return &flight{payload: protocol.Marshal(protocol.Batch{V: protocol.Version, Epoch: l.epoch, Events: []byte{}})}
}

// launch publishes f on a goroutine of its own, which ends with the round.
func (l *link) launch(f *flight, now time.Time) {
	f.started = now
	u := l.u
	ctx := l.round
	entered := make(chan struct{})
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, publishTimeout)
		defer cancel()
		close(entered)
		err := u.opts.Publish(ctx, topic.ForSite(topic.Up, u.opts.Site), f.payload)
		if err != nil {
			err = fmt.Errorf("publish batch: %w", err)
		}
		select {
		case l.results <- result{f, err}:
		case <-l.ctx.Done():
		}
	})
	// Publish takes messages in the order of its calls; so the next call comes
	// after this one. Where two swap all the same, the centre leaves the later one
	// out, and its Ack makes us send it again.
	<-entered
	u.metrics.batches.Inc()
	u.metrics.wireBytes.Add(float64(len(f.payload)))
	u.metrics.rawBytes.Add(float64(f.raw))
	if f.last > 0 {
		u.metrics.events.Add(float64(f.last - f.first + 1))
	}
}
