package sessions

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/internal/testpart"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// A rig is a store that a test opens again and again.
type rig struct {
	*Store
	t       *testing.T
	dir     string
	limits  Limits
	now     func() time.Time
	dropped map[string]int
	segment int64 // bytes; 0: the default
	damages []*statefile.Damage
	disk    disk.FS // nil: that of the machine
	said    said
}

// A said is a log in which lines can be counted.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

// count is how often a text was said.
func (s *said) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Count(s.buf.Bytes(), []byte(text))
}

func newRig(t *testing.T, limits Limits) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "sessions"), limits: limits, now: time.Now, dropped: make(map[string]int)}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.Store, err = Open(r.t.Context(), Options{
		Dir: r.dir, Disk: r.disk, Limits: r.limits, Logger: slog.New(slog.NewTextHandler(io.MultiWriter(r.t.Output(), &r.said), nil)), Now: r.now,
		Dropped: func(n int, reason string) { r.dropped[reason] += n }, segmentBytes: r.segment,
		Damaged: func(d *statefile.Damage) { r.damages = append(r.damages, d) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	if err := r.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) reopen() {
	r.t.Helper()
	r.close()
	r.open()
}

// crash opens the store as a kill -9 and a power cut at this moment would leave it: of the last
// segment nothing is there but what was flushed.
func (r *rig) crash() {
	r.t.Helper()
	var dir string
	var number uint32
	var durable int64
	copied := make(chan error, 1)
	r.changes.add(change{done: func(err error) { // on the committer, so that nothing is written meanwhile
		for range 10 { // a checkpoint may remove files
			dir = filepath.Join(r.t.TempDir(), "sessions")
			if err = os.CopyFS(dir, os.DirFS(r.dir)); err == nil {
				break
			}
		}
		number, durable = r.records.Number(), r.records.Durable()
		copied <- err
	}})
	if err := <-copied; err != nil {
		r.t.Fatal(err)
	}
	r.close()
	if err := os.Truncate(filepath.Join(dir, fmt.Sprintf("segment-%08d", number)), durable); err != nil {
		r.t.Fatal(err)
	}
	r.dir = dir
	r.open()
}

// session makes a session that is away.
func (r *rig) session(client string, expiry uint32) *Session {
	r.t.Helper()
	s, err := r.Create(client, Owner{Name: "owner of " + client, Identity: "i"}, expiry)
	if err != nil {
		r.t.Fatal(err)
	}
	s.Attach(to(10), expiry).Detach(expiry, nil)
	return s
}

// publish stores a message and waits until it is durable.
func (r *rig) publish(payload string, qos byte, sessions ...*Session) error {
	r.t.Helper()
	p := &Publish{Body: Body{Topic: "t", Payload: []byte(payload)}}
	for _, s := range sessions {
		p.To = append(p.To, Target{Session: s, Delivery: Delivery{QoS: qos}})
	}
	result := make(chan error, 1)
	r.Publish(p, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		r.t.Fatal("the store does not answer")
		return nil
	}
}

func (r *rig) mustPublish(payload string, qos byte, to ...*Session) {
	r.t.Helper()
	if err := r.publish(payload, qos, to...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) flush() {
	r.t.Helper()
	if err := r.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// receive returns what the client of a session gets with a window, as text.
func receive(l *Link) (got []string) {
	for {
		s, ok := l.next(time.Now())
		if !ok {
			return got
		}
		got = append(got, show(s))
	}
}

// to is a receiver that takes everything.
func to(window int) Receiver {
	return Receiver{Window: window, V5: true, Wake: func() {}, Cut: func(string) {}, May: func(string) bool { return true }, Sent: func(byte, int) {}}
}

func show(s outgoing) string {
	switch {
	case s.Release:
		return fmt.Sprintf("release %d", s.ID)
	case s.Dup:
		return fmt.Sprintf("%d:%s dup", s.ID, s.Payload)
	}
	return fmt.Sprintf("%d:%s", s.ID, s.Payload)
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// TestLogBytes counts what the log takes, the segment that is written to with it.
func TestLogBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	r.mustPublish(sizeable, 1, a)
	r.flush()
	if size := r.Stats().LogBytes; size < int64(len(sizeable)) {
		t.Errorf("the log has %d bytes, and a message of %d is in it", size, len(sizeable))
	}
	r.reopen()
	if size := r.Stats().LogBytes; size < int64(len(sizeable)) {
		t.Errorf("after a restart the log has %d bytes", size)
	}
}

// TestQueueOverRestart follows one session: what is stored for it while it is away, what is sent
// again, what its acknowledgements end, over connections and restarts.
func TestQueueOverRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	for _, p := range []string{"x", "y", "z"} {
		r.mustPublish(p, 1, a)
	}
	r.reopen()
	a = r.Get("a")
	if got := a.Owner(); got != (Owner{Name: "owner of a", Identity: "i"}) {
		t.Errorf("owner %+v", got)
	}
	l := a.Attach(to(2), 3600)
	want(t, "with a window of two", receive(l), "1:x", "2:y")
	l.Acknowledged(1, Puback)
	l.Acknowledged(1, Puback) // says nothing new
	want(t, "after one acknowledgement", receive(l), "3:z")
	l.Detach(3600, nil)
	l.Acknowledged(2, Puback) // of a connection that has ended
	l = a.Attach(to(10), 3600)
	want(t, "on the next connection", receive(l), "2:y dup", "3:z dup")
	r.mustPublish("v", 1, a)
	want(t, "what comes meanwhile", receive(l), "4:v")
	r.flush()
	r.crash()
	a = r.Get("a")
	l = a.Attach(to(10), 3600)
	// The acknowledgement was not flushed maybe; what was sent before the crash has its packet id.
	got := receive(l)
	if len(got) == 4 {
		got = got[1:]
	}
	want(t, "after a crash", got, "2:y dup", "3:z dup", "4:v dup")
	for id := range uint16(5) {
		l.Acknowledged(id, Puback)
	}
	r.reopen()
	if n := r.Get("a").Len(); n != 0 || r.Stats().Messages != 0 || r.Stats().Bytes != 0 {
		t.Errorf("%d messages are left, %+v", n, r.Stats())
	}
	r.mustPublish("w", 1, r.Get("a"))
	want(t, "ids go on after all was acknowledged", receive(r.Get("a").Attach(to(10), 3600)), "5:w")
}

// TestExactlyOnce follows messages of QoS 2 to a client over crashes in each of their states.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", state.Never)
	for _, p := range []string{"x", "y"} {
		r.mustPublish(p, 2, a)
	}
	l := a.Attach(to(10), state.Never)
	want(t, "at first", receive(l), "1:x", "2:y")
	l.Acknowledged(1, Puback) // not for QoS 2
	l.Acknowledged(1, Pubcomp)
	recorded := make(chan error, 1)
	if l.Recorded(1, func(err error) { recorded <- err }) != state.First || l.Recorded(9, func(error) {}) != state.Unknown {
		t.Error("PUBREC: want id 1 known and 9 unknown")
	}
	if err := <-recorded; err != nil {
		t.Fatal(err)
	}
	r.crash()
	l = r.Get("a").Attach(to(10), state.Never)
	want(t, "after a crash behind PUBREC", receive(l), "release 1", "2:y dup")
	l.Acknowledged(1, Pubcomp)
	l.Acknowledged(2, Refused)
	r.reopen()
	if n := r.Get("a").Len(); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// TestRepeatedPubrec has a client send one PUBREC again and again, while the disk takes its time and after: one record waits
// for the disk, and the client is answered when that is stored, and at once from then on.
func TestRepeatedPubrec(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", state.Never)
	r.mustPublish("x", 2, a)
	l := a.Attach(to(10), state.Never)
	want(t, "at first", receive(l), "1:x")
	r.flush()
	release := r.hold()
	answers := make(chan error, 10)
	answer := func(err error) { answers <- err }
	for i := range 1000 {
		is := state.Repeated
		if i == 0 {
			is = state.First
		}
		if got := l.Recorded(1, answer); got != is {
			t.Fatalf("PUBREC %d: %v, want %v", i, got, is)
		}
	}
	r.changes.mu.Lock()
	waiting := len(r.changes.list)
	r.changes.mu.Unlock()
	if waiting != 1 {
		t.Errorf("%d records wait for the disk, want one", waiting)
	}
	release()
	r.flush()
	if n := len(answers); n != 1 {
		t.Errorf("%d answers once the first is stored, want one", n)
	}
	if got := l.Recorded(1, answer); got != state.Stored || len(answers) != 2 {
		t.Errorf("PUBREC after it was stored: %v, %d answers, want %v and 2", got, len(answers), state.Stored)
	}
	l.Detach(state.Never, nil)
	l = a.Attach(to(10), state.Never)
	want(t, "on the next connection", receive(l), "release 1")
}

// TestReceived follows the packet ids of a client's own messages of QoS 2.
func TestReceived(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	stored, gate := make(chan error, 1), make(chan struct{})
	r.changes.add(change{done: func(error) { <-gate }}) // holds the committer
	r.Publish(&Publish{From: a, ID: 7}, func(err error) { stored <- err })
	if got := a.Received(); len(got) > 0 { // a checkpoint would have the id without the message
		t.Errorf("%v is known before its message is durable", got)
	}
	close(gate)
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	r.crash()
	if got := r.Get("a").Received(); !slices.Equal(got, []uint16{7}) {
		t.Errorf("after PUBREC %v is known, want 7", got)
	}
	r.Get("a").Finish(7, func(err error) { stored <- err })
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	r.crash()
	if got := r.Get("a").Received(); len(got) > 0 {
		t.Errorf("after PUBREL %v is known, want none", got)
	}
}

// TestSubscriptions keeps, changes and removes subscriptions over crashes.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	all := Subscription{Identifier: 300, QoS: 2, NoLocal: true, RetainAsPublished: true}
	a.Subscribe("f", Subscription{QoS: 1})
	a.Subscribe("g", Subscription{QoS: 1})
	a.Subscribe("f", all)
	a.Unsubscribe("g")
	r.flush()
	r.crash()
	if got := r.Get("a").Subscriptions(); len(got) != 1 || got["f"] != all {
		t.Errorf("got %v, want f with %+v", got, all)
	}
	r.Get("a").End()
	r.flush()
	r.crash()
	if r.Get("a") != nil || len(r.All()) != 0 {
		t.Error("an ended session is there again")
	}
}

// TestBounds meets the bounds of a session and of all: the oldest messages of the guilty go.
func TestBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{Messages: 3, TotalMessages: 5, Sessions: 3, PerIdentity: 1})
	a, b, c := r.session("a", 3600), r.session("b", 3600), r.session("c", 3600)
	for i := range 5 {
		r.mustPublish(fmt.Sprint(i), 1, a)
	}
	r.mustPublish("b", 1, b)
	r.mustPublish("c", 1, c)
	r.mustPublish("d", 1, c)
	if r.dropped[DroppedSession] != 2 || r.dropped[DroppedTotal] != 1 {
		t.Errorf("dropped %v, want 2 for the session's bound and 1 for all", r.dropped)
	}
	r.reopen()
	want(t, "a", receive(r.Get("a").Attach(to(10), 3600)), "4:3", "5:4")
	want(t, "b", receive(r.Get("b").Attach(to(10), 3600)), "1:b")
	want(t, "c", receive(r.Get("c").Attach(to(10), 3600)), "1:c", "2:d")
	if _, err := r.Create("d", Owner{Name: "d"}, 1); err == nil || !strings.Contains(err.Error(), "that is the limit") {
		t.Errorf("a fourth session: %v", err)
	}
	r.Get("a").End()
	if _, err := r.Create("d", Owner{Name: "owner of b"}, 1); err == nil || !strings.Contains(err.Error(), "owner of b has 1 sessions") {
		t.Errorf("a second session of an identity: %v", err)
	}
	if _, err := r.Create("d", Owner{Name: "d"}, 1); err != nil {
		t.Error(err)
	}
}

// TestDroppingSparesWhatWasSent drops new messages rather than those that the client may have.
func TestDroppingSparesWhatWasSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{Messages: 2})
	a := r.session("a", 3600)
	r.mustPublish("x", 2, a)
	r.mustPublish("y", 2, a)
	l := a.Attach(to(10), 3600)
	want(t, "at first", receive(l), "1:x", "2:y")
	l.Detach(3600, nil)
	for range 1000 {
		r.mustPublish("z", 2, a)
	}
	want(t, "then", receive(a.Attach(to(10), 3600)), "1:x dup", "2:y dup")
	if r.dropped[DroppedSession] != 1000 {
		t.Errorf("dropped %v, want 1000", r.dropped)
	}
}

// TestTotalBoundMeetsWhoDoesNotAcknowledge drops what a client has been sent and does not acknowledge, once
// that is what most of the store holds: with and without a connection.
func TestTotalBoundMeetsWhoDoesNotAcknowledge(t *testing.T) {
	t.Parallel()
	for _, connected := range []bool{true, false} {
		r := newRig(t, Limits{TotalMessages: 100})
		bad, good := r.session("bad", 3600), r.session("good", 3600)
		cuts := 0
		client := to(4096)
		client.Cut = func(limit string) {
			if cuts++; limit != "sessions.totalMessages" {
				t.Errorf("its connection is cut for %s", limit)
			}
		}
		l := bad.Attach(client, 3600)
		for range 100 {
			r.mustPublish("x", 1, bad)
			receive(l)
		}
		if !connected {
			l.Detach(3600, nil)
		}
		for range 40 {
			r.mustPublish("y", 1, good)
		}
		if bad.Len() > 60 || good.Len() != 40 {
			t.Errorf("connected %v: %d messages of who acknowledges nothing, %d of the other, want at most 60 and 40", connected, bad.Len(), good.Len())
		}
		if r.dropped[DroppedTotal] != 100-bad.Len() {
			t.Errorf("dropped %v, want %d", r.dropped, 100-bad.Len())
		}
		if (cuts == 1) != connected || cuts > 1 {
			t.Errorf("connected %v: its connection was cut %d times", connected, cuts)
		}
		r.mustPublish("z", 1, bad)
		if got := receive(l); len(got) > 0 {
			t.Errorf("the connection that is cut gets %v", got)
		}
		if got := receive(bad.Attach(to(4096), 3600)); len(got) != bad.Len() {
			t.Errorf("the next connection gets %d of %d", len(got), bad.Len())
		}
	}
}

// A hand sets the clock of a store, which the store reads whenever it writes.
type hand struct{ at atomic.Pointer[time.Time] }

// clock gives the rig a clock that stands at a time.
func (r *rig) clock(at time.Time) *hand {
	h := &hand{}
	h.set(at)
	r.now = h.now
	return h
}

func (h *hand) now() time.Time      { return *h.at.Load() }
func (h *hand) set(at time.Time)    { h.at.Store(&at) }
func (h *hand) add(d time.Duration) { h.set(h.now().Add(d)) }

// TestExpiry follows the clock of the log over restarts: with a machine's clock that goes on, and
// with one that begins in 1970.
func TestExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	clock := r.clock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r.reopen()
	short, long, ever := r.session("short", 60), r.session("long", 3600), r.session("ever", state.Never)
	p := &Publish{Body: Body{Topic: "t", Payload: []byte("old")}, Expires: r.Until(clock.now().Add(10 * time.Second)), To: []Target{{Session: ever, Delivery: Delivery{QoS: 1}}}}
	r.Publish(p, nil)
	r.mustPublish("lasting", 1, ever)
	expired := func() (names []string) {
		t.Helper()
		list, _ := r.Due()
		for _, s := range list {
			if _, ok := s.EndIfExpired(); !ok {
				t.Errorf("%s is due and does not end", s.Client())
			}
			names = append(names, s.Client())
		}
		return names
	}
	want(t, "at once", expired())
	clock.add(59 * time.Second)
	want(t, "after 59 s", expired())
	r.close()
	clock.set(time.Date(1970, 1, 1, 0, 0, 5, 0, time.UTC)) // the machine has lost its clock
	r.open()
	want(t, "in 1970", expired())
	clock.add(2 * time.Second)
	want(t, "when 61 s have passed", expired(), "short")
	if r.Get("short") != nil || r.Get("long") == nil {
		t.Error("short is there, or long is not")
	}
	r.close()
	clock.set(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)) // it gets its clock back while nothing runs
	r.open()
	want(t, "after a start whose last stamp means nothing", expired())
	r.close()
	clock.add(time.Hour)
	r.open()
	want(t, "an hour later, over a restart", expired(), "long")
	want(t, "messages", receive(r.Get("ever").Attach(to(10), 60)), "2:lasting")
	if r.dropped[DroppedExpired] != 1 {
		t.Errorf("dropped %v, want one expired", r.dropped)
	}
	_, _ = short, long
}

// TestWill returns a last will when its delay is over, when its session ends, and never after the client
// has come back; over a restart.
func TestWill(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	clock := r.clock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r.reopen()
	will := func(client string, expiry, delay uint32) {
		s, err := r.Create(client, Owner{Name: client}, expiry)
		if err != nil {
			t.Fatal(err)
		}
		s.Attach(to(10), expiry).Detach(expiry, &Will{
			At: r.WillAt(delay), QoS: 2, Retain: true, Expiry: 9,
			Body: Body{Topic: "will/" + client, Payload: []byte("p"), Properties: []byte{1, 1}},
		})
	}
	will("late", 3600, 60)
	will("back", 3600, 60)
	will("ends", 30, 60)
	r.Get("back").Attach(to(10), 3600).Detach(3600, nil)
	r.reopen()
	due := func() (topics []string) {
		_, wills := r.Due()
		for s, w := range wills {
			topics = append(topics, w.Body.Topic)
			if w.QoS != 2 || !w.Retain || w.Expiry != 9 || string(w.Body.Payload) != "p" || string(w.Body.Properties) != "\x01\x01" {
				t.Errorf("will of %s: %+v", s.Client(), w)
			}
		}
		slices.Sort(topics)
		return topics
	}
	want(t, "at once", due())
	clock.add(31 * time.Second)
	want(t, "when its session expires", due(), "will/ends")
	clock.add(30 * time.Second)
	want(t, "after its delay", due(), "will/late")
	r.reopen()
	want(t, "once", due())
}

// TestManyReaders stores a message for many sessions once.
func TestManyReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	var all []*Session
	for i := range 50 {
		all = append(all, r.session(fmt.Sprint("c", i), 3600))
	}
	r.mustPublish(strings.Repeat("x", 10_000), 1, all...)
	if st := r.Stats(); st.Messages != 50 || st.Bytes > 12_000 || r.records.Size() > 30_000 {
		t.Errorf("%+v, log of %d bytes: want 50 messages that take about 10 kB", st, r.records.Size())
	}
	r.reopen()
	for i := range 50 {
		l := r.Get(fmt.Sprint("c", i)).Attach(to(10), 3600)
		if got := receive(l); len(got) != 1 {
			t.Fatalf("session %d got %d messages", i, len(got))
		}
		l.Acknowledged(1, Puback)
	}
	if st := r.Stats(); st.Messages != 0 || st.Bytes != 0 {
		t.Errorf("%+v: want nothing", st)
	}
}

// TestCheckpointsAndCompaction fills some segments, and lets most of each be delivered: the log stays
// small, and what is left is there after a restart, a crash, and with a damaged checkpoint.
func TestCheckpointsAndCompaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	fast, slow := r.session("fast", 3600), r.session("slow", 3600)
	fast.Subscribe("f", Subscription{QoS: 1})
	var kept []string
	payload := strings.Repeat("x", 64<<10)
	link := fast.Attach(to(100), 3600)
	for i := range 3000 { // 190 MB
		receivers := []*Session{fast}
		body := fmt.Sprint(i, " ", payload)
		if i%100 == 0 {
			receivers = append(receivers, slow)
			kept = append(kept, body)
		}
		p := &Publish{Body: Body{Topic: "t", Payload: []byte(body)}}
		for _, s := range receivers {
			p.To = append(p.To, Target{Session: s, Delivery: Delivery{QoS: 1}})
		}
		if i%50 != 0 {
			r.Publish(p, nil)
			continue
		}
		r.mustPublish(body, 1, receivers...)
		for {
			s, ok := link.next(time.Now())
			if !ok {
				break
			}
			link.Acknowledged(s.ID, Puback)
		}
	}
	check := func(what string) {
		t.Helper()
		if n := len(r.Get("fast").Subscriptions()); n != 1 {
			t.Errorf("%s: %d subscriptions", what, n)
		}
		l := r.Get("slow").Attach(to(1000), 3600)
		for i := range kept {
			s, ok := l.next(time.Now())
			if !ok || string(s.Payload) != kept[i] {
				t.Fatalf("%s: message %d of %d is not there, %d damaged", what, i, len(kept), r.Stats().Damaged)
			}
		}
		l.Detach(3600, nil)
		if n := r.Stats().Damaged; n != 0 {
			t.Errorf("%s: %d damaged", what, n)
		}
	}
	check("before")
	r.reopen()
	check("after a restart")
	if size := r.Stats().LogBytes; size > 128<<20 {
		t.Errorf("the log has %d bytes for %d", size, r.Stats().Bytes)
	}
	r.crash()
	check("after a crash")
	r.close()
	names, err := filepath.Glob(filepath.Join(r.dir, "checkpoint-*"))
	if err != nil || len(names) != 2 {
		t.Fatalf("checkpoints %v, %v: want two", names, err)
	}
	testpart.Damage(t, names[1])
	r.open()
	if n := r.Stats().Damaged; n != 1 {
		t.Errorf("%d damaged, want the checkpoint", n)
	}
	r.lost.Store(0)
	check("with the older checkpoint")
}

// TestDamagedRecords damages the log: the store starts, counts what is lost, and loses no more.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	for i := range 20 {
		r.mustPublish(fmt.Sprint("message ", i), 1, a)
	}
	r.close()
	path := filepath.Join(r.dir, "segment-00000001")
	testpart.Damage(t, path)
	r.open()
	if n := r.Stats().Damaged; n != 1 || len(r.damages) != 1 || r.damages[0].Path != path {
		t.Errorf("%d records are damaged, reported %v, want 1", n, r.damages)
	}
	l := r.Get("a").Attach(to(100), 3600)
	if got := receive(l); len(got) != 19 {
		t.Errorf("%d messages are left, want 19: %v", len(got), got)
	}
	r.mustPublish("new", 1, r.Get("a"))
	want(t, "then", receive(l), "21:new")
	if aside, _ := filepath.Glob(path + ".damaged-*"); len(aside) != 1 {
		t.Errorf("set aside %v, want one file", aside)
	}
	for range 2 {
		r.reopen()
		if n := r.Get("a").Len(); n != 20 || r.Stats().Damaged != 0 {
			t.Errorf("%d messages after another restart, and %d damaged, want 20 and none", n, r.Stats().Damaged)
		}
	}
}

// TestDamageUnderWay damages messages of an open store: their recipients get the others, and the segment is
// reported once.
func TestDamageUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a, second := r.session("a", 3600), r.session("b", 3600)
	for i := range 20 {
		r.mustPublish(strings.Repeat(fmt.Sprint(i%10), 100), 1, a, second)
	}
	path := filepath.Join(r.dir, "segment-00000001")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, digit := range []string{"3", "7"} { // each in two messages
		b = bytes.ReplaceAll(b, []byte(strings.Repeat(digit, 100)), []byte(strings.Repeat("x", 100)))
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := receive(a.Attach(to(100), 3600)); len(got) != 16 {
		t.Errorf("%d messages are left, want 16: %v", len(got), got)
	}
	if n := r.Stats().Damaged; n != 4 || len(r.damages) != 1 || r.damages[0].Path != path || r.damages[0].Lost != 1 {
		t.Errorf("%d damaged, reported %v; want 4, and the segment once", n, r.damages)
	}
	if got := receive(second.Attach(to(100), 3600)); len(got) != 16 {
		t.Errorf("%d messages are left for the second session, want 16: %v", len(got), got)
	}
	if n := r.Stats().Damaged; n != 4 || r.dropped[DroppedDamaged] != 8 {
		t.Errorf("%d records are damaged, and %d messages dropped for it: want 4, each for two sessions", n, r.dropped[DroppedDamaged])
	}
	if n := r.said.count("cannot be read"); n != 1 {
		t.Errorf("%d lines in the log about one segment, want 1", n)
	}
}

// TestDamageIsFoundOnce checks that a start does not find the damage again that the one before has found,
// although nothing was stored in between.
func TestDamageIsFoundOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	for i := range 20 {
		r.mustPublish(fmt.Sprint("message ", i), 1, a)
	}
	r.close()
	testpart.Damage(t, filepath.Join(r.dir, "segment-00000001"))
	r.open()
	if n := r.Stats().Damaged; n != 1 {
		t.Errorf("%d records are damaged, want 1", n)
	}
	testpart.Within(t, time.Minute, "a checkpoint is written", func() error {
		names, err := filepath.Glob(filepath.Join(r.dir, "checkpoint-*"))
		if err == nil && len(names) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	r.crash()
	if n, lost := r.Get("a").Len(), r.Stats().Damaged; n != 19 || lost != 0 {
		t.Errorf("after a crash there are %d messages, and %d damaged, want 19 and none", n, lost)
	}
}

// TestClosed refuses what comes after Close.
func TestClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	a := r.session("a", 3600)
	r.close()
	if err := r.publish("x", 1, a); err == nil {
		t.Error("a closed store takes a message")
	}
	r.open()
}

// TestLostSegment removes a segment that checkpoints cover, in which messages wait: they are counted and reported once, and
// the others are there.
func TestLostSegment(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	r.segment = 4 << 10
	r.reopen()
	a := r.session("a", 3600)
	for i := range 60 {
		r.mustPublish(fmt.Sprint(i, strings.Repeat("x", 500)), 1, a)
	}
	r.close()
	checkpoints := func() []string {
		names, err := filepath.Glob(filepath.Join(r.dir, "checkpoint-*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := checkpoints()
	path := filepath.Join(r.dir, "segment-00000002")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.open()
	left := r.Get("a").Len()
	if len(r.damages) != 1 || r.damages[0].Path != path || r.damages[0].Lost != uint64(60-left) || left == 60 || r.Stats().Damaged != int64(60-left) {
		t.Errorf("%d of 60 messages are left, %d damaged, reported %v; want all that are missing reported", left, r.Stats().Damaged, r.damages)
	}
	if got := receive(r.Get("a").Attach(to(100), 3600)); len(got) != left {
		t.Errorf("%d messages came, want %d", len(got), left)
	}
	testpart.Within(t, time.Minute, "a checkpoint is written", func() error {
		if now := checkpoints(); slices.Equal(now, before) {
			return fmt.Errorf("there are %v, as before", now)
		}
		return nil
	})
	r.reopen()
	if len(r.damages) != 1 {
		t.Errorf("after more starts reported %v, want nothing in addition", r.damages)
	}
}
