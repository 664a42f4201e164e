package sessions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/smalldisk"
	"github.com/colonyfleet/colony/protocol"
)

// onSmallDisk returns a store on a disk of its own, with segments of so many bytes.
func onSmallDisk(t *testing.T, size int, segment int64) (*rig, *smalldisk.Disk) {
	t.Helper()
	disk := smalldisk.New(t, size)
	r := &rig{t: t, dir: disk.Path("sessions"), now: time.Now, dropped: make(map[string]int), segment: segment}
	r.open()
	t.Cleanup(r.close)
	return r, disk
}

// sizeable is a payload that does not fit into what a full disk has left of a page.
var sizeable = strings.Repeat("x", 16<<10)

// untilStored publishes until the store takes it.
func (r *rig) untilStored(to *Session) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := r.publish(sizeable, 1, to)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("there is room again, and nothing is stored: %v", err)
		}
	}
}

// settle waits until the checkpoint is written that what was stored before has made due.
func (r *rig) settle() {
	r.t.Helper()
	r.flush() // behind the commit that looks whether one is due
	for deadline := time.Now().Add(patience); r.saving.Load(); {
		if time.Now().After(deadline) {
			r.t.Fatal("the checkpoint is not written")
		}
		<-time.After(time.Millisecond)
	}
}

// TestFullDisk makes more changes on a full disk than are returned to the log one by one. Messages are refused
// meanwhile, each with the reason; memory is bounded; and once there is room nothing is confirmed before the
// changes are on disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 64<<10)
	a, b := r.session("a", 3600), r.session("b", 3600)
	r.mustPublish("before", 1, a)
	disk.Fill()
	if err := r.publish(sizeable, 1, a); protocol.KindOf(err) != protocol.Unavailable {
		t.Fatalf("on a full disk: %v", err)
	}
	b.End()
	const changes = 6000
	filter := func(i int) string { return fmt.Sprint(i, "/", strings.Repeat("f", 100)) }
	for i := range changes {
		a.Subscribe(filter(i), Subscription{QoS: 1})
	}
	c := r.session("c", 3600)
	for range 3 {
		if err := r.publish(sizeable, 1, c); err == nil {
			t.Fatal("a message was confirmed on a full disk")
		}
	}
	if r.Storable(Body{}) == nil {
		t.Error("the store does not say that it fails")
	}
	r.changes.mu.Lock()
	waiting := len(r.changes.list)
	r.changes.mu.Unlock()
	if waiting > returnedBound {
		t.Errorf("%d changes wait in memory, the bound is %d", waiting, returnedBound)
	}
	disk.Free()
	r.untilStored(c)
	r.crash()
	if got := r.Get("a").Subscriptions(); len(got) != changes || got[filter(changes-1)].QoS != 1 {
		t.Errorf("%d subscriptions after a power cut, want %d", len(got), changes)
	}
	if r.Get("b") != nil {
		t.Error("a session that ended while the disk was full is there again")
	}
	if c := r.Get("c"); c == nil || c.Len() != 1 {
		t.Error("a message was confirmed, and it or its session is lost")
	}
	want(t, "what was there before", receive(r.Get("a").Attach(to(10), 3600)), "1:before")
}

// TestOpenOnFullDisk opens a store for the first time on a full disk.
func TestOpenOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 1<<20)
	disk.Fill()
	r := &rig{t: t, dir: disk.Path("sessions"), now: time.Now, dropped: make(map[string]int)}
	r.open()
	t.Cleanup(r.close)
	a := r.session("a", 3600)
	if err := r.publish(sizeable, 1, a); err == nil {
		t.Error("a message was confirmed on a full disk")
	}
	disk.Free()
	r.untilStored(a)
	r.crash()
	if a := r.Get("a"); a == nil || a.Len() != 1 {
		t.Error("a message was confirmed, and it or its session is lost")
	}
}

// TestFullDiskFreesItself fills the disk while messages wait. When their client has acknowledged them, the room
// that they took serves for new ones, without help; and nothing counts as damaged at the next start.
func TestFullDiskFreesItself(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 64<<10)
	a := r.session("a", 3600)
	for range 40 {
		r.mustPublish(sizeable, 1, a)
		r.settle() // else the segment grows, and there are no checkpoints behind which one can go
	}
	oldest := func() (n uint32) {
		for n = 1; !r.records.Has(n); n++ {
		}
		return n
	}
	first := oldest()
	disk.Fill()
	if err := r.publish(sizeable, 1, a); err == nil {
		t.Fatal("a message was confirmed on a full disk")
	}
	l := a.Attach(to(1000), 3600)
	for _, s := range receive(l) {
		var id uint16
		if _, err := fmt.Sscanf(s, "%d:", &id); err != nil {
			t.Fatal(err)
		}
		l.Acknowledged(id, Puback)
	}
	r.untilStored(a)
	if oldest() == first {
		t.Error("the oldest segment is still there, and no message lives in it")
	}
	r.crash()
	if st := r.Stats(); st.Damaged != 0 || st.Messages < 1 {
		t.Errorf("after a power cut %+v, want the last message, and nothing damaged", st)
	}
	l = r.Get("a").Attach(to(1000), 3600)
	receive(l)
	if st := r.Stats(); st.Damaged != 0 {
		t.Errorf("after the messages were read: %d damaged", st.Damaged)
	}
}

// TestFullDiskBeforeTwoCheckpoints has the disk full when no segment is behind two checkpoints: it frees itself all the same once the messages are
// acknowledged, also where sessions changed meanwhile and the program was started anew.
func TestFullDiskBeforeTwoCheckpoints(t *testing.T) {
	t.Parallel()
	for _, segment := range []int64{2 << 20, 11 << 18, 8 << 20} {
		t.Run(fmt.Sprint(segment), func(t *testing.T) {
			t.Parallel()
			r, disk := onSmallDisk(t, 4<<20, segment)
			r.session("a", 3600)
			stored := 0
			for r.publish(sizeable, 1, r.Get("a")) == nil {
				stored++
			}
			disk.Fill()
			for i := range 20 { // this uses nothing of what is kept for checkpoints
				r.Get("a").Subscribe(fmt.Sprint("t", i), Subscription{QoS: 1})
				if err := r.publish(sizeable, 1, r.Get("a")); err == nil {
					t.Fatal("a message was confirmed on a full disk")
				}
			}
			r.close()
			disk.Fill() // also what it gave back
			r.open()
			filters := len(r.Get("a").Subscriptions()) // that the disk took
			l := r.Get("a").Attach(to(1000), 3600)
			got := receive(l)
			if len(got) != stored {
				t.Fatalf("%d messages after a start, want %d", len(got), stored)
			}
			for _, s := range got {
				var id uint16
				if _, err := fmt.Sscanf(s, "%d:", &id); err != nil {
					t.Fatal(err)
				}
				l.Acknowledged(id, Puback)
			}
			r.untilStored(r.Get("a"))
			r.crash()
			if st := r.Stats(); st.Damaged != 0 || st.Messages != 1 || len(r.Get("a").Subscriptions()) != filters {
				t.Errorf("after a power cut %+v, with %d subscriptions; want the last message, all %d, and nothing damaged", st, len(r.Get("a").Subscriptions()), filters)
			}
		})
	}
}

// TestFullDiskEndsMessages has sessions fill the disk with messages of QoS 2. Their client ends each of them, over power cuts,
// without getting one again whose end was confirmed; then there is room, and the reserve is whole.
func TestFullDiskEndsMessages(t *testing.T) {
	t.Parallel()
	for _, segment := range []int64{256 << 10, 1 << 20, 2 << 20} {
		t.Run(fmt.Sprint(segment), func(t *testing.T) {
			t.Parallel()
			r, disk := onSmallDisk(t, 4<<20, segment)
			r.session("a", 3600)
			stored := 0
			for r.publish(fmt.Sprint(stored, "-", strings.Repeat("x", 2000)), 2, r.Get("a")) == nil {
				stored++
			}
			disk.Fill()
			if err := r.publish(sizeable, 1, r.Get("a")); err == nil {
				t.Fatal("a message was confirmed on a full disk")
			}
			ended := make(map[string]bool)
			for len(ended) < stored {
				took := endSome(t, r.Get("a").Attach(to(20), 3600), ended, 1+stored/5)
				if took == 0 {
					t.Fatalf("%d of %d messages are ended, and the client gets no more", len(ended), stored)
				}
				r.crash()
			}
			endSome(t, r.Get("a").Attach(to(20), 3600), ended, 1)
			r.untilStored(r.Get("a"))
			r.crash()
			if st := r.Stats(); st.Damaged != 0 || st.Messages != 1 {
				t.Errorf("after a power cut %+v, want the last message, and nothing damaged", st)
			}
			if got := r.Get("a").Attach(to(1000), 3600); len(receive(got)) != 1 {
				t.Error("the last message did not come")
			}
			if size, err := os.Stat(filepath.Join(r.dir, "reserve")); err != nil || size.Size() < r.reserve {
				t.Errorf("the reserve is not whole: %v, %v", size, err)
			}
		})
	}
}

// recorded has a client say PUBREC, and returns once that is stored, or cannot be.
func recorded(l *Link, id uint16) error {
	stored := make(chan error, 1)
	l.Recorded(id, func(err error) { stored <- err })
	return <-stored
}

// endSome takes up to so many messages of QoS 2 and acknowledges each to its end. ended are those of which PUBREC was stored.
func endSome(t *testing.T, l *Link, ended map[string]bool, most int) (took int) {
	t.Helper()
	for took < most {
		s, ok := l.next(time.Now())
		if !ok {
			return took
		}
		if s.Release {
			l.Acknowledged(s.ID, Pubcomp)
			continue
		}
		name, _, _ := strings.Cut(string(s.Payload), "-")
		if ended[name] {
			t.Fatalf("message %s comes again", name)
		}
		if err := recorded(l, s.ID); err != nil {
			t.Fatalf("PUBREC of message %s after %d: %v", name, len(ended), err)
		}
		ended[name] = true
		if took++; took < most { // the last one is ended when the client is back
			l.Acknowledged(s.ID, Pubcomp)
		}
	}
	return took
}

// takeAll has a client take so many messages of QoS 2 and send PUBREC for each, and end those but a last window.
func takeAll(t *testing.T, l *Link, window int) (took int) {
	t.Helper()
	var open []uint16
	for {
		s, ok := l.next(time.Now())
		if !ok {
			return took
		}
		if s.Release {
			l.Acknowledged(s.ID, Pubcomp)
			continue
		}
		if err := recorded(l, s.ID); err != nil {
			t.Fatalf("PUBREC of message %d: %v", took, err)
		}
		took++
		if open = append(open, s.ID); len(open) >= window {
			l.Acknowledged(open[0], Pubcomp)
			open = open[1:]
		}
	}
}

// TestFullDiskOfWhoLeaves has the only session fill the disk. Its client takes all, and leaves while PUBRELs, or the last messages, are open: without it
// there is room again, also where the program ends first, and nothing is lost.
func TestFullDiskOfWhoLeaves(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"the last PUBRELs", "the last messages", "the last messages, restart"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r, disk := onSmallDisk(t, 4<<20, 2<<20)
			r.session("a", 3600)
			stored := 0
			for r.publish(fmt.Sprint(stored, "-", strings.Repeat("x", 2000)), 2, r.Get("a")) == nil {
				stored++
			}
			disk.Fill()
			const window = 10
			if kind == "the last PUBRELs" {
				l := r.Get("a").Attach(to(window), 3600)
				if took := takeAll(t, l, window); took != stored {
					t.Fatalf("%d of %d messages came", took, stored)
				}
				l.Detach(3600, nil)
			} else {
				l := r.Get("a").Attach(to(window), 3600)
				if took := endSome(t, l, make(map[string]bool), stored-window); took != stored-window {
					t.Fatalf("%d of %d messages came", took, stored)
				}
				l.Detach(3600, nil)
			}
			if strings.HasSuffix(kind, "restart") {
				r.close()
				r.open()
			}
			b := r.session("b", 3600)
			r.untilStored(b)
			r.crash()
			if st := r.Stats(); st.Damaged != 0 || r.Get("b").Len() != 1 {
				t.Errorf("after a power cut %+v, want the message of b, and nothing damaged", st)
			}
			if kind == "the last PUBRELs" {
				return
			}
			ended := make(map[string]bool)
			endSome(t, r.Get("a").Attach(to(1000), 3600), ended, stored)
			for i := stored - window; i < stored; i++ {
				if !ended[fmt.Sprint(i)] {
					t.Errorf("message %d is lost", i)
				}
			}
		})
	}
}

// TestFullDiskOfManySessions has many sessions of QoS 2 fill the disk with the same messages. Their clients end them one after the other: whatever their number, none is refused, and then there is room.
func TestFullDiskOfManySessions(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 1<<20)
	const sessions = 12
	p := &Publish{Body: Body{Topic: "t", Payload: make([]byte, 2000)}}
	for i := range sessions {
		p.To = append(p.To, Target{Session: r.session(fmt.Sprint(i), 3600), Delivery: Delivery{QoS: 2}})
	}
	stored, result := 0, make(chan error)
	for {
		if r.Publish(p, func(err error) { result <- err }); <-result != nil {
			break
		}
		stored++
	}
	disk.Fill()
	for i := range sessions {
		took := 0
		for took < stored {
			n := 0
			for l := r.Get(fmt.Sprint(i)).Attach(to(20), 3600); n < 1+stored/2; n++ {
				s, ok := l.next(time.Now())
				for ; ok && s.Release; s, ok = l.next(time.Now()) {
					l.Acknowledged(s.ID, Pubcomp)
				}
				if !ok {
					break
				}
				if err := recorded(l, s.ID); err != nil {
					t.Fatalf("session %d: PUBREC of message %d: %v", i, took+n, err)
				}
				l.Acknowledged(s.ID, Pubcomp)
			}
			if took += n; n == 0 {
				t.Fatalf("session %d got %d of %d messages", i, took, stored)
			}
		}
	}
	r.untilStored(r.Get("0"))
	r.crash()
	if st := r.Stats(); st.Damaged != 0 || r.Get("0").Len() == 0 {
		t.Errorf("after a power cut %+v, want the last message, and nothing damaged", st)
	}
}

// hold keeps the committer from working until the function that it returns is called.
func (r *rig) hold() (release func()) {
	held, gate := make(chan struct{}), make(chan struct{})
	r.changes.add(change{done: func(error) { close(held); <-gate }})
	<-held
	return func() { close(gate) }
}

// TestTooLarge refuses a message that fits into no record, and none beside it.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	release := r.hold()
	results := make([]chan error, 2)
	for i, size := range []int{10, mostBytes + 1} {
		results[i] = make(chan error, 1)
		p := &Publish{Body: Body{Payload: make([]byte, size)}, To: []Target{{Session: a, Delivery: Delivery{QoS: 1}}}}
		r.Publish(p, func(err error) { results[i] <- err })
	}
	release()
	for i, result := range results {
		err := <-result
		if refused := i == 1; refused != (err != nil) || refused && !strings.Contains(err.Error(), "too large") {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if err := r.Storable(Body{}); err != nil {
		t.Errorf("after a message that is too large: %v", err)
	}
	if r.Storable(Body{Payload: make([]byte, mostBytes+1)}) == nil {
		t.Error("a message that is too large counts as storable")
	}
	r.mustPublish("largest", 1, a)
	if err := r.publish(strings.Repeat("x", mostBytes-1), 1, a); err != nil {
		t.Errorf("the largest message: %v", err)
	}
}

// TestBacklogCounts counts all of a message that waits for the disk, not its payload alone.
func TestBacklogCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	release := r.hold()
	b := Body{Topic: strings.Repeat("t", 1000), Properties: make([]byte, 10_000), Payload: make([]byte, 100)}
	r.Publish(&Publish{Body: b, To: []Target{{Session: a, Delivery: Delivery{QoS: 1, Identifiers: make([]int, 1000)}}}}, nil)
	bytes := func() int {
		r.changes.mu.Lock()
		defer r.changes.mu.Unlock()
		return r.changes.bytes
	}
	if got := bytes(); got < 19_100 {
		t.Errorf("%d bytes count as waiting, want 19,100 and what the store adds", got)
	}
	release()
	r.flush()
	if got := bytes(); got != 0 {
		t.Errorf("%d bytes wait after all was written", got)
	}
}

// TestReleaseBeforeStored lets the release of a packet id overtake its message, which is still to be written:
// the next message with the id is a new one.
func TestReleaseBeforeStored(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	release := r.hold()
	r.Publish(&Publish{From: a, ID: 7}, nil)
	done := make(chan error, 1)
	a.Finish(7, func(err error) { done <- err })
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"now", "after a crash"} {
		if got := r.Get("a").Received(); len(got) > 0 {
			t.Errorf("%s %v still wait for PUBREL", when, got)
		}
		r.crash()
	}
}

// TestReleaseThatIsNotStored keeps a packet id for which PUBREL came while the disk took nothing: after a crash
// it is there as well, and so the client's next PUBREL ends it.
func TestReleaseThatIsNotStored(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 1<<20, 64<<10)
	a, stored := r.session("a", 3600), make(chan error, 1)
	r.Publish(&Publish{From: a, ID: 7}, func(err error) { stored <- err })
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	disk.Fill()
	if err := r.publish(sizeable, 1, a); err == nil {
		t.Fatal("a message was confirmed on a full disk")
	}
	release := r.hold()
	if err := r.lend(); err != nil { // the room for such changes is used up
		t.Fatal(err)
	}
	disk.Fill()
	r.Publish(&Publish{Body: Body{Payload: []byte(sizeable)}, To: []Target{{Session: a, Delivery: Delivery{QoS: 1}}}}, nil) // fails with what is beside it
	a.Finish(7, func(err error) { stored <- err })
	release()
	if err := <-stored; err == nil {
		t.Error("PUBREL was confirmed on a full disk")
	}
	if got := a.Received(); len(got) != 1 || got[0] != 7 {
		t.Errorf("%v wait for PUBREL, want 7: its end is not stored", got)
	}
	disk.Free()
}

// TestExpiredResend sends again what the client may have in part, also when its time is up; what was not sent
// is dropped. [MQTT-4.4.0-1] [MQTT-3.3.2-5]
func TestExpiredResend(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := r.clock(at)
	r.reopen()
	a := r.session("a", 3600)
	for _, payload := range []string{"sent", "not sent"} {
		p := &Publish{Body: Body{Topic: "t", Payload: []byte(payload)}, Expires: r.Until(at.Add(time.Second)), To: []Target{{Session: a, Delivery: Delivery{QoS: 2}}}}
		r.Publish(p, nil)
	}
	r.flush()
	l := a.Attach(to(1), 3600)
	if s, ok := l.next(at); !ok || show(s) != "1:sent" {
		t.Fatalf("at first %v, %v", s, ok)
	}
	l.Detach(3600, nil)
	late := at.Add(time.Minute)
	clock.set(late)
	l = a.Attach(to(10), 3600)
	s, ok := l.next(late)
	if !ok || show(s) != "1:sent dup" {
		t.Errorf("after its time was up: %v, %v", s, ok)
	}
	if s, ok := l.next(late); ok || r.dropped[DroppedExpired] != 1 {
		t.Errorf("%v came, %v dropped: want one that was not sent", s, r.dropped)
	}
}

// TestCopyIsDurable confirms the copy of a message when it is on disk, so that the checkpoint that removes the
// original finds it.
func TestCopyIsDurable(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	r.mustPublish("x", 1, a)
	onCommitter := func(do func() error) {
		t.Helper()
		result := make(chan error, 1)
		r.changes.add(change{done: func(error) { result <- do() }})
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	onCommitter(func() error { return r.records.Roll() })
	if !r.copySegment(1) {
		t.Fatal("nothing was copied")
	}
	onCommitter(func() error {
		for item := range a.state.Queue.All {
			if ref := item.Message.Ref(); ref.Segment != r.records.Number() || int64(ref.At+ref.Size) > r.records.Durable() {
				return fmt.Errorf("the copy is at %+v, and %d bytes of segment %d are durable", ref, r.records.Durable(), r.records.Number())
			}
			return nil
		}
		return errors.New("the message is lost")
	})
}

// TestPerAddress bounds the sessions that one address has made, whatever names it uses, over a restart; and ends
// those first that hold nothing.
func TestPerAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{PerAddress: 3, Sessions: 5})
	create := func(client, address string) error {
		s, err := r.Create(client, Owner{Name: "owner of " + client, Identity: "i", Address: address}, 3600)
		if err == nil {
			s.Attach(to(10), 3600).Detach(3600, nil)
		}
		return err
	}
	for _, client := range []string{"a", "b", "c"} {
		if err := create(client, "10.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	r.reopen()
	if got := r.Get("a").Owner(); got != (Owner{Name: "owner of a", Identity: "i", Address: "10.0.0.1"}) {
		t.Errorf("owner %+v", got)
	}
	if err := create("d", "10.0.0.1"); err == nil || !strings.Contains(err.Error(), "10.0.0.1 have 3 sessions") {
		t.Errorf("a fourth session of an address: %v", err)
	}
	if err := errors.Join(create("e", "10.0.0.2"), create("f", "")); err != nil {
		t.Fatal(err)
	}
	if err := create("g", ""); err == nil || !strings.Contains(err.Error(), "there are 5 sessions") {
		t.Errorf("a sixth session: %v", err)
	}
	r.Get("a").Subscribe("t", Subscription{QoS: 1})
	r.mustPublish("x", 1, r.Get("b"))
	connected := r.Get("c").Attach(to(10), 3600)
	from := Owner{Name: "new", Address: "10.0.0.1"}
	if idle := r.MakeRoom(from); idle != nil {
		t.Errorf("%s ended: it has a subscription, a message or a connection", idle.Client())
	}
	connected.Detach(3600, nil)
	if idle := r.MakeRoom(from); idle == nil || idle.Client() != "c" || r.Get("c") != nil {
		t.Errorf("%v ended, want c, which holds nothing", idle)
	}
	if idle := r.MakeRoom(from); idle != nil {
		t.Errorf("%s ended, though there is room", idle.Client())
	}
	if err := create("d", "10.0.0.1"); err != nil {
		t.Error(err)
	}
	if idle := r.MakeRoom(Owner{Name: "new"}); idle == nil || idle.Client() != "e" {
		t.Errorf("%v ended, want e, which is away for longest", idle)
	}
}

// A noNew is a file system on which no file can be made where shut says so, as without descriptors.
type noNew struct {
	disk.FS
	shut *atomic.Bool
}

// Open implements disk.Files.
func (d noNew) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	if flag&os.O_CREATE != 0 && d.shut.Load() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
	}
	return d.FS.Open(path, flag, perm)
}

// A segment that cannot be ended grows, and the log says so once, and once that it is over.
func TestTroubleIsSaidOnce(t *testing.T) {
	t.Parallel()
	d := noNew{disk.OS, new(atomic.Bool)}
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "sessions"), now: time.Now, dropped: make(map[string]int), segment: 64 << 10, disk: d}
	r.open()
	t.Cleanup(r.close)
	a := r.session("a", 3600)
	d.shut.Store(true)
	for range 40 {
		r.mustPublish(sizeable, 1, a)
	}
	if n := r.said.count("cannot be ended"); n != 1 {
		t.Errorf("%d lines about a segment that cannot be ended, want 1", n)
	}
	d.shut.Store(false)
	for range 40 {
		r.mustPublish(sizeable, 1, a)
	}
	if n := r.said.count("are ended again"); n != 1 {
		t.Errorf("%d lines say that it is over, want 1", n)
	}
}

// TestSentOnFullDisk has a client connect while the disk is full, and get messages: after a crash they come again with DUP, and the session
// does not expire as if the client had been away all the time. Once the disk has room that is over.
func TestSentOnFullDisk(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 64<<10)
	var hours atomic.Int64
	r.now = func() time.Time { return time.Now().Add(time.Duration(hours.Load()) * time.Hour) }
	r.reopen()
	a := r.session("a", 3*3600)
	for _, m := range []string{"one", "two"} {
		r.mustPublish(m, 1, a)
	}
	incomplete := func() bool {
		_, err := os.Stat(filepath.Join(r.dir, "incomplete"))
		return err == nil
	}
	disk.Fill()
	for i, b := 0, r.session("b", 3600); r.Flush(t.Context()) == nil; i++ { // until the last page is full, too
		b.Subscribe(fmt.Sprint(i), Subscription{QoS: 1})
	}
	hours.Add(2)
	want(t, "on a full disk", receive(a.Attach(to(10), 3*3600)), "1:one", "2:two")
	if err := r.Flush(t.Context()); err == nil || !incomplete() {
		t.Fatalf("the disk is full: flushed with %v, noted: %t", err, incomplete())
	}
	hours.Add(2)
	r.close() // it cannot write what it knows: as after a crash
	r.open()
	if a = r.Get("a"); a == nil {
		t.Fatal("there is no session")
	}
	if _, expired := a.EndIfExpired(); expired {
		t.Fatal("the session has expired, whose client was there")
	}
	want(t, "after a crash", receive(a.Attach(to(10), 3*3600)), "1:one dup", "2:two dup")
	r.close()
	r.open()
	want(t, "after another one", receive(r.Get("a").Attach(to(10), 3*3600)), "1:one dup", "2:two dup")
	disk.Free()
	r.untilStored(r.Get("a"))
	r.untilComplete(r.session("b", 3600))
	r.Get("b").End()
	r.crash()
	want(t, "with room again", receive(r.Get("a").Attach(to(2), 3*3600)), "1:one dup", "2:two dup")
}

// untilComplete publishes until it is noted that the log is complete.
func (r *rig) untilComplete(to *Session) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(r.dir, "complete")); err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("there is no checkpoint, or it is not noted that the log is complete")
		}
		r.mustPublish("more", 1, to)
	}
}

// TestIncompleteIsNoted has something else, or nothing, by the name of the file that says that the log lacks something: it counts as
// incomplete, and the file says so again.
func TestIncompleteIsNoted(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(dir string) error{
		"no file":     func(string) error { return nil },
		"a FIFO":      func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "incomplete"), 0o600) },
		"a directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, "incomplete"), 0o700) },
	} {
		r := newRig(t, Limits{})
		a := r.session("a", 3600)
		r.mustPublish("one", 1, a)
		r.close()
		if err := errors.Join(os.Remove(filepath.Join(r.dir, "complete")), put(r.dir)); err != nil {
			t.Fatal(err)
		}
		r.open()
		want(t, what, receive(r.Get("a").Attach(to(10), 3600)), "1:one dup")
		if info, err := os.Lstat(filepath.Join(r.dir, "incomplete")); err == nil && !info.Mode().IsRegular() {
			t.Errorf("%s: it is there still: %s", what, info.Mode())
		}
		r.untilComplete(r.Get("a"))
	}
}
