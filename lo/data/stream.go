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
	// sampledTopics is how many topics a sampling rule remembers. A message on one that
	// was forgotten is forwarded, as the first one of a topic is.
	sampledTopics = 10_000
	// appendRecords and appendBytes bound what goes into a queue in one piece, and
	// what waits for it.
	appendRecords = 512
	appendBytes   = 1 << 20
	// smallBody is the largest event of QoS 0, in bytes, whose sender does not wait for
	// the queue: appendRecords of them are 16 MiB of memory.
	smallBody = 32 << 10
)

// A stream is the queue of one data rule: a journal with an uplink of its own. Its rule
// does not change while it is open.
type stream struct {
	rule      protocol.DataRule
	forwarder *Forwarder
	queue     *journal.Journal
	uplink    *uplink.Uplink
	counts    *streamCounts
	// held has on disk what the sampler holds, for an acknowledged message must be there
	// after a crash. Nil unless the rule's mode is SampleLast.
	held *retained.Store

	requests chan request
	sooner   notify.Signal // the sampler may be due earlier
	quit     chan struct{}
	wg       sync.WaitGroup
	cancel   context.CancelFunc // of the uplink

	mu      sync.Mutex // protects sampler
	sampler *sampler.Sampler[sample]

	draining bool // the rule was removed; protected by forwarder.mu
	freshness
}

// streamCounts are what a stream counts itself, over all the times it was opened in this run.
type streamCounts struct {
	accepted, bytes, sampledOut, offline, refused atomic.Uint64
	// Of the journals and uplinks that were closed.
	dropped, expired atomic.Uint64
}

// request is one entry on its way to the queue. done, unless nil, gets the result.
type request struct {
	topic string // at the site
	entry journal.Entry
	done  chan error
}

// sample is a message that the sampler holds.
type sample struct {
	topic string // at the site
	body  []byte
	ref   uint64 // in stream.held; 0: it is not there
}

// openStream opens the queue of a rule and starts its uplink.
func openStream(f *Forwarder, rule protocol.DataRule, counts *streamCounts) (_ *stream, err error) {
	s := &stream{
		rule: rule, forwarder: f, counts: counts, quit: make(chan struct{}), sooner: notify.New(),
		requests: make(chan request, appendRecords), sampler: sampler.New[sample](rule.Sample, sampledTopics),
	}
	s.queue, err = journal.Open(f.queueDir(rule.Name), journal.Options{
		MaxBytes: s.maxBytes(), MaxAge: time.Duration(rule.MaxAgeMillis) * time.Millisecond,
		Disk: f.o.Disk, Now: f.o.Now, Random: f.o.Random, Logger: f.o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue of data rule %s: %w", rule.Name, err)
	}
	f.damage(s.queue.Damage())
	if err := s.openHeld(); err != nil {
		return nil, errors.Join(err, s.queue.Close())
	}
	s.uplink = uplink.New(uplink.Options{
		Journal: s.queue, Site: f.o.Site, Stream: protocol.DataStream(rule.Name), Priority: streamPriority(rule.Priority), Gate: f.o.Gate,
		Publish:       f.o.Begin,
		Previous:      s.queue.Previous,
		Resync:        func(ctx context.Context, _ uplink.Missed) (uint64, error) { return s.appendSnapshot(ctx) },
		MaxBatchBytes: int(rule.BatchBytes), Linger: time.Duration(rule.BatchMillis) * time.Millisecond, Uncompressed: rule.Uncompressed,
		MaxAge: time.Duration(rule.MaxAgeMillis) * time.Millisecond, // to the message; the queue drops whole segments
		Logger: f.o.Logger, Registerer: f.o.Registerer,
	})
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(s.appendLoop)
	s.wg.Go(func() {
		if err := s.uplink.Run(ctx); err != nil && ctx.Err() == nil {
			f.o.Fail(fmt.Errorf("uplink of data rule %s: %w", rule.Name, err))
		}
	})
	return s, nil
}

func (s *stream) maxBytes() int64 {
	if s.rule.MaxBytes == 0 {
		return defaultQueueBytes
	}
	return int64(s.rule.MaxBytes)
}

// largest is the size in bytes of the largest event that the queue accepts. The journal
// would refuse a larger one together with all that are appended with it.
func (s *stream) largest() int { return int(min(journal.MaxBody, s.maxBytes()/4)) }

// pieceBytes bounds what is appended to the queue in one piece.
func (s *stream) pieceBytes() int { return int(min(appendBytes, s.maxBytes()/16)) }

// streamPriority returns the gate's priority for that of a rule; 0 is for the events.
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

// close closes the stream. What waits, and what the sampler holds, goes into the queue
// first. No accept may run meanwhile.
func (s *stream) close() error {
	s.cancel()
	close(s.quit)
	s.wg.Wait()
	s.uplink.Close()
	st := s.queue.Stats()
	s.counts.dropped.Add(st.Dropped + st.Lost)
	s.counts.expired.Add(s.uplink.Status().Backlog.Expired)
	err := errors.Join(s.settleMark(), s.queue.Close())
	if s.held != nil {
		err = errors.Join(err, s.held.Close())
	}
	if err != nil {
		return fmt.Errorf("close queue of data rule %s: %w", s.rule.Name, err)
	}
	return nil
}

// fits returns an error of kind Invalid for an event that the queue never accepts, and
// counts it as refused.
func (s *stream) fits(body []byte) error {
	most := s.largest()
	if len(body) <= most {
		return nil
	}
	s.counts.refused.Add(1)
	return protocol.Errorf(protocol.Invalid, "message of %d bytes is too large for the queue of data rule %s, which takes up to a quarter of its maxBytes, and %d at most", len(body), s.rule.Name, most)
}

// put appends one encoded event. With keep, and for a large event, it returns once the
// event is on disk; else as soon as appendLoop is going to append it.
func (s *stream) put(ctx context.Context, topic string, body []byte, keep bool) error {
	if err := s.fits(body); err != nil {
		return err
	}
	r := request{topic: topic, entry: journal.Entry{Class: journal.Data, Body: body}}
	if keep || len(body) > smallBody {
		r.done = make(chan error, 1)
	}
	select {
	case s.requests <- r:
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

// appendLoop appends what is put, in order and many at a time, and the samples whose
// period has ended.
func (s *stream) appendLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case r := <-s.requests:
			s.appendAll(r)
		case <-s.sooner.C():
		case <-timer.C:
			s.release(false)
		case <-s.quit:
			for len(s.requests) > 0 {
				s.appendAll(<-s.requests)
			}
			s.release(true)
			return
		}
		s.mu.Lock()
		next, ok := s.sampler.Next()
		s.mu.Unlock()
		if ok {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// appendAll appends first and all other waiting requests that fit into one append.
func (s *stream) appendAll(first request) {
	all, bytes := []request{first}, len(first.entry.Body)
	for most := s.pieceBytes(); len(all) < appendRecords && bytes < most && len(s.requests) > 0; {
		r := <-s.requests
		all, bytes = append(all, r), bytes+len(r.entry.Body)
	}
	entries := make([]journal.Entry, len(all))
	for i := range all {
		entries[i] = all[i].entry
	}
	_, err := s.queue.Append(context.Background(), entries...)
	if err != nil {
		s.counts.refused.Add(uint64(len(all)))
		s.forwarder.log.Warn("machine data not accepted", "rule", s.rule.Name, "messages", len(all), "err", err)
		err = fmt.Errorf("append to the queue of data rule %s: %w", s.rule.Name, err)
	}
	for _, r := range all {
		switch {
		case r.done != nil:
			r.done <- err
		case err != nil:
			s.forget(r.topic) // no sender waits for the result
		}
	}
}

// forget has the next message on a topic forwarded, because the last one did not get
// into the queue.
func (s *stream) forget(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sampler.Forget(topic)
}
