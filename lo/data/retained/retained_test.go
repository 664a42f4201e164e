package retained

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(t testing.TB, s *Store, m ...Message) uint64 {
	t.Helper()
	ref, err := s.Put(m...)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func message(topic, payload string) Message {
	return Message{Topic: topic, Data: protocol.DataMessage{V: protocol.Version, Payload: []byte(payload), Retain: true}}
}

// content is what a store holds, as text.
func content(s *Store) map[string]string {
	out := map[string]string{}
	for _, m := range s.All() {
		out[m.Topic] = string(m.Data.Payload)
	}
	return out
}

func TestKeepsTheLast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Options{})
	full := Message{
		Topic: "a", Stream: "down/x", UnixMillis: 7, Node: "n1",
		Data: protocol.DataMessage{
			V: protocol.Version, Payload: []byte("p"), QoS: 2, Retain: true, ContentType: "t", ResponseTopic: "r",
			CorrelationData: []byte{1}, Properties: []string{"k", "1", "k", "2"},
		},
	}
	put(t, s, message("a", "old"), message("b", "1"), message("c", "1"))
	put(t, s, full)
	put(t, s, message("c", ""), message("never", ""))
	for range 2 {
		got := s.All()
		if len(got) != 2 || s.Stats().Topics != 2 {
			t.Fatalf("%d topics, stats %+v", len(got), s.Stats())
		}
		if diff := cmp.Diff(full, got[0]); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
		if l := s.Stream("down/x"); len(l) != 1 || l[0].Topic != "a" {
			t.Errorf("messages of the stream = %+v", l)
		}
		if _, ok := s.Get("c"); ok {
			t.Error("c is there after its deletion")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir, Options{})
	}
}

// Wherever a crash cuts the file, what was complete before is there.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Options{})
	states := []map[string]string{{}}
	ends := []int64{s.Stats().FileBytes}
	for i := range 12 {
		payload := fmt.Sprint(i)
		if i%5 == 4 {
			payload = ""
		}
		put(t, s, message(fmt.Sprintf("t%d", i%3), payload))
		states, ends = append(states, content(s)), append(ends, s.Stats().FileBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for n := ends[0]; n <= int64(len(whole)); n++ {
		if at+1 < len(ends) && n == ends[at+1] {
			at++
		}
		cut := t.TempDir()
		if err := os.WriteFile(filepath.Join(cut, fileName), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, cut, Options{})
		if diff := cmp.Diff(states[at], content(s)); diff != "" {
			t.Fatalf("cut after %d bytes (-want +got):\n%s", n, diff)
		}
		put(t, s, message("next", "x"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got := content(open(t, cut, Options{})); got["next"] != "x" || len(got) != len(states[at])+1 {
			t.Fatalf("after a cut at %d and a write: %v", n, got)
		}
	}
}

// damagedStore returns the bytes of a store with deletions and former values in its
// history, how many of them are records and not the seal, and what it holds.
func damagedStore(t *testing.T, dir string) (whole []byte, records int64, want map[string]string) {
	t.Helper()
	s := open(t, dir, Options{})
	for _, m := range []Message{
		message("a", "1"), message("b", "1"), message("c", "1"), message("b", "2"), message("a", ""), message("d", "1"), message("c", ""), message("e", "1"),
	} {
		put(t, s, m)
	}
	want = content(s)
	records = s.Stats().FileBytes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return whole, records, want
}

// TestDamage flips each bit, and damages the file at random: no deleted message and
// no previous value comes back, what is missing is reported, and the store opens.
func TestDamage(t *testing.T) {
	t.Parallel()
	whole, records, want := damagedStore(t, t.TempDir())
	dirs := make(chan string, 16) // each check waits for the disk
	for range cap(dirs) {
		dirs <- t.TempDir()
	}
	var wg sync.WaitGroup
	check := func(what string, b []byte, least int) {
		dir := <-dirs
		wg.Go(func() {
			checkDamaged(t, dir, b, want, damaged{what, least})
			dirs <- dir
		})
	}
	last := int(records) - recordBytes - len(protocol.Marshal(message("e", "1")))
	for bit := range 8 * records {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		least := len(want) - 1
		if int(bit/8) >= last {
			least = 0 // nothing behind it says which topic is lost
		}
		check(fmt.Sprintf("bit %d", bit), b, least)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		b := slices.Clone(whole)
		for range 1 + rng.IntN(3) {
			at := rng.IntN(last)
			clear(b[at:min(at+1+rng.IntN(64), last)])
		}
		if !slices.Equal(b, whole) {
			check(fmt.Sprintf("zeros %d", i), b, 0)
		}
	}
	check("something else", []byte("something else"), 0)
	check("empty", nil, 0)
	other := t.TempDir()
	o := open(t, other, Options{Identity: statefile.Identity{Role: "lo/samples", Name: "r"}})
	put(t, o, message("b", "other"))
	b, err := os.ReadFile(filepath.Join(other, fileName))
	if err != nil {
		t.Fatal(err)
	}
	check("swapped", b, 0)
	wg.Wait()
}

// damaged says what was done to a store, and how many topics must be left.
type damaged struct {
	what  string
	least int
}

// checkDamaged opens a store whose file is b.
func checkDamaged(t *testing.T, dir string, b []byte, want map[string]string, d damaged) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fileName), b, 0o600); err != nil {
		t.Error(err)
		return
	}
	s, err := Open(dir, Options{})
	if err != nil {
		t.Errorf("%s: %v", d.what, err)
		return
	}
	got := content(s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for topic, payload := range got {
		if want[topic] != payload {
			t.Errorf("%s: %s is %q, it was %q", d.what, topic, payload, want[topic])
		}
	}
	if s.Damage() == nil || !s.Lost() || len(got) < d.least {
		t.Errorf("%s: %d of %d topics, damage %v", d.what, len(got), len(want), s.Damage())
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1000)
	s := open(t, t.TempDir(), Options{MaxTopics: 2, MaxBytes: 300, Now: func() time.Time { return now }})
	short := message("a", "1")
	short.UnixMillis, short.Data.ExpiryMillis = 1000, 500
	put(t, s, short, message("b", "1"))
	refused := func(what string, m ...Message) {
		t.Helper()
		before := content(s)
		_, err := s.Put(m...)
		if protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "the limits are 2 topics and 300 bytes") {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(before, content(s)); diff != "" {
			t.Errorf("%s changed the store (-want +got):\n%s", what, diff)
		}
	}
	refused("third topic", message("c", "1"))
	refused("too many bytes", message("b", strings.Repeat("x", 300)))
	put(t, s, message("b", "2"))                   // replaces another
	put(t, s, message("b", ""), message("d", "1")) // makes room for itself
	put(t, s, message("nothing", ""))              // a deletion always fits
	now = time.UnixMilli(1500)                     // a is over
	put(t, s, message("e", "1"))
	if diff := cmp.Diff(map[string]string{"d": "1", "e": "1"}, content(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(10_000)
	dir := t.TempDir()
	clock := Options{Now: func() time.Time { return now }}
	s := open(t, dir, clock)
	m := message("a", "1")
	m.UnixMillis, m.Data.ExpiryMillis = 9_000, 3_000
	put(t, s, m, message("b", "1"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, clock)
	if left, ok := m.ExpiresIn(now); !ok || left != 2*time.Second {
		t.Errorf("%v left, %v", left, ok)
	}
	now = time.UnixMilli(5_000) // set back: nothing becomes younger than new
	if left, ok := m.ExpiresIn(now); !ok || left != 3*time.Second {
		t.Errorf("%v left, %v after the clock was set back", left, ok)
	}
	now = time.UnixMilli(12_000)
	if diff := cmp.Diff(map[string]string{"b": "1"}, content(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := s.Get("a"); ok {
		t.Error("a is there though its time is up")
	}
}

func TestDrop(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	first := put(t, s, message("a", "1"))
	second := put(t, s, message("a", "2"))
	for _, tt := range []struct {
		ref  uint64
		want map[string]string
	}{{first, map[string]string{"a": "2"}}, {second, map[string]string{}}, {second, map[string]string{}}} {
		if err := s.Drop("a", tt.ref); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, content(s)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// The file stays in proportion to what is in it, and a reader of the directory
// finds at any time what was written last.
func TestHistoryIsRewritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Options{})
	want := map[string]string{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 300 {
				topic := fmt.Sprintf("w%d/%d", w, rng.IntN(5))
				payload := strings.Repeat("x", rng.IntN(4000)) + fmt.Sprint(i)
				if _, err := s.Put(message(topic, payload)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				want[topic] = payload
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.FileBytes > slack+2*(st.Bytes+64*int64(st.Topics))+8192 {
		t.Errorf("stats %+v: the history is not rewritten", st)
	}
	if diff := cmp.Diff(want, content(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, content(open(t, dir, Options{}))); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	if _, err := s.Put(message("a", "1")); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("put after close: %v", err)
	}
}

func BenchmarkPut(b *testing.B) {
	s := open(b, b.TempDir(), Options{})
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := s.Put(message(fmt.Sprintf("t%d", i%100), "21.5")); err != nil {
				b.Error(err)
			}
		}
	})
}
