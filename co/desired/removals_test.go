package desired

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// start three deployments a, b, c at berlin and one, d, at munich.
func fourDeployments(t *testing.T) (*world, []message) {
	t.Helper()
	w := newWorld(t)
	w.store.connected["berlin"], w.store.connected["munich"] = true, true
	w.start()
	files := map[string]string{path("munich", "d"): deployment("munich", "d", "1.0.0")}
	for _, name := range []string{"a", "b", "c"} {
		files[path("berlin", name)] = deployment("berlin", name, "1.0.0")
	}
	w.commit(files)
	return w, []message{w.next("berlin"), w.next("munich")}
}

// held waits until exactly these removals are held, each written "site/deployment: cause".
func (w *world) held(want ...string) {
	w.t.Helper()
	var got []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("held: %q", got)
		}
	}()
	slices.Sort(want)
	w.until(fmt.Sprintf("held is %q", want), func() bool {
		got = w.store.holds()
		return slices.Equal(got, want)
	})
}

func because(cause proposal.Cause, names ...string) []string {
	var all []string
	for _, n := range names {
		all = append(all, n+": "+string(cause))
	}
	return all
}

// TestRemovalsAreHeld removes files in ways that are easily not meant: what runs stays, the
// rest of the commit proceeds, and the files put back end what is held.
func TestRemovalsAreHeld(t *testing.T) {
	t.Parallel()
	gone := func(names ...string) map[string]string {
		files := map[string]string{}
		for _, n := range names {
			site, name, _ := strings.Cut(n, "/")
			files[path(site, name)] = ""
		}
		return files
	}
	with := func(files map[string]string, p, content string) map[string]string {
		files[p] = content
		return files
	}
	for _, tt := range []struct {
		name    string
		files   map[string]string
		rewrite bool
		skipped string
		held    []string
	}{
		{"a folder of a site is deleted", gone("berlin/a", "berlin/b", "berlin/c"), false, "", because(proposal.Many, "berlin/a", "berlin/b", "berlin/c")},
		{
			"an empty repo is pushed by force", gone("berlin/a", "berlin/b", "berlin/c", "munich/d"), true, "",
			because(proposal.Rewritten, "berlin/a", "berlin/b", "berlin/c", "munich/d"),
		},
		{"one file is lost by a push by force", gone("munich/d"), true, "", because(proposal.Rewritten, "munich/d")},
		{"a folder of a site is renamed to a mistyped name", with(gone("munich/d"), path("muinch", "d"),
			strings.ReplaceAll(deployment("munich", "d", "1.0.0"), "deviceId: munich", "deviceId: muinch")), false, "", because(proposal.Moved, "munich/d")},
		{
			"a file gets another ending", with(gone("munich/d"), "deployments/munich/d/deployment.yml", deployment("munich", "d", "1.0.0")), false, "",
			because(proposal.Unreadable, "munich/d"),
		},
		{
			"a folder gets a name that is none", with(gone("munich/d"), "deployments/munich/D_/deployment.yaml", deployment("munich", "d", "1.0.0")), false, "",
			because(proposal.Unreadable, "munich/d"),
		},
		{
			"a folder is renamed, and its file is not", with(gone("munich/d"), path("munich", "dd"), deployment("munich", "d", "1.0.0")), false, "",
			because(proposal.Unreadable, "munich/d"),
		},
		{
			"a folder is moved to another site, and its file still names the former", with(gone("munich/d"), path("berlin", "d"), deployment("munich", "d", "1.0.0")),
			false, "", because(proposal.Unreadable, "munich/d"),
		},
		{"a folder becomes a symbolic link", gone("munich/d"), false, "deployments/munich", because(proposal.Unreadable, "munich/d")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, before := fourDeployments(t)
			w.set(func() {
				w.rewrite = tt.rewrite
				if tt.skipped != "" {
					w.skipped[tt.skipped] = "a symbolic link is not followed"
				}
			})
			w.commit(with(tt.files, path("berlin", "e"), deployment("berlin", "e", "1.0.0")))
			// The rest of the commit proceeds. The mistyped site sorts behind it.
			if m := w.next("berlin"); names(m) != "a b c e" {
				t.Errorf("berlin is to run %q, want a b c e", names(m))
			}
			w.held(tt.held...)
			w.set(func() { w.rewrite, w.skipped = false, map[string]string{} })

			w.stop() // what is held stays so over a restart
			for w.early = nil; len(w.published) > 0; {
				<-w.published
			}
			w.start()
			if m := w.next("berlin"); names(m) != "a b c e" {
				t.Errorf("after a restart berlin is to run %q, want a b c e", names(m))
			}
			w.until("munich is published", func() bool { return names(w.next("munich")) == "d" })
			w.commit(map[string]string{"README.md": "x"})
			w.held(tt.held...)

			back := map[string]string{path("muinch", "d"): "", path("munich", "dd"): "", path("berlin", "d"): "", "deployments/munich/d/deployment.yml": "", path("munich", "d"): deployment("munich", "d", "1.0.0")}
			for _, name := range []string{"a", "b", "c"} {
				back[path("berlin", name)] = deployment("berlin", name, "1.0.0")
			}
			w.commit(back)
			w.held()
			for _, m := range before {
				w.store.set(func() {
					got := message{SiteDesired: w.store.sites[m.site].message}
					for _, e := range m.Deployments {
						if !slices.ContainsFunc(got.Deployments, func(v protocol.SiteEntry) bool { return v.Digest == e.Digest }) {
							t.Errorf("%s/%s does not run as before", m.site, e.Deployment)
						}
					}
				})
			}
		})
	}
}

// TestRemovalIsConfirmed confirms what is held, in each of the ways that there are.
func TestRemovalIsConfirmed(t *testing.T) {
	t.Parallel()
	removeAll := map[string]string{path("berlin", "a"): "", path("berlin", "b"): "", path("berlin", "c"): ""}
	t.Run("by its id", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		commit := w.commit(removeAll)
		w.held(because(proposal.Many, "berlin/a", "berlin/b", "berlin/c")...)
		if _, err := w.store.Confirm(t.Context(), proposal.ID(proposal.Removals, commit, 0), ""); err != nil {
			t.Fatal(err)
		}
		w.loop.Notify()
		if m := w.next("berlin"); names(m) != "" {
			t.Errorf("berlin is to run %q, want nothing", names(m))
		}
		w.held()
	})
	t.Run("by a trailer of a later commit", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		commit := w.commit(removeAll)
		w.held(because(proposal.Many, "berlin/a", "berlin/b", "berlin/c")...)
		w.set(func() {
			w.confirms = []Confirmation{{Proposal: "00000000", Commit: "x", Author: "Ann"}, {Proposal: proposal.ID(proposal.Removals, commit, 0), Commit: "y", Author: "Ann"}}
		})
		w.commit(map[string]string{"README.md": "x"})
		if m := w.next("berlin"); names(m) != "" {
			t.Errorf("berlin is to run %q, want nothing", names(m))
		}
	})
	t.Run("by the commit itself", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		w.set(func() { w.trailers = []string{"Colony-Confirm: berlin/a", "Colony-Confirm: berlin/b"} })
		w.commit(removeAll)
		if m := w.next("berlin"); names(m) != "c" && names(m) != "" {
			t.Errorf("berlin is to run %q, want no a and no b", names(m))
		}
		w.held() // c is the only one that the commit does not name
	})
	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		for i, name := range []string{"a", "b", "c"} {
			w.commit(map[string]string{path("berlin", name): ""})
			if m := w.next("berlin"); len(m.Deployments) != 2-i {
				t.Errorf("berlin is to run %q after %d were removed", names(m), i+1)
			}
		}
		w.held()
	})
}

// TestSelectorThatMatchesNothing mistypes the label of a deployment that runs.
func TestSelectorThatMatchesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.set(func() {
		w.nodes["berlin"] = []placement.Node{{
			ID: "press-1", Runs: []protocol.DeploymentName{"a", "b"}, Inventory: &protocol.Inventory{Labels: map[string]string{"line": "1"}},
		}}
	})
	selecting := func(name, revision, line string) string {
		return deployment("berlin", name, revision) + "    selector: {line: \"" + line + "\"}\n"
	}
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0"), path("berlin", "b"): deployment("berlin", "b", "1.0.0")})
	first := w.next("berlin")
	w.commit(map[string]string{path("berlin", "a"): selecting("a", "2.0.0", "l"), path("berlin", "b"): selecting("b", "2.0.0", "1")})
	m := w.next("berlin")
	if d := cmp.Diff(first.Deployments[0], m.Deployments[0]); d != "" {
		t.Errorf("a, whose new placement no node matches, has changed:\n%s", d)
	}
	if m.Deployments[1].Digest == first.Deployments[1].Digest {
		t.Error("b, whose new placement matches, did not change")
	}
	w.held(because(proposal.NoNode, "berlin/a")...)
	w.quiet()

	// A node that gets the label ends it, and so does somebody who means it.
	w.set(func() { w.nodes["berlin"][0].Inventory = &protocol.Inventory{Labels: map[string]string{"line": "l"}} })
	w.loop.Notify()
	if m = w.next("berlin"); m.Deployments[0].Placement.Selector["line"] != "l" {
		t.Errorf("placement of a is %v after a node has the label", m.Deployments[0].Placement)
	}
	w.held()
	commit := w.commit(map[string]string{path("berlin", "a"): selecting("a", "2.0.0", "none")})
	w.held(because(proposal.NoNode, "berlin/a")...)
	if _, err := w.store.Confirm(t.Context(), proposal.ID(proposal.Removals, commit, 0), ""); err != nil {
		t.Fatal(err)
	}
	w.loop.Notify()
	if m = w.next("berlin"); m.Deployments[0].Placement.Selector["line"] != "none" {
		t.Errorf("placement of a is %v after it was confirmed", m.Deployments[0].Placement)
	}
}

// TestRenameIsCompleted renames a folder, whose removal is held because its file still has the
// former name, and then corrects the file: from then on the new name runs alone.
func TestRenameIsCompleted(t *testing.T) {
	t.Parallel()
	w, _ := fourDeployments(t)
	w.commit(map[string]string{path("munich", "d"): "", path("munich", "dd"): deployment("munich", "d", "1.0.0")})
	w.held(because(proposal.Unreadable, "munich/d")...)
	corrected := strings.Replace(deployment("munich", "d", "1.0.0"), "name: d\n", "name: dd\n", 1)
	w.commit(map[string]string{path("munich", "dd"): strings.Replace(corrected, "1.0.0", "none", 2)})
	w.held(because(proposal.Unreadable, "munich/d")...) // it does not compile: d goes on
	w.commit(map[string]string{path("munich", "dd"): corrected})
	w.held()
	if m := w.next("munich"); names(m) != "dd" {
		t.Errorf("munich is to run %q after the file was corrected, want dd alone", names(m))
	}
	w.quiet()
}
