package fleetdb_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// TestRaise goes on above what a site holds, with whole state at the new position.
func TestRaise(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	save := func(commit string, list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save("c1", want("a", "1", "c1"), want("b", "1", "c1"))
	last := save("c2", want("a", "1", "c1"))
	online := func(session string, h protocol.Held) []fleet.SiteHeld {
		t.Helper()
		if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: session, Held: h}); err != nil {
			t.Fatal(err)
		}
		return testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "home"))
	}
	if got := online("1", protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 1}, Digest: "sha256:x"}); len(got) != 0 {
		t.Errorf("an earlier position counts as unknown: %+v", got)
	}
	if got := online("2", last.Held()); len(got) != 1 || got[0].Held.Unknown(last.Held()) {
		t.Errorf("what is recorded counts as unknown: %+v", got)
	}
	if out := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", last.Held(), fleet.Raise{})); out.Position != last.Position {
		t.Errorf("raised to %s although the site holds what is recorded", out.Position)
	}

	held := protocol.Held{Position: protocol.Position{Epoch: 4, Generation: 9}, Digest: "sha256:x"}
	if got := online("3", held); len(got) != 1 || got[0].Held != held || got[0].Lost {
		t.Errorf("held %+v, want %+v", got, held)
	}
	out := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held, fleet.Raise{}))
	at := protocol.Position{Epoch: 5, Generation: 10}
	if out.Position != at || out.Deployments[0].Position != at {
		t.Errorf("state at %s, entry at %s; want both at %s", out.Position, out.Deployments[0].Position, at)
	}
	// The site may have been given b once more after the backup: a tombstone that is older than
	// what a node was assigned is not carried out, and a raised one would be.
	if len(out.Removals) != 1 || out.Removals[0].Position != last.Position {
		t.Errorf("removals %+v, want that of b at %s, where it was recorded", out.Removals, last.Position)
	}
	again := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))
	if d := cmp.Diff(out, again); d != "" {
		t.Errorf("the record differs from what was returned:\n%s", d)
	}
	if next := save("c3", want("a", "2", "c3")); next.Position != (protocol.Position{Epoch: 5, Generation: 11}) {
		t.Errorf("the next change is at %s", next.Position)
	}

	far := protocol.Held{Position: protocol.Position{Epoch: 9000, Generation: 1}, Digest: "sha256:x"}
	online("4", far)
	if _, err := s.Raise(ctx, "home", far, fleet.Raise{}); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("a jump of 8,995 epochs: %v, want a conflict", err)
	}
	execute(t, pool, `update deployments set held = 'p1' where name = 'a'`)
	if got := testpart.Must[protocol.Position](t)(s.AcceptPosition(ctx, "home")); got != (protocol.Position{Epoch: 9001, Generation: 12}) {
		t.Errorf("accepted position is %s", got)
	}
	if _, err := s.AcceptPosition(ctx, "home"); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), "no position that is to be accepted") {
		t.Errorf("nothing to accept: %v", err)
	}
	online("5", protocol.Held{Position: protocol.Position{Epoch: 1 << 63, Generation: 1}, Digest: "sha256:x"})
	if _, err := s.AcceptPosition(ctx, "home"); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("the last position that there is: %v, want a conflict", err)
	}

	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{fleet.DesiredEpochRaised}}))
	if len(events) != 2 || strings.Contains(events[0].Message, "whose removal is held") || !strings.Contains(events[1].Message, "Of a a change is held, and the deployments repo does not say what runs: they stay as they are at the site") {
		t.Errorf("events %+v", events)
	}
	if len(events) != 2 || !strings.Contains(events[0].Message, "holds desired state 4.9") || !strings.Contains(events[0].Message, "the CO had 1.2 (commit c2)") {
		t.Errorf("events %+v", events)
	}
}

// TestHeldIsNotSetBack goes on above what a site holds where the removal of a deployment is held: what the record has of it may be
// older than what runs, so that the site gets nothing of it until that is over.
func TestHeldIsNotSetBack(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"its file is back": true, "its removal is confirmed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := open(t), t.Context()
			save := func(commit string, list ...fleet.Desired) (protocol.SiteDesired, bool) {
				t.Helper()
				out, changed, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(out, testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home"))); d != "" {
					t.Errorf("the record differs from what was returned:\n%s", d)
				}
				return out, changed
			}
			names := func(m protocol.SiteDesired) (all string) {
				for _, e := range m.Deployments {
					all += string(e.Deployment)
				}
				return all
			}
			a, b := want("a", "1", "c1"), want("b", "1", "c1")
			save("c1", a, b)
			a.Hold = fleet.Hold{Proposal: "removals-1", Commit: "c2", Cause: "is one of many deployments that the commit removes"}
			if m, _ := save("c2", a, b); names(m) != "ab" {
				t.Errorf("the site has %s while the removal of a is held, want ab", names(m))
			}
			held := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x"}
			if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Held: held}); err != nil {
				t.Fatal(err)
			}
			m := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held, fleet.Raise{Followed: true}))
			if names(m) != "b" || len(m.Removals) != 0 {
				t.Errorf("the site gets %s and is to remove %v, want b and nothing", names(m), m.Removals)
			}
			if m, changed := save("c3", a, b); changed || names(m) != "b" {
				t.Errorf("the site gets %s, changed %t, while the removal of a is held; want b as before", names(m), changed)
			}
			if back {
				a.Hold = fleet.Hold{}
				m, changed := save("c4", a, b)
				if !changed || names(m) != "ab" || m.Deployments[0].Position != m.Position {
					t.Errorf("with its file back the site gets %s, changed %t, a at %s", names(m), changed, m.Deployments[0].Position)
				}
				return
			}
			if m, changed := save("c4", b); !changed || len(m.Removals) != 1 || m.Removals[0].Deployment != "a" || m.Removals[0].Position != m.Position {
				t.Errorf("with its removal confirmed the site is to remove %v, changed %t, want a at %s", m.Removals, changed, m.Position)
			}
		})
	}
}

// TestUnfollowed goes on above what a site holds with a record that was not compared with the
// deployments repo: that is known until SaveDesired, which may change nothing.
func TestUnfollowed(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	list := []fleet.Desired{want("a", "1", "c1")}
	commit := "c1"
	save := func() protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save()
	commit = "c2"
	unfollowed := func() bool {
		t.Helper()
		held := testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "home"))
		return len(held) == 1 && held[0].Unfollowed
	}
	h := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x"}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Held: h}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		how  fleet.Raise
		want bool
	}{{fleet.Raise{Followed: true}, false}, {fleet.Raise{}, true}, {fleet.Raise{Accepted: true}, true}} {
		raised := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", h, c.how))
		if got := unfollowed(); got != c.want {
			t.Errorf("after a raise %+v: unfollowed %t, want %t", c.how, got, c.want)
		}
		// What is published at that position is what the repo says by then.
		if out := save(); out.Position != raised.Position || unfollowed() || c.want && out.Commit != "c2" || !c.want && out.Commit != "c1" {
			t.Errorf("after SaveDesired: at %s of commit %s, want %s; unfollowed %t", out.Position, out.Commit, raised.Position, unfollowed())
		}
		h = protocol.Held{Position: protocol.Position{Epoch: raised.Position.Epoch, Generation: raised.Position.Generation + 3}, Digest: "sha256:y"}
	}
}

// TestHeldCommit records of which commit the state is that a site holds, by its presence and by its events, and has the message of a raise be of the commit with
// which the record was compared.
func TestHeldCommit(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	h := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x", Commit: "c9"}
	held := func() protocol.Held {
		t.Helper()
		list := testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "home"))
		if len(list) != 1 {
			t.Fatalf("held %+v, want one", list)
		}
		return list[0].Held
	}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Held: h}); err != nil {
		t.Fatal(err)
	}
	if got := held(); got != h {
		t.Errorf("held %+v as its presence says, want %+v", got, h)
	}
	h.Position.Generation, h.Commit = 10, "c10"
	j := &journal{epoch: "e"}
	j.add(protocol.DesiredAdopted, "", protocol.Adopted{V: 1, Position: h.Position, Held: h})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 1, 0))
	if got := held(); got != h {
		t.Errorf("held %+v as its journal says, want %+v", got, h)
	}
	if out := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", h, fleet.Raise{Followed: true, Commit: "c7"})); out.Commit != "c7" {
		t.Errorf("the message of the raise is of %s, want c7", out.Commit)
	}
}

// TestPresenceKeepsWhatNodesFollow has an LO report that its nodes follow a later state, and
// connect once more before the CO has gone on above that.
func TestPresenceKeepsWhatNodesFollow(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	last, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1")}, fleet.SiteData{})
	if err != nil {
		t.Fatal(err)
	}
	held := func() protocol.Held {
		t.Helper()
		list := testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "home"))
		if len(list) != 1 {
			t.Fatalf("held %+v, want one", list)
		}
		return list[0].Held
	}
	session := 0
	connect := func(h protocol.Held) {
		t.Helper()
		session++
		if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: strconv.Itoa(session), Held: h}); err != nil {
			t.Fatal(err)
		}
	}
	connect(last.Held())
	ahead := protocol.Held{Position: protocol.Position{Epoch: 3, Generation: 9}}
	j := &journal{epoch: "e"}
	j.add(protocol.DesiredRefused, "", protocol.Adopted{V: 1, Position: last.Position, Held: ahead, Reason: "a node is ahead"})
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 1, 0))
	connect(last.Held())
	if got := held(); got != ahead {
		t.Errorf("held %+v after the LO connected once more, want %+v", got, ahead)
	}
	raised := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", ahead, fleet.Raise{Followed: true}))
	connect(raised.Held())
	if got := held(); got != raised.Held() {
		t.Errorf("held %+v after the CO went on above it, want %+v", got, raised.Held())
	}
	far := protocol.Held{Position: protocol.Position{Epoch: 1 << 40, Generation: 1 << 40}}
	connect(far)
	if got := held(); got != far {
		t.Errorf("held %+v after the LO connected with it, want %+v", got, far)
	}
}

// TestRaiseAfterARestore removes a deployment after the restore and before the site is heard of, and asks for a purge: that removal is carried out, without the
// volumes, those of before the restore stay where they were, without the volumes as well, which may be of later, and the event says what is to be asked for once more.
// It is the same where the LO has lost what it held.
func TestRaiseAfterARestore(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]protocol.Held{"the site went on": {Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x"}, "its LO has lost it": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raiseAfterARestore(t, held)
		})
	}
}

func raiseAfterARestore(t *testing.T, held protocol.Held) {
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	save := func(commit string, list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save("c1", want("a", "1", "c1"), want("b", "1", "c1"), want("c", "1", "c1"))
	if err := s.RemoveVolumes(ctx, "home", []protocol.DeploymentName{"c"}); err != nil {
		t.Fatal(err)
	}
	before := save("c2", want("a", "1", "c1"), want("b", "1", "c1"))
	if _, err := pool.Exec(ctx, `insert into restored_positions select id, epoch, generation from sites`); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveVolumes(ctx, "home", []protocol.DeploymentName{"b"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestPurge, Node: "n1", Deployment: "old"}); err != nil {
		t.Fatal(err)
	}
	if since := save("c3", want("a", "1", "c1")); len(since.Removals) != 2 || len(since.Purges) != 1 {
		t.Fatalf("before the site is heard of: %+v", since)
	}
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Held: held}); err != nil {
		t.Fatal(err)
	}
	out := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held, fleet.Raise{Followed: true}))
	if d := cmp.Diff([]protocol.Removal{{Deployment: "b", Position: out.Position}, {Deployment: "c", Position: before.Position}}, out.Removals); d != "" || len(out.Purges) > 0 {
		t.Errorf("purges %+v, removals (-want +got):\n%s", out.Purges, d)
	}
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Site: "home", Kinds: []string{fleet.DesiredEpochRaised}}))
	if len(events) != 1 || !strings.Contains(events[0].Message, "are carried out, without the volumes: b.") ||
		!strings.Contains(events[0].Message, "and stay where they are still there, ask again for what colony volume list shows: c.") || strings.Contains(events[0].Message, "the site holds no desired state") != held.Position.IsZero() ||
		!strings.Contains(events[0].Message, "colony volume list shows: old") {
		t.Errorf("events %+v", events)
	}
	if last := testpart.Must[protocol.SiteDesired](t)(s.LastDesired(ctx, "home")); last.ContentDigest() != out.ContentDigest() {
		t.Errorf("returned is %+v, recorded %+v", out, last)
	}

	// A second request, without the volumes, does not remove them because of the first one.
	if err := s.Request(ctx, fleet.Request{Site: "home", Kind: fleet.RequestRemoval, Deployment: "c"}); err != nil {
		t.Fatal(err)
	}
	if again := save("c3", want("a", "1", "c1")); len(again.Removals) != 2 || again.Removals[1].Volumes || again.Removals[1].Position != again.Position {
		t.Errorf("asked once more: %+v", again.Removals)
	}
}

// TestRaiseEndsWhatWasNotBegun has a record from a dump with requests that no desired state had: what they name may be of later, so that they end, and the event
// says so. Removals that are asked for after colony co restore, which drops what was not begun, stand without the volumes.
func TestRaiseEndsWhatWasNotBegun(t *testing.T) {
	t.Parallel()
	for name, restored := range map[string]bool{"pg_restore": false, "colony co restore": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, ctx := openDB(t), t.Context()
			s := fleetdb.New(pool)
			save := func() protocol.SiteDesired {
				out, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1")}, fleet.SiteData{})
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			save()
			if restored {
				if _, err := pool.Exec(ctx, `insert into restored_positions select id, epoch, generation from sites`); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range []fleet.Request{
				{Site: "home", Kind: fleet.RequestPurge, Node: "n1", Deployment: "kept"}, {Site: "home", Kind: fleet.RequestRemoval, Deployment: "gone", Volumes: true},
			} {
				if err := s.Request(ctx, r); err != nil {
					t.Fatal(err)
				}
			}
			testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x"}, fleet.Raise{}))
			out := save()
			if len(out.Purges) > 0 || len(out.Removals) > 0 != restored || restored && out.Removals[0].Volumes {
				t.Errorf("purges %+v, removals %+v", out.Purges, out.Removals)
			}
			events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Site: "home", Kinds: []string{fleet.DesiredEpochRaised}}))
			if len(events) != 1 || !strings.Contains(events[0].Message, "colony volume list shows: kept") || strings.Contains(events[0].Message, "what is to go: gone") == restored {
				t.Errorf("events %+v", events)
			}
		})
	}
}

// TestUnfollowedRemovesNoVolumes removes a deployment with the first look at the deployments repo after the CO went on above what the site holds: it may be of
// a later one of that name, so that its volumes outlive it.
func TestUnfollowedRemovesNoVolumes(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	remove := func(commit string, list ...fleet.Desired) protocol.Removal {
		t.Helper()
		if err := s.RemoveVolumes(ctx, "home", []protocol.DeploymentName{"a", "b"}); err != nil {
			t.Fatal(err)
		}
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil || len(out.Removals) == 0 {
			t.Fatalf("%+v, %v", out, err)
		}
		return out.Removals[len(out.Removals)-1]
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1"), want("b", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	held := func(generation uint64) protocol.Held {
		return protocol.Held{Position: protocol.Position{Epoch: 1, Generation: generation}, Digest: "sha256:x"}
	}
	raise := func(h protocol.Held) { testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", h, fleet.Raise{})) }
	raise(held(9))
	if got := remove("c2", want("b", "1", "c1")); got.Deployment != "a" || got.Volumes {
		t.Errorf("the first removal is %+v", got)
	}
	if _, _, err := s.SaveDesired(ctx, "home", "c2", []fleet.Desired{want("a", "1", "c2"), want("b", "1", "c1")}, fleet.SiteData{}); err != nil {
		t.Fatal(err)
	}
	// The loop looks at removals before it saves, and goes on above what the site holds in between.
	if err := s.RemoveVolumes(ctx, "home", []protocol.DeploymentName{"a"}); err != nil {
		t.Fatal(err)
	}
	raise(protocol.Held{Position: protocol.Position{Epoch: 5, Generation: 99}, Digest: "sha256:x"})
	out, _, err := s.SaveDesired(ctx, "home", "c2", []fleet.Desired{want("b", "1", "c1")}, fleet.SiteData{})
	if err != nil || len(out.Removals) != 1 || out.Removals[0].Deployment != "a" || out.Removals[0].Volumes {
		t.Errorf("a removal that was looked at before: %+v, %v", out.Removals, err)
	}
	if got := remove("c3"); got.Deployment != "b" || !got.Volumes {
		t.Errorf("the next one is %+v", got)
	}
}

// TestRestoredRecordIsHeardOf restores the record of a site: until the site has reported, it is awaited. Where it holds what the backup has, or less, that ends
// it. Where it went on since, the record goes on above that, also if it has as high a position by now.
func TestRestoredRecordIsHeardOf(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	sessions := 0
	report := func(h protocol.Held) {
		t.Helper()
		sessions++
		if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: strconv.Itoa(sessions), Held: h}); err != nil {
			t.Fatal(err)
		}
	}
	save := func(versions ...string) (out protocol.SiteDesired) {
		t.Helper()
		for _, v := range versions {
			var err error
			if out, _, err = s.SaveDesired(ctx, "home", "c"+v, []fleet.Desired{want("a", v, "c"+v)}, fleet.SiteData{}); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	restored := func() {
		execute(t, pool, `delete from restored_positions`)
		execute(t, pool, `insert into restored_positions select id, epoch, generation from sites`)
	}
	is := func() string {
		t.Helper()
		list := testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "home"))
		if len(list) != 1 {
			return "known"
		}
		if all := testpart.Must[[]fleet.SiteHeld](t)(s.Held(ctx, "")); !cmp.Equal(all, list) {
			t.Errorf("of all sites %+v, of this one %+v", all, list)
		}
		return fmt.Sprintf("awaited %t, beyond %t, lost %t", list[0].Awaited, list[0].Beyond, list[0].Lost)
	}
	backup := save("1", "2")
	restored()
	if got := is(); got != "awaited true, beyond false, lost false" {
		t.Errorf("of which nothing was heard: %s", got)
	}
	save("3")
	restored()
	report(backup.Held())
	if got := is(); got != "known" {
		t.Errorf("holding %s, which is not beyond the backup: %s", backup.Position, got)
	}
	// An LO that has lost what it held may have had a later one, also once it has taken up a state anew.
	restored()
	report(protocol.Held{})
	if got := is(); got != "awaited false, beyond true, lost true" {
		t.Errorf("holding nothing: %s", got)
	}
	report(backup.Held())
	if got := is(); got != "awaited false, beyond true, lost false" {
		t.Errorf("holding %s after it had lost what it held: %s", backup.Position, got)
	}
	if at := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", protocol.Held{}, fleet.Raise{Followed: true})).Position; at.Epoch != 2 || is() != "known" {
		t.Errorf("raised to %s above what was lost; then %s", at, is())
	}
	execute(t, pool, `update sites set session = 'same'`) // as the backup may have it
	restored()
	held := save("4")
	held.Content = "sha256:other"
	last := save("5", "6", "7")
	sessions--
	if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "same", Held: held.Held()}); err != nil {
		t.Fatal(err)
	}
	if got := is(); got != "awaited false, beyond true, lost false" {
		t.Errorf("beyond the backup, and below the record: %s", got)
	}
	out := testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held.Held(), fleet.Raise{Followed: true}))
	if out.Position.Epoch <= last.Position.Epoch || out.Position.Generation <= last.Position.Generation || out.Deployments[0].Position != out.Position {
		t.Errorf("raised from %s to %s, with %s", last.Position, out.Position, out.Deployments[0].Position)
	}
	events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Site: "home", Kinds: []string{fleet.DesiredEpochRaised}}))
	if len(events) != 2 || !strings.Contains(events[0].Message, "holds no desired state, and what its LO had since the backup, if it had one, is lost: the CO had 1.3 when it was restored.") ||
		!strings.Contains(events[1].Message, " when it was restored. Its database") {
		t.Errorf("events %+v", events)
	}
	if got := is(); got != "known" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestHeldWithTheFirstComparison holds a removal with the first look at the deployments repo after the CO went on above what the site holds: what runs there may
// be a later version than the record has, which is in neither list until the file is back.
func TestHeldWithTheFirstComparison(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	save := func(commit string, list ...fleet.Desired) protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", commit, list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save("c1", want("a", "1", "c1"), want("b", "1", "c1"))
	testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:x"}, fleet.Raise{}))
	held := want("a", "1", "c1")
	held.Hold = fleet.Hold{Proposal: "00000001", Commit: "c2", Cause: "x"}
	for _, what := range []string{"the first comparison", "the next one"} {
		if out := save("c2", held, want("b", "1", "c1")); len(out.Deployments) != 1 || out.Deployments[0].Deployment != "b" || len(out.Removals) > 0 {
			t.Errorf("%s: the site gets %+v and is to remove %+v, want b and nothing", what, out.Deployments, out.Removals)
		}
	}
	if out := save("c3", want("a", "1", "c1"), want("b", "1", "c1")); len(out.Deployments) != 2 {
		t.Errorf("with the file back the site gets %+v, want both", out.Deployments)
	}
}
