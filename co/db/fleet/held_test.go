package fleetdb_test

import (
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
	if len(events) != 2 || !strings.Contains(events[0].Message, "holds desired state 4.9") || !strings.Contains(events[0].Message, "the CO had 1.2 (commit c2)") {
		t.Errorf("events %+v", events)
	}
}

// TestUnfollowed goes on above what a site holds with a record that was not compared with the
// deployments repo: that is known until SaveDesired, which may change nothing.
func TestUnfollowed(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	list := []fleet.Desired{want("a", "1", "c1")}
	save := func() protocol.SiteDesired {
		t.Helper()
		out, _, err := s.SaveDesired(ctx, "home", "c1", list, fleet.SiteData{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	save()
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
		if out := save(); out.Position != raised.Position || unfollowed() {
			t.Errorf("after SaveDesired: at %s, want %s; unfollowed %t", out.Position, raised.Position, unfollowed())
		}
		h = protocol.Held{Position: protocol.Position{Epoch: raised.Position.Epoch, Generation: raised.Position.Generation + 3}, Digest: "sha256:y"}
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
}
