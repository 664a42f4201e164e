package sessions

import (
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

// A change is a record on its way to the log.
type change struct {
	record  state.Record
	apply   func()         // carries the change out once its record is durable; nil: it is carried out
	publish *Publish       // instead of a record
	copied  *state.Message // instead of a record: its record is body, and stood at from
	body    []byte
	from    state.Ref
	flush   bool // it is to be durable soon, whether or not anybody waits
	done    func(error)
}

// changes are those that wait for the committer. Safe for concurrent use.
type changes struct {
	arrived notify.Signal
	room    sync.Cond // bytes has become less

	mu      sync.Mutex // protects what follows
	list    []change
	bytes   int              // of the messages in list
	removed []state.Position // messages that are done with; written now and then, without a flush
	closed  bool
}

// changesInMemory is how many bytes of messages may wait for the committer.
const changesInMemory = 16 << 20

func (c *changes) init() {
	c.arrived = notify.New()
	c.room.L = &c.mu
}

// add appends a change. Where too many bytes wait it waits too.
func (c *changes) add(one change) {
	size := one.publish.size()
	c.mu.Lock()
	for c.bytes > changesInMemory && size > 0 && !c.closed {
		c.room.Wait()
	}
	if c.closed {
		c.mu.Unlock()
		if one.done != nil {
			one.done(protocol.Errorf(protocol.Unavailable, "the broker is shutting down"))
		}
		return
	}
	c.list = append(c.list, one)
	c.bytes += size
	c.mu.Unlock()
	c.arrived.Notify()
}

// remove notes that a message is done with.
func (c *changes) remove(p state.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed = append(c.removed, p); len(c.removed) == 1 {
		c.later()
	}
}

// later wakes the committer after a while.
func (c *changes) later() { time.AfterFunc(lazy, c.arrived.Notify) }

// take returns what waits, about as many bytes as one write should have.
func (c *changes) take() (list []change, removed []state.Position) {
	const most, mostBytes = 4096, 4 << 20
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < len(c.list) && n < most && size < mostBytes {
		size += c.list[n].publish.size()
		n++
	}
	list, removed = c.list[:n:n], c.removed
	if c.list = c.list[n:]; len(c.list) == 0 {
		c.list = nil
	}
	c.removed = nil
	c.bytes -= size
	c.room.Broadcast()
	return list, removed
}

// What waits for a disk that takes none is bounded by these, in changes and their bytes. Where more
// waits, it is forgotten, and a checkpoint takes its place.
const (
	returnedBound = 1024
	returnedBytes = 1 << 20
)

// giveBack puts back what could not be written and what no caller waits for: changes that were made
// already. They are written when the disk works again. It returns false where they are too many:
// then they are forgotten.
func (c *changes) giveBack(b *batch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return true
	}
	if c.removed = append(b.removed, c.removed...); len(c.removed) > removedBound {
		c.removed = nil
	}
	rest := slices.DeleteFunc(slices.Clone(b.list), func(one change) bool { return !one.made() })
	size := 0
	for _, one := range rest {
		size += len(one.record.Append(nil))
	}
	if len(rest) > returnedBound || size > returnedBytes {
		return false
	}
	c.list = append(rest, c.list...)
	return true
}

// made reports whether a change is carried out already, so that its record must be written some time.
func (one *change) made() bool { return one.record != nil && one.apply == nil }

// wait reports whether something waits.
func (c *changes) wait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list) > 0 || len(c.removed) > 0
}

// close refuses further changes. Messages that are done with are still noted.
func (c *changes) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.room.Broadcast()
}
