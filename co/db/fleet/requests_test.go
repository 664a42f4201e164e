package fleetdb_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// kept is the inventory of a node that keeps volumes of a deployment that was removed.
func kept(names ...string) protocol.Inventory {
	inv := protocol.Inventory{V: 1, Node: "n1", VolumeCount: uint32(len(names))}
	for _, name := range names {
		inv.Volumes = append(inv.Volumes, protocol.Volume{Deployment: "old", Name: name, Bytes: 4096, RemovedMillis: 1_700_000_000_000})
	}
	return inv
}

// TestPurge follows a purge from its request to the report of the node.
func TestPurge(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	save := func(commit, version string) (protocol.SiteDesired, bool) {
		t.Helper()
		out, changed, err := s.SaveDesired(ctx, "home", commit, []fleet.Desired{want("a", version, commit)}, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); last.ContentDigest() != out.ContentDigest() {
			t.Errorf("at %s: SaveDesired returned %+v, LastDesired %+v", commit, out, last)
		}
		return out, changed
	}
	first, _ := save("c1", "1")
	j := &journal{epoch: "e"}
	report := func(inv protocol.Inventory, adopted protocol.SiteDesired) {
		t.Helper()
		at := len(j.events)
		j.add(protocol.InventoryChanged, "n1", inv)
		j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: adopted.Position, Held: adopted.Held()})
		testpart.Must[protocol.Ack](t)(j.send(ctx, s, at+1, len(j.events), 0))
	}
	report(kept("data", "logs"), first)
	volumes := func() []fleet.KeptVolume {
		t.Helper()
		return testpart.Must[[]fleet.KeptVolume](t)(s.KeptVolumes(ctx, "home", "", ""))
	}
	if got := volumes(); len(got) != 2 || got[0].Volume != "data" || got[0].Bytes != 4096 || got[0].RemovedAt == nil || got[0].Purging {
		t.Errorf("kept volumes %+v", got)
	}

	request := fleet.Request{Site: "home", Kind: fleet.RequestPurge, Node: "n1", Deployment: "old", Volume: "data"}
	if err := s.Request(ctx, request); err != nil {
		t.Fatal(err)
	}
	if sites := testpart.Must[map[protocol.SiteID]bool](t)(s.Requested(ctx)); !cmp.Equal(sites, map[protocol.SiteID]bool{"home": false}) {
		t.Errorf("sites with requests: %v", sites)
	}
	if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); last.ContentDigest() != first.ContentDigest() {
		t.Error("a request changed what is published before SaveDesired took it up")
	}
	out, changed := save("c1", "1")
	if want := []protocol.Purge{{Node: "n1", Deployment: "old", Volume: "data", Position: out.Position}}; !changed || !cmp.Equal(out.Purges, want) {
		t.Errorf("changed %t, purges %+v, want %+v", changed, out.Purges, want)
	}
	if again, changed := save("c1", "1"); changed || again.Position != out.Position {
		t.Errorf("the request was taken up twice: at %s, and at %s", out.Position, again.Position)
	}
	if got := volumes(); !got[0].Purging || got[1].Purging {
		t.Errorf("kept volumes %+v, want the first to be purged", got)
	}
	report(kept("data", "logs"), out)
	if next, _ := save("c2", "2"); len(next.Purges) != 1 || next.Purges[0].Position != out.Position {
		t.Errorf("purges %+v while the node has the volume, want one at %s", next.Purges, out.Position)
	}
	more := kept("logs")
	more.VolumeCount = 2 // the node does not name all of them
	report(more, out)
	if next, _ := save("c3", "3"); len(next.Purges) != 1 {
		t.Errorf("purges %+v while the node may have the volume, want one", next.Purges)
	}
	report(kept("logs"), out)
	if next, changed := save("c3", "3"); changed || len(next.Purges) != 1 {
		t.Errorf("changed %t, purges %+v: what is published changes with its position only", changed, next.Purges)
	}
	if next, _ := save("c4", "4"); len(next.Purges) != 0 {
		t.Errorf("purges %+v although the node has reported, want none", next.Purges)
	}
}

// TestRemovalByName asks for tombstones of what the deployments repo does not have.
func TestRemovalByName(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	save := func(commit string, list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); last.ContentDigest() != out.ContentDigest() {
			t.Errorf("at %s: SaveDesired returned %+v, LastDesired %+v", commit, out, last)
		}
		return out
	}
	ask := func(name protocol.DeploymentName, volumes bool) {
		t.Helper()
		if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestRemoval, Deployment: name, Volumes: volumes}); err != nil {
			t.Fatal(err)
		}
	}
	a := want("a", "1", "c1")
	first := save("c1", a)
	j := &journal{epoch: "e"}
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.add(protocol.InventoryChanged, "n1", protocol.Inventory{V: 1, Node: "n1", Unknown: []protocol.DeploymentName{"lost"}})
	j.life("back", "n1") // of an old copy of its disk
	adopted := func(out protocol.SiteDesired) {
		t.Helper()
		at := len(j.events)
		j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: out.Position, Held: out.Held()})
		testpart.Must[protocol.Ack](t)(j.send(ctx, s, at+1, len(j.events), 0))
	}
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
	adopted(first)

	ask("a", true) // the repo has it: void
	if out := save("c1", a); len(out.Removals) != 0 || out.Position != first.Position {
		t.Errorf("a deployment of the repo is removed by name: %+v", out.Removals)
	}
	ask("back", false)
	ask("lost", true)
	if found := testpart.Must[bool](t)(s.Unrecorded(ctx, "home", "lost")); !found {
		t.Error("no node has containers of lost without a record")
	}
	out := save("c1", a)
	at := out.Position
	want := []protocol.Removal{{Deployment: "back", Position: at}, {Deployment: "lost", Position: at, Volumes: true}}
	if diff := cmp.Diff(want, out.Removals); diff != "" {
		t.Errorf("tombstones: %s", diff)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "back")); d.State != lifecycle.Deleting {
		t.Errorf("back is %s, want DELETING", d.State)
	}
	adopted(out)
	a.Commit = "c2"
	a.Entry.Retry = 1
	if diff := cmp.Diff(want, save("c2", a).Removals); diff != "" {
		t.Errorf("tombstones while the node has not reported: %s", diff)
	}
	ask("back", true)
	out = save("c2", a)
	want[0] = protocol.Removal{Deployment: "back", Position: out.Position, Volumes: true}
	if diff := cmp.Diff(want, out.Removals); diff != "" {
		t.Errorf("tombstones after back was asked for once more, with its volumes: %s", diff)
	}

	n := len(j.events)
	j.status("back", "n1", lifecycle.Deleting, lifecycle.LO)
	j.status("back", "n1", lifecycle.Deleted, lifecycle.EN)
	j.add(protocol.InventoryChanged, "n1", protocol.Inventory{V: 1, Node: "n1"})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, n+1, len(j.events), 0))
	adopted(out)
	a.Commit = "c3"
	a.Entry.Retry = 2
	if out := save("c3", a); len(out.Removals) != 0 {
		t.Errorf("tombstones %+v although the node has nothing of them", out.Removals)
	}
}

// TestDecommission follows the removal of a node from its request to its return.
func TestDecommission(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	version := 0
	save := func() protocol.SiteDesired {
		t.Helper()
		a := want("a", strconv.Itoa(version), "c1")
		a.Entry.Placement.Node = "n1"
		out, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{a}, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); last.ContentDigest() != out.ContentDigest() {
			t.Errorf("SaveDesired returned %+v, LastDesired %+v", out, last)
		}
		return out
	}
	save()
	j := &journal{epoch: "e"}
	send := func() {
		t.Helper()
		site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home"))
		testpart.Must[protocol.Ack](t)(j.send(ctx, s, int(site.JournalSeq)+1, len(j.events), 0))
	}
	for _, n := range []string{"n1", "n2"} {
		j.add(protocol.NodeOnlineEvent, protocol.NodeID(n), protocol.Presence{V: 1, Online: true})
		j.life("a", n)
	}
	j.add(protocol.NodeOfflineEvent, "n1", protocol.Presence{V: 1})
	send()
	use := testpart.Must[fleet.NodeUse](t)(s.NodeUse(ctx, "home", "n1"))
	if diff := cmp.Diff(fleet.NodeUse{Runs: []protocol.DeploymentName{"a"}, Named: []protocol.DeploymentName{"a"}}, use); diff != "" {
		t.Errorf("use of n1: %s", diff)
	}

	ask := func() protocol.SiteDesired {
		t.Helper()
		if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestDecommission, Node: "n1"}); err != nil {
			t.Fatal(err)
		}
		out := save()
		if want := []protocol.Decommission{{Node: "n1", Position: out.Position}}; !cmp.Equal(want, out.Decommissions) {
			t.Errorf("decommissions %+v, want %+v", out.Decommissions, want)
		}
		return out
	}
	answer := func(at protocol.Position, reason string) {
		t.Helper()
		j.add(protocol.NodeDecommissioned, "n1", protocol.Decommissioned{V: 1, Position: at, Reason: reason})
		send()
	}
	first := ask()
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); n.Decommissioning == nil || n.Decommissioning.DoneAt != nil {
		t.Errorf("removal of n1 %+v, want one that is not answered", n.Decommissioning)
	}
	answer(first.Position, "it is connected")
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); n.Decommissioning == nil || n.Decommissioning.Refused != "it is connected" {
		t.Errorf("removal of n1 %+v, want it refused", n.Decommissioning)
	}
	second := ask()
	answer(first.Position, "")
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); n.Decommissioning.DoneAt != nil {
		t.Error("an answer to the removal of before counts for that of now")
	}
	answer(second.Position, "")
	if _, err := s.Node(ctx, "home", "n1"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("n1 after it was removed: %v", err)
	}
	if d := testpart.Must[fleet.Deployment](t)(s.Deployment(ctx, "home", "a")); len(d.Nodes) != 1 || d.Nodes[0].Node != "n2" {
		t.Errorf("a is on %+v, want n2 alone", d.Nodes)
	}
	if site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); site.Nodes != 1 {
		t.Errorf("the site has %d nodes, want one", site.Nodes)
	}
	version++
	if out := save(); len(out.Decommissions) != 0 {
		t.Errorf("decommissions %+v although the site has answered", out.Decommissions)
	}

	last := testpart.Must[int64](t)(s.LastEvent(ctx))
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	j.add(protocol.NodeOfflineEvent, "n1", protocol.Presence{V: 1})
	j.add(protocol.NodeOnlineEvent, "n1", protocol.Presence{V: 1, Online: true})
	send()
	got := kinds(testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: last})))
	if diff := cmp.Diff([]string{"node_online@n1", "node_returned@n1", "node_offline@n1", "node_online@n1"}, got); diff != "" {
		t.Errorf("events of its return: %s", diff)
	}
	if n := testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1")); n.Decommissioning == nil || n.Decommissioning.DoneAt == nil || n.Decommissioning.Refused != "" {
		t.Errorf("n1 is back: %+v, want it shown as one that was removed", n.Decommissioning)
	}
	answer(second.Position, "") // an LO that has lost its disk repeats it
	testpart.Must[fleet.Node](t)(s.Node(ctx, "home", "n1"))
}

// TestRemovalOfSiteAskedMeanwhile asks for the removal of a site after the repo was compared and before its outcome is
// recorded: the removal is void where the repo has files for the site, and stays asked for where it has none.
func TestRemovalOfSiteAskedMeanwhile(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	save := func(commit string, list ...fleet.Desired) {
		t.Helper()
		if saved := s.SaveAll(ctx, commit, []fleet.SiteWant{{Site: "home", Desired: list, Files: len(list) > 0}}); saved[0].Err != nil {
			t.Fatal(saved[0].Err)
		}
	}
	ask := func() {
		t.Helper()
		if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestSite}); err != nil {
			t.Fatal(err)
		}
	}
	state := func() string {
		t.Helper()
		events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{fleet.SiteKept}}))
		return fmt.Sprintf("asked for %v, void %d times", testpart.Must[map[protocol.SiteID]bool](t)(s.Requested(ctx)), len(events))
	}
	save("c1", want("a", "1", "c1"))
	ask()
	save("c1", want("a", "1", "c1"))
	if got, want := state(), "asked for map[], void 1 times"; got != want {
		t.Errorf("with files: %s, want %s", got, want)
	}
	ask()
	save("c2")
	if got, want := state(), "asked for map[home:true], void 1 times"; got != want {
		t.Errorf("without: %s, want %s", got, want)
	}
	if removed, err := s.RemoveSite(ctx, "home"); !removed || err != nil {
		t.Errorf("the site is not removed: %v", err)
	}
	if got, want := state(), "asked for map[], void 1 times"; got != want {
		t.Errorf("afterwards: %s, want %s", got, want)
	}
}
