package desired

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// notices returns the events that were recorded once each, as "kind: message".
func (w *world) notices() (n []string) {
	w.store.set(func() { n = slices.Sorted(slices.Values(w.store.notices)) })
	return n
}

// TestFilesInWrongPlaces pushes files that the CO does not read, and an unknown site.
func TestFilesInWrongPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.add("berlin")
	commit := w.commit(map[string]string{
		path("berlin", "x"): deployment("berlin", "x", "1.0.0"), path("berln", "y"): deployment("berln", "y", "1.0.0"),
		"loose.yaml": "a: 1\n", path("Berlin", "z"): deployment("berlin", "z", "1.0.0"),
	})[:12]
	w.start()
	w.next("berlin")
	w.next("berln")
	want := []string{
		"file_ignored: deployments/Berlin/z/deployment.yaml at commit " + commit + " is ignored: site name \"Berlin\": want",
		"file_ignored: loose.yaml at commit " + commit + " is ignored: the CO reads",
		"site_added: the deployments repo has files for site berln",
	}
	got := w.notices()
	if len(got) != len(want) {
		t.Fatalf("notices %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("notice %q, want %q", got[i], want[i])
		}
	}
	w.quiet()
	if again := w.notices(); len(again) != len(want) {
		t.Errorf("after more reconciles: %q", again)
	}
}

// TestUnreachableRegistryIsShown deploys from a registry that is away, at a site that
// runs something and at a new one: both say so before the registry is back.
func TestUnreachableRegistryIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit(map[string]string{path("berlin", "x"): deployment("berlin", "x", "1.0.0")})
	w.start()
	w.next("berlin")
	away := protocol.Errorf(protocol.Unavailable, "read image: connection refused")
	w.set(func() { w.imageErr["2.0.0"] = away })
	w.commit(map[string]string{path("berlin", "x"): deployment("berlin", "x", "2.0.0"), path("munich", "y"): deployment("munich", "y", "2.0.0")})
	w.until("both are shown", func() bool {
		p, n := w.problems(), w.notices()
		return len(p) == 1 && strings.Contains(p[0], "waits, and is tried again: ") && strings.Contains(p[0], "connection refused") &&
			slices.ContainsFunc(n, func(s string) bool {
				return strings.HasPrefix(s, "deployment_waiting: deployments/munich/y/deployment.yaml at commit")
			})
	})
	w.set(func() { delete(w.imageErr, "2.0.0") })
	w.until("the problem is cleared", func() bool {
		cleared := false
		w.store.set(func() {
			d := w.store.sites["berlin"].desired
			cleared = len(d) == 1 && d[0].Problem == "" && d[0].AppVersion == "2.0.0"
		})
		return cleared
	})
	if p := w.problems(); len(p) != 1 {
		t.Errorf("problems %q: one is reported once", p)
	}
}
