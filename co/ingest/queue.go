package ingest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// The batches that wait for their commit are bounded, in each stream and, by their
	// bytes as they came over the wire, in all together.
	maxStreamJobs  = 256
	maxStreamBytes = 8 << 20
	maxBytes       = 64 << 20
	// jobBytes is about what a batch needs beside them.
	jobBytes = 512

	// A batch that is ahead of its stream is tried again after firstLook, then after twice
	// as long each time, for no longer than aheadWait in all.
	firstLook = 4 * time.Millisecond
	aheadWait = 250 * time.Millisecond
)

// A streamKey names one stream of a site.
type streamKey struct {
	site protocol.SiteID
	name string
}

// A job is a batch that is to be committed.
type job struct {
	stream streamKey
	batch  protocol.Batch
	size   int // bytes
	began  time.Time
	done   chan error // of one place: what became of it

	unwatched bool // no caller waits for done; protected by queues.mu
}

// A queue is the batches of one stream that wait, in the order of their arrival. It
// exists, with a goroutine that commits them, while there are any.
type queue struct {
	jobs  []*job
	bytes int
	more  notify.Signal // there is one more
}

// queues are those of all streams.
type queues struct {
	wg sync.WaitGroup

	mu      sync.Mutex // protects what follows
	streams map[streamKey]*queue
	bytes   int
	closed  bool
}

// add queues a batch, and reports whether it is the only one of its stream.
func (qs *queues) add(in *Ingest, j *job) (idle bool, err error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.closed {
		return false, protocol.Errorf(protocol.Unavailable, "commit batch of site %s: the program stops", j.stream.site)
	}
	q := qs.streams[j.stream]
	serve := q == nil
	if serve {
		q = &queue{more: notify.New()}
	}
	idle = len(q.jobs) == 0
	if len(q.jobs) >= maxStreamJobs || q.bytes+j.size > maxStreamBytes || qs.bytes+j.size > maxBytes {
		return false, protocol.Errorf(protocol.Unavailable, "commit batch of site %s: %d before it are not committed yet", j.stream.site, len(q.jobs))
	}
	q.jobs = append(q.jobs, j)
	q.bytes += j.size
	qs.bytes += j.size
	if serve {
		qs.streams[j.stream] = q
		qs.wg.Go(func() { in.serve(j.stream, q) })
	}
	q.more.Notify()
	return idle, nil
}

// head returns the batch that is next. With sorted that is the one with the lowest
// sequence. Where there is none, the queue is removed.
func (qs *queues) head(of streamKey, q *queue, sorted bool) *job {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if len(q.jobs) == 0 {
		delete(qs.streams, of)
		return nil
	}
	if sorted {
		slices.SortStableFunc(q.jobs, func(a, b *job) int { return cmp.Compare(a.batch.First, b.batch.First) })
	}
	return q.jobs[0]
}

// finish removes the first batch of a queue, and gives its outcome to the caller of
// Accept that waits for it. It reports whether one does.
func (qs *queues) finish(q *queue, err error) (reported bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	j := q.jobs[0]
	q.jobs[0] = nil
	q.jobs = q.jobs[1:]
	q.bytes -= j.size
	qs.bytes -= j.size
	j.done <- err
	return !j.unwatched
}

// leave ends the wait for a batch. It returns the error of one that just failed.
func (qs *queues) leave(j *job) error {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	j.unwatched = true
	select {
	case err := <-j.done:
		return err
	default:
		return nil
	}
}

// close waits for all that is under way. The Ingest's context has ended.
func (qs *queues) close() {
	qs.mu.Lock()
	qs.closed = true
	qs.mu.Unlock()
	qs.wg.Wait()
}

// serve commits the batches of a stream, one after the other, until there are no more.
func (in *Ingest) serve(of streamKey, q *queue) {
	var held holding
	for j := in.queues.head(of, q, false); j != nil; {
		ack, err := in.attempt(j)
		if err == nil && in.opts.Shared && j.batch.Count > 0 && ack.Epoch == j.batch.Epoch && j.batch.First > ack.Seq+1 {
			if wait := held.next(ack, time.Now()); wait > 0 {
				j = in.retry(of, q, j, wait)
				continue
			}
		}
		if err == nil {
			in.answer(of.site, ack) // before the next commit, so that Acks stay in order
		}
		in.finish(q, j, err)
		// What is behind a batch that failed cannot be committed before it.
		for err != nil && protocol.KindOf(err) != protocol.Invalid {
			if j = in.queues.head(of, q, false); j == nil {
				return
			}
			in.finish(q, j, err)
		}
		j = in.queues.head(of, q, false)
	}
}

// finish ends a batch, which is the first of its queue.
func (in *Ingest) finish(q *queue, j *job, err error) {
	reported := in.queues.finish(q, err)
	if err == nil {
		in.batches.WithLabelValues("ok").Inc()
		in.seconds.Observe(time.Since(j.began).Seconds())
		return
	}
	in.batches.WithLabelValues(string(protocol.KindOf(err))).Inc()
	if !reported {
		in.log.Warn("batch not accepted, the site will send it again", "site_id", j.stream.site, "stream", j.stream.name, "first", j.batch.First, "err", err)
	}
}

// retry waits, without a connection to the database, and returns the batch to
// try next: at once one that came in the meantime and is before j.
func (in *Ingest) retry(of streamKey, q *queue, j *job, wait time.Duration) *job {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if next := in.queues.head(of, q, true); next != j {
			return next
		}
		select {
		case <-timer.C:
			return j
		case <-q.more.C():
		case <-in.ctx.Done():
			return j
		}
	}
}

// A holding is how long batches have been ahead of a stream that stands still.
type holding struct {
	at    protocol.Ack
	since time.Time
	tries retry.Backoff
}

// next returns after what time to try again, where the stream stands at a position; 0:
// it has stood there for too long.
func (h *holding) next(at protocol.Ack, now time.Time) time.Duration {
	if h.since.IsZero() || h.at != at {
		*h = holding{at: at, since: now, tries: retry.Backoff{Policy: retry.Policy{Min: firstLook, Max: aheadWait}}}
	}
	return max(min(h.tries.Next(), aheadWait-now.Sub(h.since)), 0)
}
