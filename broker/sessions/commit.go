package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/ranking"
	"github.com/colonyfleet/colony/broker/sessions/sessionlog"
	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// lazy is how long acknowledgements of subscribers may wait until they are written.
	lazy = 250 * time.Millisecond
	// removedBound is how many acknowledgements may wait for a disk that takes none. More are
	// forgotten: their messages are sent again after a restart.
	removedBound = 1 << 17
)

// A Publish is a message that is to be stored for sessions.
type Publish struct {
	Body    Body
	Expires int64 // by the clock of the log, see Until; 0: never
	To      []Target
	// From is the session of a publisher that sent it with QoS 2 as packet ID, or nil.
	From *Session
	ID   uint16
}

// size is about the memory that p takes while it waits for the disk, in bytes; 0 for nil.
func (p *Publish) size() int {
	if p == nil {
		return 0
	}
	const target, identifier = 64, 8
	n := int(p.Body.Size()) + target*len(p.To)
	for i := range p.To {
		n += identifier * len(p.To[i].Identifiers)
	}
	return n
}

// A Target is a session that is to get a message.
type Target struct {
	Session *Session
	Delivery
}

// Publish stores a message. done, unless nil, is called once it is durable, or refused; it
// returns at once. Messages get into the queues in the order of the calls. Publish waits
// while too much waits for the disk.
func (s *Store) Publish(p *Publish, done func(error)) {
	s.changes.add(change{publish: p, flush: true, done: done})
}

// Flush waits until all changes that were made before are durable.
func (s *Store) Flush(ctx context.Context) error {
	result := make(chan error, 1)
	s.changes.add(change{flush: true, done: func(err error) { result <- err }})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// commitAll is the committer. It ends when the store is closed and nothing waits.
func (s *Store) commitAll() {
	for {
		select {
		case <-s.changes.arrived.C():
		case <-s.stop:
			s.changes.close()
			for s.changes.wait() {
				s.commit()
			}
			s.stamp = state.Time{} // so that the next start knows how long nothing ran
			s.note(s.write(&batch{}))
			return
		}
		for s.commit() {
			s.maintain()
		}
		s.maintain()
	}
}

// commit writes the waiting changes, flushes them if it must, and carries them out. It reports
// whether more may wait.
func (s *Store) commit() bool {
	list, removed := s.changes.take()
	if len(list) == 0 && len(removed) == 0 && !s.failing.Load() {
		return false
	}
	b := batch{list: list, removed: removed}
	err := s.catchUp()
	if err == nil {
		err = s.restore()
	}
	if err == nil {
		err = s.write(&b)
	}
	s.note(err)
	ended := (disk.IsFull(err) || errors.Is(err, errSaving)) && s.endMessages(&b)
	s.tail.Store(s.records.Size())
	if err != nil {
		b.refuse(s, err)
	} else {
		b.carryOut(s)
	}
	return len(list) > 0 && (err == nil || ended)
}

// note logs when the disk begins to fail, and when it works again. A full one may take a small change between two messages that it
// refuses: that is one trouble, until it has room.
func (s *Store) note(err error) {
	switch failing := err != nil; {
	case failing && !s.failing.Swap(true):
		begins := s.unwritten.begins()
		if err := s.records.SetIncomplete(true); err != nil && begins {
			s.log.Warn("it is not noted that the log of sessions lacks what becomes of them: after a crash messages may come again without DUP", "err", err)
		}
		if begins {
			s.log.Error("sessions cannot be written: messages for them are refused until the disk takes them", "err", err)
		}
	case !failing && s.failing.Swap(false):
		s.untrimmed.ends()
		s.settled.Store(true)
	}
	if err == nil && s.unwritten.on.Load() && !s.lent && s.records.HasFree(min(s.reserve, s.forCheckpoints())) && s.unwritten.ends() {
		s.log.Info("sessions are written again")
	}
}

// A batch is what one write to the log holds.
type batch struct {
	list    []change
	removed []state.Position
	publish []*state.Publish // of list, as stored, or nil
	at      []int            // of list: which of refs is its record's
	refs    []state.Ref
}

// write appends the batch to the log. The numbers of messages are given here, in the order of the
// log, and count if that succeeds.
func (s *Store) write(b *batch) (err error) {
	var bodies [][]byte
	now := s.o.Now()
	if s.clock.Drifted(s.stamp, now) {
		s.stamp = s.clock.Stamp(now)
		bodies = append(bodies, s.stamp.Append(nil))
	}
	if len(b.removed) > 0 {
		bodies = append(bodies, state.Removed{List: b.removed}.Append(nil))
	}
	b.at, b.publish = make([]int, len(b.list)), make([]*state.Publish, len(b.list))
	flush, given := s.failing.Load(), make(map[*Session]uint64)
	for i := range b.list {
		c := &b.list[i]
		flush = flush || c.flush
		if err := c.tooLarge(); err != nil {
			if c.made() {
				s.log.Error("a last will is too large for the log: it is not stored, nor that its connection has begun or ended", "err", err)
			}
			c.refuse(err)
		}
		switch {
		case c.publish != nil:
			b.publish[i] = c.publish.number(given)
			bodies = append(bodies, b.publish[i].Append(nil))
		case c.copied != nil:
			bodies = append(bodies, state.Copied{From: c.from}.Append(nil), c.body)
		case c.record != nil:
			bodies = append(bodies, c.record.Append(nil))
		}
		b.at[i] = len(bodies) - 1
	}
	if len(bodies) > 0 {
		if b.refs, err = s.records.Append(bodies); err != nil {
			return err
		}
	}
	if flush {
		if err := s.records.Sync(); err != nil {
			return err
		}
	}
	for session, next := range given {
		session.nextSeq = next
	}
	return nil
}

// number gives the message its number in each of its sessions. given has the next ones of
// sessions that got one in this batch.
func (p *Publish) number(given map[*Session]uint64) *state.Publish {
	out := &state.Publish{Body: p.Body, Expires: p.Expires, ID: p.ID, To: make([]state.Target, len(p.To))}
	if p.From != nil {
		out.From = p.From.state.ID
	}
	for i := range p.To {
		t := &p.To[i]
		seq, ok := given[t.Session]
		if !ok {
			seq = t.Session.next()
		}
		given[t.Session] = seq + 1
		out.To[i] = state.Target{Session: t.Session.state.ID, Seq: seq, Delivery: t.Delivery}
	}
	return out
}

// refuse reports to all waiting callers that nothing of the batch was stored. The committer tries
// again after a while, even if no change comes: so it finds out when the disk works again.
func (b *batch) refuse(s *Store, err error) {
	s.stamp = state.Time{} // there is something to write then
	s.changes.later()
	if err := s.records.Trim(s.live.Segments()); err != nil && s.untrimmed.begins() {
		s.log.Warn("the log of sessions is not trimmed on a disk that takes nothing", "err", err)
	}
	spare, _, _ := s.spare()
	s.roomDue = spare > s.forCheckpoints()
	if !s.changes.giveBack(b) {
		s.unrecorded = true
	}
	err = protocol.Errorf(protocol.Unavailable, "the broker cannot store it for the sessions that are to get it: %w", notStored{err})
	for i := range b.list {
		b.list[i].refuse(err)
	}
}

// notStored is why the disk did not take a batch, in the form for clients: the log of the broker has the rest, such as paths.
type notStored struct{ error }

// Error leaves out what is the operator's.
func (n notStored) Error() string {
	if disk.IsFull(n.error) {
		return "its disk is full"
	}
	return "its disk fails, and its log says how"
}

// Unwrap returns the error of the disk.
func (n notStored) Unwrap() error { return n.error }

// refuse reports to a waiting caller that the change is not stored.
func (one *change) refuse(err error) {
	if one.done != nil {
		one.done(err)
	}
	*one = change{}
}

// mostBytes is how much of a message may stand in a record: the rest of it is for its receivers.
const mostBytes = sessionlog.MaxRecord - 1<<20

// tooLarge returns why the log has no room for a change in one record, or nil.
func (one *change) tooLarge() error {
	if one.publish != nil {
		return storable(one.publish.Body.Length())
	}
	switch r := one.record.(type) {
	case state.Away:
		return storable(r.Will.Length())
	case state.Connected:
		if r.Will != nil {
			return storable(r.Will.Body.Length())
		}
	}
	return nil
}

// storable returns why a message of so many bytes cannot be stored, or nil.
func storable(n int) error {
	if n <= mostBytes {
		return nil
	}
	return protocol.Errorf(protocol.Unavailable, "a message of %d bytes is too large for a session that outlives its connection: the limit is %d", n, mostBytes)
}

// Storable returns why a message cannot be stored, as it is or now, or nil. It is of kind Unavailable.
func (s *Store) Storable(b Body) error {
	if err := storable(len(b.Topic) + len(b.Properties) + len(b.Payload)); err != nil {
		return err
	}
	return s.Err()
}

// carryOut lets the messages of the batch into the queues of their sessions, and reports that to
// all waiting callers.
func (b *batch) carryOut(s *Store) {
	woken := make(map[*Session]struct{})
	for i := range b.list {
		c := &b.list[i]
		if p := b.publish[i]; p != nil {
			s.admit(p, c.publish, b.refs[b.at[i]], woken)
		}
		if c.copied != nil {
			s.live.Relocate(c.copied, b.refs[b.at[i]])
		}
		if c.apply != nil {
			c.apply()
		}
		if c.done != nil {
			c.done(nil)
		}
	}
	for session := range woken {
		session.wakeUp()
	}
}

// admit puts a message into the queues of its sessions.
func (s *Store) admit(p *state.Publish, from *Publish, ref state.Ref, woken map[*Session]struct{}) {
	if from.From != nil {
		from.From.receive(p.ID)
	}
	m := state.NewMessage(ref, p.Expires)
	m.Use(1) // until all queues have it
	s.bytes.Add(int64(ref.Size))
	s.live.Add(ref, 1)
	near := false
	for i := range from.To {
		session := from.To[i].Session
		online, ok := session.push(p.To[i], m)
		if !ok {
			continue
		}
		near = near || online
		woken[session] = struct{}{}
	}
	if size := p.Body.Size(); near && s.inMemory.Load()+size <= bodiesInMemory {
		s.inMemory.Add(size)
		m.SetBody(&p.Body)
	}
	s.release(m)
	for i := range from.To {
		s.bound(from.To[i].Session)
		for _, r := range []*ranking.Ranking[*Session]{s.byMessages, s.byBytes} {
			if r != nil {
				r.Grown(from.To[i].Session)
			}
		}
	}
	s.boundTotal()
	s.forgetRankings()
}

// release forgets a message that a session is done with, if it was the last one.
func (s *Store) release(m *state.Message) {
	if !m.Use(-1) {
		return
	}
	s.forgetBody(m)
	s.bytes.Add(-int64(m.Size))
	s.live.Remove(m)
}

func (s *Store) forgetBody(m *state.Message) {
	if body := m.SetBody(nil); body != nil {
		s.inMemory.Add(-body.Size())
	}
}

// bound drops what is above the bound of a session: its oldest messages that were not sent.
func (s *Store) bound(session *Session) {
	dropped := 0
	for session.over(&s.o.Limits) && session.drop() {
		dropped++
	}
	if dropped > 0 {
		s.o.Dropped(dropped, DroppedSession)
	}
}

// boundTotal drops what is above the bounds of all sessions: the oldest of the one that holds most. Where
// all that this one holds was sent, its connection is cut and it loses the oldest of that: a client
// that does not acknowledge costs the others nothing.
func (s *Store) boundTotal() {
	l := &s.o.Limits
	dropped := 0
	for {
		byBytes := s.bytes.Load() > l.TotalBytes
		if !byBytes && s.messages.Load() <= l.TotalMessages {
			break
		}
		worst, ok := s.ranked(byBytes).Most()
		if !ok {
			break
		}
		limit := "sessions.totalMessages"
		if byBytes {
			limit = "sessions.totalBytes"
		}
		if worst.drop() || worst.dropSent(limit) { // else it has been acknowledged meanwhile
			dropped++
		}
	}
	if dropped > 0 {
		s.o.Dropped(dropped, DroppedTotal)
	}
}

// ranked returns the ranking of all sessions, which lasts while about as much is stored as may be. It is made anew
// where it has mostly sessions that have ended.
func (s *Store) ranked(byBytes bool) *ranking.Ranking[*Session] {
	r := &s.byMessages
	if byBytes {
		r = &s.byBytes
	}
	if *r == nil || (*r).Len() > 2*s.number()+1 {
		*r = ranking.New(func(one *Session) int64 { return one.weight(byBytes) }, s.All())
	}
	return *r
}

// forgetRankings gives the memory of the rankings back once there is room again.
func (s *Store) forgetRankings() {
	l := &s.o.Limits
	if s.messages.Load() < l.TotalMessages-l.TotalMessages/8 {
		s.byMessages = nil
	}
	if s.bytes.Load() < l.TotalBytes-l.TotalBytes/8 {
		s.byBytes = nil
	}
}
