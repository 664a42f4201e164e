package retained

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.2-5]: a message is kept until it is
// replaced, deleted, or its own time is up, and no day sooner.
func TestRetained(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := New[string]()
	put := func(topic, payload string, life time.Duration) {
		expires := time.Time{}
		if life > 0 {
			expires = now.Add(life)
		}
		r.Put(topic, payload, len(payload), expires)
	}
	topics := func(filter string) []string {
		names := r.Match(filter)
		slices.Sort(names)
		return names
	}
	put("a", "1", 0)
	put("a/b", "1", time.Hour)
	put("a/b", "2", 3*time.Hour) // the first one's end must not take the second
	put("a/c", "1", 2*time.Hour)
	put("$SYS/x", "1", 0)
	put("gone", "1", time.Hour)
	r.Delete("gone")
	r.Delete("never there")
	if n := len(r.due); n != 2 {
		t.Errorf("%d messages wait for their end, want those 2 that are kept", n)
	}
	if diff := cmp.Diff([]string{"a", "a/b", "a/c"}, topics("#")); diff != "" {
		t.Errorf("# matches (-want +got):\n%s", diff)
	}
	if r.Count() != 3 || r.Bytes() != int64(len("a1a/b2a/c1$SYS/x1")) {
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
	if m, ok := r.Get("late"); m != "" || ok || r.Match("late") != nil {
		t.Errorf("after its time: %q, %v", m, ok)
	}
}
