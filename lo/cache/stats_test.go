package cache

import "testing"

// TestStats asks for what the cache has not, for the same once more, for another blob that takes its place, and for a blob that does
// not exist.
func TestStats(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	first, second := u.add("app", noise(1000)), u.add("app", noise(900))
	c, s := open(t, t.TempDir(), u, 1500)
	for _, path := range []string{"/v2/app/blobs/" + string(first), "/v2/app/blobs/" + string(first), "/v2/app/blobs/" + string(second), "/v2/app/manifests/none"} {
		get(t, s, path)
	}
	s.Close() // its handlers have ended then
	want := Stats{Bytes: 900, MaxBytes: 1500, Hits: 1, Misses: 2, Failed: 1, Fetched: 1900, Evicted: 1000}
	if got := c.Stats(); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}
