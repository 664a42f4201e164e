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

	// A node that gets the label ends it, and so does a person that confirms it.
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

// TestABranchThatIsSetBack has the branch back at a commit that removed a file, which is older than what runs: what that commit said of the removal, and
// of volumes, explains nothing, also after a restart.
func TestABranchThatIsSetBack(t *testing.T) {
	t.Parallel()
	w, _ := fourDeployments(t)
	w.set(func() { w.trailers = []string{"Colony-Confirm: munich/d", "Colony-Remove-Volumes: munich/d"} })
	w.commit(map[string]string{path("munich", "d"): ""})
	w.until("it is removed", func() bool { return names(w.next("munich")) == "" })
	removed := Removal{Commit: hash(w.head), Trailers: w.trailers}
	w.set(func() { w.trailers = nil })
	w.commit(map[string]string{path("munich", "d"): deployment("munich", "d", "1.0.0")})
	w.until("it is deployed again", func() bool { return names(w.next("munich")) == "d" })
	w.set(func() { w.rewrite = true })
	w.commit(map[string]string{path("munich", "d"): ""})
	w.set(func() { w.removed[path("munich", "d")] = removed })
	w.held(because(proposal.Rewritten, "munich/d")...)
	w.stop()
	for w.early = nil; len(w.published) > 0; {
		<-w.published
	}
	w.start()
	w.until("munich is published", func() bool { return names(w.next("munich")) == "d" })
	w.held(because(proposal.Rewritten, "munich/d")...)
}

// TestWhatExplainsARemoval has commits of a branch that was merged, of before what runs, and of another history.
func TestWhatExplainsARemoval(t *testing.T) {
	t.Parallel()
	asked := 0
	r := removals{
		byPath: map[string]Removal{"a": {Commit: "c3"}, "old": {Commit: "c1"}},
		age:    map[string]int{"c4": 0, "c3": 1, "c2": 2, "c1": 3},
		before: map[string]map[string]bool{},
		ancestors: func(commit string) ([]string, error) {
			asked++
			return map[string][]string{"c3": {"c3", "merged", "c2", "c1"}, "c1": {"c1"}}[commit], nil
		},
	}
	for _, c := range []struct {
		path, known string
		want        bool
	}{
		{"a", "c2", true},
		{"a", "c1", true},
		{"a", "c3", false},
		{"a", "c4", false},
		{"a", "merged", true},
		{"a", "rewritten", false},
		{"a", "", false},
		{"old", "c2", false},
		{"old", "merged", false},
		{"none", "c1", false},
	} {
		if _, found, err := r.of(c.path, c.known); err != nil || found != c.want {
			t.Errorf("%s, of which %q is known: explained %t, %v; want %t", c.path, c.known, found, err, c.want)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times for what commits follow, want once for each", asked)
	}
	for _, c := range []struct {
		changed, known string
		want           proposal.Cause
	}{{"c3", "c2", ""}, {"c3", "c3", ""}, {"c1", "c2", proposal.Rewritten}, {"c3", "rewritten", proposal.Rewritten}} {
		got := proposal.Removal{Site: "berlin", Deployment: "a"}
		if err := new(Loop).explainOrigin(&got, "fleet/a/deployment.yaml", c.known, Snapshot{Commits: map[string]string{"fleet/a/deployment.yaml": c.changed}}, r); err != nil || got.Cause != c.want {
			t.Errorf("a fleet file of %s, what runs of %s: %q, %v; want %q", c.changed, c.known, got.Cause, err, c.want)
		}
	}
}

// TestProposalsDoNotGrow pushes by force the commit once more of which removals are held, after other deployments have come: their removal is
// another proposal, since a person may have seen what the first one does.
func TestProposalsDoNotGrow(t *testing.T) {
	t.Parallel()
	w, _ := fourDeployments(t)
	w.commit(map[string]string{path("berlin", "a"): "", path("berlin", "b"): ""})
	w.held(because(proposal.Many, "berlin/a", "berlin/b")...)
	first := w.store.proposalOf("berlin", "a")
	w.commit(map[string]string{path("munich", "e"): deployment("munich", "e", "1.0.0")})
	if m := w.next("munich"); names(m) != "d e" {
		t.Fatalf("munich is to run %q, want d e", names(m))
	}
	w.set(func() { // back to the commit before
		w.head -= 2
		w.rewrite = true
	})
	w.commit(map[string]string{path("munich", "e"): ""})
	w.held(append(because(proposal.Many, "berlin/a", "berlin/b"), because(proposal.Rewritten, "munich/e")...)...)
	a, b, e := w.store.proposalOf("berlin", "a"), w.store.proposalOf("berlin", "b"), w.store.proposalOf("munich", "e")
	if a != first || b != first || e == first || e == "" {
		t.Errorf("the proposal of a and b was %q; now that of a is %q, of b %q, of e %q; want only that of e to be another", first, a, b, e)
	}
}

// TestRemovalsOfAFleetAreHeld renames the file of a fleet deployment so that the CO does not read it, or refuses it: what runs stays. Its plain
// removal is obeyed.
func TestRemovalsOfAFleetAreHeld(t *testing.T) {
	t.Parallel()
	file := func(name string) string { return "fleet/" + name + "/deployment.yaml" }
	const content = "apiVersion: colony/v1\nkind: FleetDeployment\nmetadata: {name: f, id: 6b1f3f3e-3b1e-4b7e-9a4e-0f6f0a1b2c3d}\n" +
		"spec:\n  application: {id: com.example.hello, version: 1.0.0}\n  targets: {sites: [\"*\"]}\n"
	for _, tt := range []struct {
		name, left, content string
		held                []string
	}{
		{"its folder gets a name that is none", file("F"), content, because(proposal.Unreadable, "munich/f")},
		{"its folder is renamed, and its file is not", file("ff"), content, because(proposal.Unreadable, "munich/f")},
		{"its file gets another ending", "fleet/f/deployment.yml", content, because(proposal.Unreadable, "munich/f")},
		{"it is renamed", file("g"), strings.Replace(content, "name: f,", "name: g,", 1), nil},
		{"it is removed", "fleet/README.md", "none", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := fourDeployments(t)
			w.set(func() { w.origins = map[string]string{path("munich", "f"): file("f")} })
			w.commit(map[string]string{file("f"): content})
			if m := w.next("munich"); names(m) != "d f" {
				t.Fatalf("munich is to run %q, want d and f", names(m))
			}
			w.commit(map[string]string{file("f"): "", tt.left: tt.content})
			if tt.held == nil {
				if m := w.next("munich"); names(m) != "d" {
					t.Errorf("munich is to run %q, want d", names(m))
				}
			}
			w.held(tt.held...)
		})
	}
}

// TestRemovalOfASite removes the files of a site with the site. What it runs is removed in no case: not where its LO has connected, so that the removal is
// void, nor where the site is back in the record.
func TestRemovalOfASite(t *testing.T) {
	t.Parallel()
	all := because(proposal.SiteRemoved, "berlin/a", "berlin/b", "berlin/c")
	for name, asked := range map[string]map[protocol.SiteID]bool{"its LO has connected": {"berlin": true}, "it is back": nil, "a purge was asked for": {"berlin": false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := fourDeployments(t)
			w.store.set(func() { w.store.requested = asked })
			w.set(func() { w.trailers = []string{proposal.SiteLine("berlin")} })
			w.commit(map[string]string{path("berlin", "a"): "", path("berlin", "b"): "", path("berlin", "c"): ""})
			w.held(all...)
			w.store.set(func() {
				if r := w.store.sites["berlin"]; len(r.message.Deployments) != 3 || len(r.message.Removals) > 0 {
					t.Errorf("%d deployments and removals %v, want three and none", len(r.message.Deployments), r.message.Removals)
				}
			})
		})
	}
	t.Run("it goes after all", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		w.set(func() { w.trailers = []string{proposal.SiteLine("berlin")} })
		w.commit(map[string]string{path("berlin", "a"): "", path("berlin", "b"): "", path("berlin", "c"): ""})
		w.held(all...)
		w.store.set(func() {
			w.store.requested, w.store.unwanted = map[protocol.SiteID]bool{"berlin": true}, []protocol.SiteID{"berlin"}
		})
		w.loop.Notify()
		w.untilForgotten("berlin")
	})
	t.Run("it is asked for while its commit is followed", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		w.store.set(func() {
			w.store.late, w.store.unwanted = map[protocol.SiteID]bool{"berlin": true}, []protocol.SiteID{"berlin"}
		})
		w.set(func() { w.trailers = []string{proposal.SiteLine("berlin")} })
		w.commit(map[string]string{path("berlin", "a"): "", path("berlin", "b"): "", path("berlin", "c"): ""})
		w.held(all...)
		w.loop.Notify()
		w.untilForgotten("berlin")
	})
	t.Run("it goes", func(t *testing.T) {
		t.Parallel()
		w, _ := fourDeployments(t)
		w.store.set(func() {
			w.store.requested, w.store.unwanted = map[protocol.SiteID]bool{"berlin": true}, []protocol.SiteID{"berlin"}
		})
		w.set(func() { w.trailers = []string{proposal.SiteLine("berlin")} })
		w.commit(map[string]string{path("berlin", "a"): "", path("berlin", "b"): "", path("berlin", "c"): ""})
		w.untilForgotten("berlin")
		w.held()
	})
}
