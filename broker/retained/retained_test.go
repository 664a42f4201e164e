package retained

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// all returns the topics that a filter matches.
func all(t *testing.T, s *Store[string], filter string) (out []string) {
	t.Helper()
	for c := s.Find(filter); ; {
		names, done := s.Next(&c)
		if out = append(out, names...); done {
			return out
		}
		if len(names) > lookAtOnce {
			t.Fatalf("%d topics at once", len(names))
		}
	}
}

// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.2-5]: a message is kept until it is
// replaced, deleted, or its own time is up, and no day sooner.
func TestRetained(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := New[string](Limits{All: 1 << 20, PerOwner: 1 << 20})
	put := func(topic, payload string, life time.Duration) {
		expires := time.Time{}
		if life > 0 {
			expires = now.Add(life)
		}
		r.Put(Message[string]{Topic: topic, Value: payload, Size: Size(len(topic) + len(payload)), Expires: expires})
	}
	topics := func(filter string) []string {
		names := all(t, r, filter)
		slices.Sort(names)
		return names
	}
	put("a", "1", 0)
	put("a/b", "1", time.Hour)
	put("a/b", "2", 3*time.Hour) // the first one's end must not take the second
	put("a/c", "1", 2*time.Hour)
	put("$SYS/x", "1", 0)
	put("removed", "1", time.Hour)
	r.Delete("removed")
	r.Delete("never there")
	if n := len(r.due); n != 2 {
		t.Errorf("%d messages wait for their end, want those 2 that are kept", n)
	}
	if diff := cmp.Diff([]string{"a", "a/b", "a/c"}, topics("#")); diff != "" {
		t.Errorf("# matches (-want +got):\n%s", diff)
	}
	if r.Count() != 3 || r.Bytes() != 3*overhead+int64(len("a1a/b2a/c1")) {
		t.Errorf("%d messages of %d bytes", r.Count(), r.Bytes())
	}
	r.Expire(now.Add(2 * time.Hour))
	if diff := cmp.Diff([]string{"a", "a/b"}, topics("a/#")); diff != "" {
		t.Errorf("after two hours (-want +got):\n%s", diff)
	}
	r.Expire(now.Add(1000 * 24 * time.Hour))
	if diff := cmp.Diff([]string{"a"}, topics("+")); diff != "" {
		t.Errorf("after years (-want +got):\n%s", diff)
	}
	if m, ok := r.Get("a"); m != "1" || !ok {
		t.Errorf("a is %q, %v", m, ok)
	}
	if _, ok := r.Get("a/b"); ok || len(r.due) != 0 {
		t.Error("want a and nothing else")
	}
	put("late", "1", time.Nanosecond) // over, and not swept yet
	if m, ok := r.Get("late"); m != "" || ok || all(t, r, "late") != nil {
		t.Errorf("after its time: %q, %v", m, ok)
	}
}

// A cursor returns each topic that stays once, whatever is put and deleted meanwhile,
// and none that came after it was made.
func TestCursorAndChange(t *testing.T) {
	t.Parallel()
	r := New[string](Limits{})
	put := func(topic string) { r.Put(Message[string]{Topic: topic, Value: "x"}) }
	const n = 4 * lookAtOnce
	for i := range n {
		put(fmt.Sprint("t/", i))
	}
	seen := map[string]int{}
	round := 0
	for c := r.Find("t/+"); ; round++ {
		names, done := r.Next(&c)
		for _, name := range names {
			seen[name]++
		}
		if done {
			break
		}
		for i := range n {
			switch i % 3 {
			case 0:
				r.Delete(fmt.Sprint("t/", i)) // with round, order is packed
			case 1:
				put(fmt.Sprint("t/", i)) // replaced
			}
		}
		put(fmt.Sprint("t/new", round))
	}
	for i := range n {
		if c := seen[fmt.Sprint("t/", i)]; c != 1 && i%3 != 0 || c > 1 {
			t.Fatalf("t/%d was returned %d times", i, c)
		}
	}
	early := r.Find("t/one")
	put("t/one")
	if names, done := r.Next(&early); len(names) > 0 || !done {
		t.Errorf("%v was returned, which came after the cursor was made", names)
	}
	if seen["t/new0"] > 0 {
		t.Error("a topic that came later was returned")
	}
	if len(r.byAge) > n+100 || r.removed > len(r.byAge)/2+64 {
		t.Errorf("%d places, %d of them empty, for %d topics", len(r.byAge), r.removed, len(r.byTopic))
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := New[string](Limits{All: 3 * Size(10), PerOwner: 2 * Size(10)})
	put := func(topic, owner string) bool {
		ok, _ := r.Reserve(topic, owner, Size(10))
		if ok {
			r.Put(Message[string]{Topic: topic, Owner: owner, Size: Size(10)})
			r.Release(owner, Size(10))
		}
		return ok
	}
	for i, step := range []struct {
		topic, owner string
		ok           bool
	}{
		{"1", "a", true},
		{"2", "a", true},
		{"3", "a", false}, // its limit
		{"1", "a", true},  // in the place of its own
		{"3", "b", true},
		{"4", "b", false}, // the limit of all
		{"2", "b", true},  // in the place of another's
		{"4", "a", false}, // the limit of all
		{"5", "", true},   // the broker's own
		{"6", "", true},   // which takes no room of clients:
		{"1", "a", true},  // one of theirs is still replaced
	} {
		if got := put(step.topic, step.owner); got != step.ok {
			t.Errorf("step %d: %s by %q: %v, want %v", i, step.topic, step.owner, got, step.ok)
		}
	}
	for _, topic := range []string{"1", "2", "3", "5", "6"} {
		r.Delete(topic)
	}
	if r.Bytes() != 0 || r.clients != 0 || len(r.owners) != 0 {
		t.Errorf("%d bytes, %d of clients, owners %v after all is deleted", r.Bytes(), r.clients, r.owners)
	}
}
