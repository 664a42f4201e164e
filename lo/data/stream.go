package data

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/data/sampler"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// defaultQueueBytes is the bound of a queue whose rule names none.
	defaultQueueBytes = 256 << 20
	// sampledTopics is how many topics a sampling rule knows of.
	sampledTopics = 10_000
	// appendRecords and appendBytes bound what goes into a queue in one piece, and
	// what waits for it.
	appendRecords = 512
	appendBytes   = 1 << 20
	// smallBody is the largest event of QoS 0 that is not waited for: all that wait
	// for their turn stay within what a gateway has.
	smallBody = 32 << 10
)

// A stream is the queue of one data rule: a journal with an uplink of its own. What
// its rule says is settled when it is opened.
type stream struct {
	rule      protocol.DataRule
	forwarder *Forwarder
	queue     *journal.Journal
	uplink    *uplink.Uplink
	counts    *streamCounts
	// held has on disk what the sampler holds, for a message that was acknowledged
	// must be there after a crash. Nil unless the rule holds.
	held *retained.Store

	requests chan request
	sooner   notify.Signal // the sampler may be due earlier
	quit     chan struct{}
	wg       sync.WaitGroup
	cancel   context.CancelFunc // of the uplink

	mu      sync.Mutex // protects sampler
	sampler *sampler.Sampler[sample]

	draining bool // the rule is gone; protected by the mu of plane
	freshness
}

// streamCounts are what a lane counts itself, over all the times it was opened.
type streamCounts struct {
	accepted, bytes, sampledOut, offline, refused atomic.Uint64
	// Of the journals and uplinks that were closed.
	dropped, expired atomic.Uint64
}

// request is one entry on its way to the queue. done, where it is not nil, gets
// what became of it.
type request struct {
	topic string // at the site
	entry journal.Entry
	done  chan error
}

// sample is a message that the sampler holds.
type sample struct {
	topic string // at the site
	body  []byte
	ref   uint64 // in lane.held; 0: it is not there
}

// openStream opens the queue of a rule and sends what it holds.
func openStream(d *Forwarder, rule protocol.DataRule, counts *streamCounts) (_ *stream, err error) {
	l := &stream{
		rule: rule, forwarder: d, counts: counts, quit: make(chan struct{}), sooner: notify.New(),
		requests: make(chan request, appendRecords), sampler: sampler.New[sample](rule.Sample, sampledTopics),
	}
	l.queue, err = journal.Open(d.queueDir(rule.Name), journal.Options{
		MaxBytes: l.maxBytes(), MaxAge: time.Duration(rule.MaxAgeMillis) * time.Millisecond, Logger: d.log,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue of data rule %s: %w", rule.Name, err)
	}
	if err := l.openHeld(); err != nil {
		return nil, errors.Join(err, l.queue.Close())
	}
	l.uplink = uplink.New(uplink.Options{
		Journal: l.queue, Site: d.o.Site, Stream: protocol.DataStream(rule.Name), Priority: streamPriority(rule.Priority), Gate: d.o.Gate,
		Publish:       d.o.Send,
		Resync:        func(ctx context.Context, _ uint64) (uint64, error) { return l.resync(ctx) },
		MaxBatchBytes: int(rule.BatchBytes), Linger: time.Duration(rule.BatchMillis) * time.Millisecond, Uncompressed: rule.Uncompressed,
		MaxAge: time.Duration(rule.MaxAgeMillis) * time.Millisecond, // to the message; the queue drops whole segments
		Logger: d.log, Registerer: d.o.Registerer,
	})
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.wg.Go(l.appendLoop)
	l.wg.Go(func() {
		if err := l.uplink.Run(ctx); err != nil && ctx.Err() == nil {
			d.o.Fail(fmt.Errorf("uplink of data rule %s: %w", rule.Name, err))
		}
	})
	return l, nil
}

func (l *stream) maxBytes() int64 {
	if l.rule.MaxBytes == 0 {
		return defaultQueueBytes
	}
	return int64(l.rule.MaxBytes)
}

// largest is the largest event that the queue takes. One that the journal refuses
// would take those down that are written with it.
func (l *stream) largest() int { return int(min(journal.MaxBody, l.maxBytes()/4)) }

// pieceBytes bounds what is appended to the queue in one piece.
func (l *stream) pieceBytes() int { return int(min(appendBytes, l.maxBytes()/16)) }

// streamPriority is the place of a priority at the gate, where 0 is for the events.
func streamPriority(p protocol.DataPriority) int {
	switch p {
	case protocol.HighPriority:
		return 1
	case protocol.LowPriority:
		return 3
	default:
		return 2
	}
}

// close ends the lane within the process: what waits, and what the sampler holds,
// goes into the queue before it is closed. Nobody may be taking meanwhile.
func (l *stream) close() error {
	l.cancel()
	close(l.quit)
	l.wg.Wait()
	l.uplink.Close()
	l.counts.dropped.Add(l.queue.Stats().Dropped)
	l.counts.expired.Add(l.uplink.Status().Backlog.Expired)
	var err error
	if l.losses() != l.lost {
		err = l.forwarder.mark(l.rule.Name)
	} else if !l.found && !l.stale && !l.waiting && l.unlisted.Load() == nil {
		err = l.clearStale(true)
	}
	err = errors.Join(err, l.queue.Close())
	if l.held != nil {
		err = errors.Join(err, l.held.Close())
	}
	if err != nil {
		return fmt.Errorf("close queue of data rule %s: %w", l.rule.Name, err)
	}
	return nil
}

// put appends one encoded event. With keep it returns once the event is on disk;
// else as soon as it is in turn.
func (l *stream) put(ctx context.Context, topic string, body []byte, keep bool) error {
	if most := l.largest(); len(body) > most {
		l.counts.refused.Add(1)
		return protocol.Errorf(protocol.Invalid, "message of %d bytes is too large for the queue of data rule %s, which takes up to a quarter of its maxBytes, and %d at most", len(body), l.rule.Name, most)
	}
	r := request{topic: topic, entry: journal.Entry{Class: journal.Data, Body: body}}
	if keep || len(body) > smallBody {
		r.done = make(chan error, 1)
	}
	select {
	case l.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.done == nil {
		return nil
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it may be in the queue all the same, as at any crash
	}
}

// appendLoop writes what is put, in order and many at a time, and what the
// sampler has held for long enough.
func (l *stream) appendLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case r := <-l.requests:
			l.appendAll(r)
		case <-l.sooner.C():
		case <-timer.C:
			l.release(false)
		case <-l.quit:
			for len(l.requests) > 0 {
				l.appendAll(<-l.requests)
			}
			l.release(true)
			return
		}
		l.mu.Lock()
		next, ok := l.sampler.Next()
		l.mu.Unlock()
		if ok {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// appendAll writes first and whatever else waits.
func (l *stream) appendAll(first request) {
	all, bytes := []request{first}, len(first.entry.Body)
	for most := l.pieceBytes(); len(all) < appendRecords && bytes < most && len(l.requests) > 0; {
		r := <-l.requests
		all, bytes = append(all, r), bytes+len(r.entry.Body)
	}
	entries := make([]journal.Entry, len(all))
	for i := range all {
		entries[i] = all[i].entry
	}
	_, err := l.queue.Append(context.Background(), entries...)
	if err != nil {
		l.counts.refused.Add(uint64(len(all)))
		l.forwarder.log.Warn("machine data not taken", "rule", l.rule.Name, "messages", len(all), "err", err)
		err = fmt.Errorf("queue of data rule %s: %w", l.rule.Name, err)
	}
	for _, r := range all {
		switch {
		case r.done != nil:
			r.done <- err
		case err != nil:
			l.forget(r.topic) // nobody waits who would
		}
	}
}

// forget makes the next message of a topic pass, because the last one did not
// get into the queue.
func (l *stream) forget(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sampler.Forget(topic)
}

// resync appends all that is retained under the lane now, for a CO that has
// missed something. Whatever becomes of a retained message meanwhile comes after.
// It fails with kind Invalid where that is more than the queue can hold.
func (l *stream) resync(ctx context.Context) (last uint64, err error) {
	l.forwarder.order.Lock()
	defer l.forwarder.order.Unlock()
	var pending []journal.Entry
	bytes := 0
	flush := func() error {
		last, err = l.queue.Append(ctx, pending...)
		pending, bytes = nil, 0
		return err
	}
	add := func(e protocol.Event) error {
		body := protocol.Marshal(e)
		pending = append(pending, journal.Entry{Class: journal.Data, Body: body})
		if bytes += len(body); bytes < l.pieceBytes() {
			return nil
		}
		return flush()
	}
	now, wall := l.queue.Now(), l.forwarder.Now()
	list, err := l.mirrored()
	if err != nil {
		return 0, err
	}
	if err := add(protocol.Event{UnixMillis: now.UnixMilli(), Kind: protocol.RetainedBegin}); err != nil {
		return 0, err
	}
	for _, m := range list {
		m.UnixMillis = now.UnixMilli() - max(0, wall.UnixMilli()-m.UnixMillis)
		if err := add(m); err != nil {
			return 0, err
		}
	}
	if err := add(protocol.Event{UnixMillis: now.UnixMilli(), Kind: protocol.RetainedEnd}); err != nil {
		return 0, err
	}
	if len(pending) > 0 {
		err = flush()
	}
	return last, err
}
