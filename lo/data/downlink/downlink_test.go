package downlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/stream/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is what the Downlink works with, as a test watches it.
type site struct {
	t   *testing.T
	dir string
	d   *Downlink

	mu       sync.Mutex
	got      []string
	seqs     []uint64 // of what was published
	expiry   []time.Duration
	retained map[string]string // by stream and topic
	fault    error             // of the next publish
	acks     chan protocol.Ack
	stop     func()
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), retained: map[string]string{}, acks: make(chan protocol.Ack, 100)}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *site) start() {
	s.t.Helper()
	var err error
	s.d, err = Open(Options{
		Dir: filepath.Join(s.dir, "down"), Site: "plant", Publish: s.publish, Retained: s,
		Ack: func(_ context.Context, payload []byte) error {
			var a protocol.Ack
			if err := protocol.Unmarshal(payload, &a); err != nil {
				s.t.Error(err)
			}
			s.acks <- a
			return nil
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	d := s.d
	go func() {
		defer close(done)
		_ = d.Run(ctx)
	}()
	s.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := d.Close(); err != nil {
			s.t.Error(err)
		}
	})
}

// restart is a new process on the same directory.
func (s *site) restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

func (s *site) publish(_ context.Context, m Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fault; err != nil {
		s.fault = nil
		return err
	}
	s.got = append(s.got, fmt.Sprintf("%d:%s=%s", m.Seq, m.Topic, m.Payload))
	s.seqs = append(s.seqs, m.Seq)
	s.expiry = append(s.expiry, m.Expiry)
	return nil
}

func (s *site) Put(_ context.Context, stream string, list []Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(list, func(m Delivery) bool { return m.Topic == refusedTopic }) {
		return protocol.Errorf(protocol.Invalid, "too large")
	}
	for _, m := range list {
		if len(m.Payload) == 0 {
			delete(s.retained, stream+" "+m.Topic)
		} else {
			s.retained[stream+" "+m.Topic] = string(m.Payload)
		}
	}
	return nil
}

func (s *site) Sweep(_ context.Context, stream string, keep map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.retained, func(k, _ string) bool {
		topic, ok := strings.CutPrefix(k, stream+" ")
		return ok && !keep[topic]
	})
	return nil
}

func (s *site) topics() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(s.retained)), ", ")
}

// batchOf builds a batch of the stream of the rule set.
func batchOf(epoch string, first, trimmed uint64, events ...protocol.Event) protocol.Batch {
	b := protocol.Batch{V: 1, Epoch: epoch, First: first, Trimmed: trimmed, Count: uint32(len(events)), Stream: protocol.DataStream("set"), SentMillis: 10_000}
	for _, e := range events {
		b.Events = append(b.Events, protocol.Marshal(&e)...)
	}
	return b
}

func data(topic, payload string, retain bool) protocol.Event {
	m := protocol.DataMessage{V: 1, Topic: topic, Payload: []byte(payload), QoS: 1, Retain: retain}
	return protocol.Event{UnixMillis: 4_000, Kind: protocol.DataEvent, Body: protocol.Marshal(&m)}
}

func mark(kind protocol.EventKind) protocol.Event {
	return protocol.Event{UnixMillis: 4_000, Kind: kind}
}

// send offers a batch and returns the answer.
func (s *site) send(b protocol.Batch) protocol.Ack {
	s.t.Helper()
	s.d.Offer(protocol.Marshal(&b))
	select {
	case a := <-s.acks:
		return a
	case <-time.After(time.Minute):
		s.t.Fatal("no ack")
		return protocol.Ack{}
	}
}

func (s *site) wantPosition(a protocol.Ack, epoch string, seq uint64) {
	s.t.Helper()
	want := protocol.Ack{V: protocol.Version, Epoch: epoch, Seq: seq, Stream: protocol.DataStream("set")}
	if diff := cmp.Diff(want, a); diff != "" {
		s.t.Errorf("ack (-want +got):\n%s", diff)
	}
}

func (s *site) wantGot(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.got); diff != "" {
		s.t.Errorf("published (-want +got):\n%s", diff)
	}
	s.got, s.expiry = nil, nil
}

func TestPositions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.wantPosition(s.send(batchOf("", 0, 0)), "", 0)
	s.wantPosition(s.send(batchOf("e", 5, 2, data("a", "x", false))), "", 0) // not the beginning
	s.wantPosition(s.send(batchOf("e", 3, 2, data("a", "3", false), data("b", "4", false))), "e", 4)
	s.wantPosition(s.send(batchOf("e", 3, 2, data("a", "3", false), data("b", "4", false), data("c", "5", false))), "e", 5)
	s.wantPosition(s.send(batchOf("e", 7, 2, data("a", "7", false))), "e", 5) // 6 is missing, and comes
	s.wantPosition(s.send(batchOf("e", 9, 8, data("a", "9", false))), "e", 9) // 6 to 8 never will
	s.restart()
	s.wantPosition(s.send(batchOf("e", 9, 8, data("a", "9", false))), "e", 9)
	s.wantPosition(s.send(batchOf("f", 4, 2, data("a", "x", false))), "e", 9)
	s.wantPosition(s.send(batchOf("f", 1, 0, data("a", "1", false))), "f", 1)
	s.wantGot("3:a=3", "4:b=4", "5:c=5", "9:a=9", "1:a=1")
}

// TestStreamContract plays the arrivals that every receiver of a stream must pass.
func TestStreamContract(t *testing.T) {
	t.Parallel()
	for _, c := range streamtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c.Play(t, streamtest.Receiver{
				Restart: func(*testing.T) { s.restart() },
				Receive: func(t *testing.T, b protocol.Batch, n int) (protocol.Ack, []uint64) {
					events := make([]protocol.Event, n)
					for i := range events {
						events[i] = data("a", "x", false)
					}
					b.Stream, b.SentMillis, b.Events = protocol.DataStream("set"), 10_000, stream.Sequence(events)
					if len(b.Epoch) > stream.MaxEpoch { // refused without an answer
						s.d.Offer(protocol.Marshal(&b))
						b = protocol.Batch{V: protocol.Version, Stream: b.Stream}
					}
					ack := s.send(b)
					s.mu.Lock()
					defer s.mu.Unlock()
					got := s.seqs
					s.seqs = nil
					return ack, got
				},
			})
		})
	}
}

// TestItemThatIsNoEvent sends one among messages: it must not hold them up.
func TestItemThatIsNoEvent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := batchOf("e", 1, 0, data("a", "1", false))
	b.Events = append(append(b.Events, protocol.Marshal("no event")...), stream.Sequence([]protocol.Event{data("a", "3", false)})...)
	b.Count = 3
	s.wantPosition(s.send(b), "e", 3)
	s.wantGot("1:a=1", "3:a=3")
}

// TestPositionsOfBefore opens a file of before release 0.1.0: it is not read, and
// what the site retains of other streams stays.
func TestPositionsOfBefore(t *testing.T) {
	t.Parallel()
	p, err := openPositions(disk.OS, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close() //nolint:errcheck // of the test
	var old position
	if err := json.Unmarshal([]byte(`{"lane":"data/a","epoch":"e","seq":7}`), &old); err != nil {
		t.Fatal(err)
	}
	p.note(old)
	if len(p.all) != 0 {
		t.Errorf("positions %v, want none", p.all)
	}
}

// TestNotPublished has the broker refuse a message: the batch comes again.
func TestNotPublished(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fault = errors.New("busy")
	b := batchOf("e", 1, 0, data("a", "1", false))
	s.d.Offer(protocol.Marshal(&b)) // no answer
	s.wantPosition(s.send(batchOf("", 0, 0)), "", 0)
	s.wantPosition(s.send(b), "e", 1)
	s.wantGot("1:a=1")
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	message := func(life uint64) protocol.Event {
		m := protocol.DataMessage{V: 1, Topic: "a", Payload: []byte{'0'}, ExpiryMillis: life}
		return protocol.Event{UnixMillis: 4_000, Kind: protocol.DataEvent, Body: protocol.Marshal(&m)}
	}
	// It was sent 6 s after it came.
	s.wantPosition(s.send(batchOf("e", 1, 0, message(0), message(7_000), message(6_000), mark(protocol.DataExpired), message(1<<63))), "e", 5)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.expiry) != 3 {
		t.Fatalf("%d messages are published, %v, want 3", len(s.expiry), s.got)
	}
	if s.expiry[0] != 0 {
		t.Errorf("the message without an expiry has %v", s.expiry[0])
	}
	if s.expiry[1] != time.Second {
		t.Errorf("of 7 s, 6 s after it came, %v are left, want 1 s", s.expiry[1])
	}
	if s.expiry[2] < 1000*time.Hour {
		t.Errorf("of the longest expiry %v are left, want nearly for ever", s.expiry[2])
	}
}

func TestRetainedResync(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	begin, end := mark(protocol.RetainedBegin), mark(protocol.RetainedEnd)
	s.send(batchOf("e", 1, 0, data("a", "1", true), data("b", "1", true), data("c", "1", true), data("d", "1", false)))
	s.send(batchOf("e", 5, 0, data("c", "", true)))
	if got := s.topics(); got != "data/set a, data/set b" {
		t.Errorf("retained: %s", got)
	}
	s.send(batchOf("e", 6, 0, begin, data("b", "2", true)))
	s.send(batchOf("e", 8, 0, data("f", "1", true), data("f", "", true), end, data("g", "1", true)))
	if got := s.topics(); got != "data/set b, data/set g" {
		t.Errorf("retained after a sweep: %s", got)
	}
	// A restart between the marks: nothing is swept by half, the stream begins anew.
	s.send(batchOf("e", 12, 0, begin, data("b", "3", true)))
	s.restart()
	s.wantPosition(s.send(batchOf("e", 14, 13, end)), "e", 14)
	if got := s.topics(); got != "data/set b, data/set g" {
		t.Errorf("retained after an end without a begin: %s", got)
	}
	s.send(batchOf("e", 15, 14, begin))
	s.restart()
	s.wantPosition(s.send(batchOf("", 0, 0)), "", 0)
	// A gap between the marks: what it named is not known.
	s.send(batchOf("e", 16, 15, begin, data("b", "4", true)))
	s.send(batchOf("e", 20, 19, end))
	if got := s.topics(); got != "data/set b, data/set g" {
		t.Errorf("retained after a gap between the marks: %s", got)
	}
}

func TestRuleRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rules := []protocol.DataRule{{Name: "set", Down: true}, {Name: "other", Down: true}}
	s.d.SetRules(rules)
	s.send(batchOf("e", 1, 0, data("a", "1", true)))
	s.d.SetRules(rules[1:])
	deadline := time.After(time.Minute)
	for s.topics() != "" {
		select {
		case <-deadline:
			t.Fatalf("still retained: %s", s.topics())
		case <-time.After(time.Millisecond):
		}
	}
	s.restart()
	s.wantPosition(s.send(batchOf("", 0, 0)), "", 0)
}

// TestHostile sends what no CO sends.
func TestHostile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, topic := range []string{"", "$SYS/x", "a/#", "a/+/b", "a\x00", "colony", "colony/v1/plant/node/gw/desired", "colony/v1/other/data/x"} {
		s.send(batchOf("e", 1, 0, data(topic, "x", true)))
		s.wantPosition(s.send(batchOf("e2", 1, 0, data(topic, "x", true))), "e2", 1)
	}
	s.send(batchOf("f", 1, 0, data("colony/v1/plant/data/x", "1", false), protocol.Event{Kind: protocol.DataEvent, Body: []byte{0x01}}, data("colonyx/a", "2", false)))
	s.wantGot("1:colony/v1/plant/data/x=1", "3:colonyx/a=2")
	for _, b := range []protocol.Batch{
		{V: 1, Epoch: "f", First: 4, Count: 1 << 31, Events: []byte{1}, Stream: "data/set"},
		{V: 1, Epoch: "f", First: 4, Count: 1, Events: []byte{1}, Encoding: "zstd", Stream: "data/set"},
		{V: 1, Epoch: "f", First: 4, Count: 1, Events: []byte{1}, Encoding: "lzma", Stream: "data/set"},
		{V: 1, Epoch: "f", First: 4, Count: 1, Events: protocol.Marshal(&protocol.Event{Kind: "x"})},
		{V: 2, Epoch: "f", First: 4, Count: 1},
	} {
		s.d.Offer(protocol.Marshal(&b))
	}
	s.d.Offer([]byte("no batch"))
	s.wantPosition(s.send(batchOf("", 0, 0)), "f", 3)
	if s.topics() != "" {
		t.Errorf("retained: %s", s.topics())
	}
}

func TestCompressed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := batchOf("e", 1, 0, data("a", strings.Repeat("x", 1000), false))
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b.Events, b.Encoding = w.EncodeAll(b.Events, nil), "zstd"
	s.wantPosition(s.send(b), "e", 1)
	s.wantGot("1:a=" + strings.Repeat("x", 1000))
}

// TestTornPositions cuts the file of positions at each length: what is left is a
// position that was once saved, or none.
func TestTornPositions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := openPositions(disk.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(4) {
		if err := p.save(position{Stream: "data/a", Position: stream.Position{Epoch: "e", Seq: seq}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "positions"))
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for n := range len(whole) + 1 {
		if err := os.WriteFile(filepath.Join(dir, "positions"), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		q, err := openPositions(disk.OS, dir)
		if err != nil {
			t.Fatal(err)
		}
		at, ok := q.all["data/a"]
		if at.Seq < last || ok && at.Epoch != "e" {
			t.Fatalf("%d of %d bytes: %+v, and with less it was %d", n, len(whole), at, last)
		}
		last = at.Seq
		if err := q.save(position{Stream: "data/b", Position: stream.Position{Epoch: "e", Seq: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := q.close(); err != nil {
			t.Fatal(err)
		}
		r, err := openPositions(disk.OS, dir)
		if err != nil {
			t.Fatal(err)
		}
		if !cmp.Equal(r.all["data/a"], at) || r.all["data/b"].Seq != 1 {
			t.Fatalf("%d bytes: what was saved after a torn record is lost: %+v", n, r.all)
		}
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
	}
	if last != 3 {
		t.Errorf("the whole file says %d, want 3", last)
	}
}

// TestDamagedPositions flips each bit of the file of positions: what is left is the
// last position that was saved, or none; an older one never counts as the last.
func TestDamagedPositions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := openPositions(disk.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(3) {
		if err := p.save(position{Stream: "data/a", Position: stream.Position{Epoch: "e", Seq: seq}}); err != nil {
			t.Fatal(err)
		}
	}
	records := int(p.log.Size()) // the seal follows, which holds no position
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "positions")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		q, err := openPositions(disk.OS, dir)
		if err != nil {
			t.Fatalf("bit %d: %v", bit, err)
		}
		if at, ok := q.all["data/a"]; ok && !cmp.Equal(at, position{Stream: "data/a", Position: stream.Position{Epoch: "e", Seq: 2}}) || q.damage == nil && bit/8 < records {
			t.Fatalf("bit %d: position %+v, damage %v", bit, at, q.damage)
		}
		if err := q.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPositionsStaySmall saves more than the file may hold.
func TestPositionsStaySmall(t *testing.T) {
	t.Parallel()
	p, err := openPositions(disk.OS, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close() //nolint:errcheck // of the test
	name := strings.Repeat("x", maxRecord/2)
	for seq := range uint64(3 * rewriteAt / maxRecord) {
		if err := p.save(position{Stream: name, Position: stream.Position{Epoch: "e", Seq: seq}}); err != nil {
			t.Fatal(err)
		}
	}
	if size := p.log.Size(); size > rewriteAt+maxRecord {
		t.Errorf("%d bytes", size)
	}
}

func BenchmarkSave(b *testing.B) {
	p, err := openPositions(disk.OS, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer p.close() //nolint:errcheck // of the benchmark
	for i := range b.N {
		if err := p.save(position{Stream: "data/a", Position: stream.Position{Epoch: "9b7f3c2e-2f5f-4d6c-9a55-0c4f0a1d2b3c", Seq: uint64(i)}}); err != nil {
			b.Fatal(err)
		}
	}
}
