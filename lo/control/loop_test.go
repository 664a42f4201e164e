package control

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestReconcileInOrder has many deployments come to many nodes at once: the events and
// the NodeDesired are in the order of the names, whatever the order of a map is.
func TestReconcileInOrder(t *testing.T) {
	t.Parallel()
	var names []protocol.DeploymentName
	for i := range 20 {
		names = append(names, protocol.DeploymentName(fmt.Sprintf("web-%02d", i)))
	}
	j := openJournal(t)
	s := openSite(t, j, openStore(t), &desiredState{m: desired(1, names...)})
	var wantTopics, topics, placed []string
	for i := range 20 {
		id := protocol.NodeID(fmt.Sprintf("gw-%02d", 19-i))
		announce(t, s, id)
		wantTopics = append([]string{topic.ForNode(topic.NodeDesired, "s1", id)}, wantTopics...)
	}
	publish := func(_ context.Context, topic string, _ []byte) error {
		topics = append(topics, topic)
		return nil
	}
	l := NewLoop(s, publish)
	now := time.Now()
	l.Reconcile(t.Context(), now)
	if diff := cmp.Diff(wantTopics, topics); diff != "" {
		t.Errorf("topics of the NodeDesired (-want +got):\n%s", diff)
	}
	for _, e := range events(t, j, protocol.PlacementEvent) {
		var m protocol.PlacementReport
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		placed = append(placed, string(m.Deployment))
	}
	var wantPlaced []string
	for _, name := range names {
		wantPlaced = append(wantPlaced, string(name))
	}
	if diff := cmp.Diff(wantPlaced, placed); diff != "" {
		t.Errorf("deployments of the placement reports (-want +got):\n%s", diff)
	}

	// All nodes are due at one time.
	topics = nil
	for _, n := range s.sorted() {
		n.unpublished = true
		l.due[n.id] = now
	}
	s.pending()
	l.Reconcile(t.Context(), now)
	if diff := cmp.Diff(wantTopics, topics); diff != "" {
		t.Errorf("topics of the NodeDesired of nodes that are due (-want +got):\n%s", diff)
	}
}

// TestUnpublishedIsRetried has the site's broker refuse a NodeDesired.
func TestUnpublishedIsRetried(t *testing.T) {
	t.Parallel()
	s := openSite(t, openJournal(t), openStore(t), &desiredState{m: desired(1, "web")})
	announce(t, s, "n1")
	busy, published := true, 0
	l := NewLoop(s, func(context.Context, string, []byte) error {
		if busy {
			return protocol.Errorf(protocol.Unavailable, "busy")
		}
		published++
		return nil
	})
	now := time.Now()
	next := l.Reconcile(t.Context(), now)
	if want := now.Add(retryDelay); !next.Equal(want) {
		t.Errorf("next reconcile at %s, want %s", next, want)
	}
	busy = false
	l.Reconcile(t.Context(), next)
	if published != 1 {
		t.Errorf("%d messages published after the broker accepts again, want 1", published)
	}
	l.Reconcile(t.Context(), next)
	if published != 1 {
		t.Errorf("%d messages published though nothing changed, want 1", published)
	}
}

// TestEndWhileRunning ends a loop that is still publishing, as where the machine is too slow for the time
// that a stop has, and once it has ended.
func TestEndWhileRunning(t *testing.T) {
	t.Parallel()
	s := openSite(t, openJournal(t), openStore(t), &desiredState{m: desired(1, "web")})
	announce(t, s, "n1")
	publishing, resume := make(chan struct{}), make(chan struct{})
	l := NewLoop(s, func(context.Context, string, []byte) error {
		close(publishing)
		<-resume
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	<-publishing
	if err := l.End(); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("while it runs: %v, want an error", err)
	}
	cancel()
	close(resume)
	<-ended
	if err := l.End(); err != nil {
		t.Errorf("once it has ended: %v", err)
	}
	if want := s.journal.Last(); l.state.Checkpoint != want {
		t.Errorf("the checkpoint is at %d, want %d", l.state.Checkpoint, want)
	}
}

// TestNewSignaturesArePublished signs a desired state for the first time, with another key, and
// with a key set that lacks the former key: each reaches the node at the position that it
// has, once.
func TestNewSignaturesArePublished(t *testing.T) {
	t.Parallel()
	s := openSite(t, openJournal(t), openStore(t), &desiredState{m: desired(1, "web")})
	announce(t, s, "n1")
	var published []protocol.NodeDesired
	l := NewLoop(s, func(_ context.Context, _ string, payload []byte) error {
		var m protocol.NodeDesired
		published = append(published, m)
		return protocol.Unmarshal(bytes.Clone(payload), &published[len(published)-1])
	})
	l.Reconcile(t.Context(), time.Now())
	if len(published) != 1 {
		t.Fatalf("%d messages published of the first state, want 1", len(published))
	}
	first := published[0].Held()
	co, adopter := signtest.New(t, 1), NewAdopter(s, func(protocol.SiteDesired) {})
	for i, step := range []struct {
		what string
		do   func()
	}{
		{"signed", func() {}},
		{"with a new key", func() { co.Use(2, signtest.Signer(t, 5), signtest.Signer(t, 2)) }},
		{"without the former key", func() { co.Use(3, signtest.Signer(t, 5)) }},
	} {
		step.do()
		m := co.Attached(desired(1, "web"))
		for range 2 {
			if err := adopter.Offer(t.Context(), protocol.Marshal(m)); err != nil {
				t.Fatal(err)
			}
			l.Reconcile(t.Context(), time.Now())
		}
		if len(published) != i+2 {
			t.Fatalf("%s: %d messages published, want %d", step.what, len(published), i+2)
		}
		got := published[i+1]
		if got.Held() != first || !bytes.Equal(got.KeySet, co.KeySet) || !bytes.Equal(got.Assignments[0].Signature, m.Deployments[0].Signature) {
			t.Errorf("%s: published is %+v", step.what, got)
		}
	}
}

// TestRuleFaultIsReportedOnce has the fault of a generation's data rules reported once,
// also over a restart, and that of the next generation again.
func TestRuleFaultIsReportedOnce(t *testing.T) {
	t.Parallel()
	j, store, d := openJournal(t), openStore(t), &desiredState{m: desired(2)}
	reported := func(l *Loop, reason string) (generations []uint64) {
		t.Helper()
		l.site.DataRules()
		l.site.RulesFault(reason)
		for range 2 {
			if err := l.reportRuleFault(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range events(t, j, protocol.DesiredRefused) {
			var m protocol.Adopted
			if err := protocol.Unmarshal(e.Body, &m); err != nil {
				t.Fatal(err)
			}
			if m.Position.Generation == d.m.Position.Generation && m.Reason != "data rules: "+reason {
				t.Errorf("reason %q, want %q", m.Reason, "data rules: "+reason)
			}
			generations = append(generations, m.Position.Generation)
		}
		return generations
	}
	for _, run := range []string{"first run", "after a restart"} {
		l := NewLoop(openSite(t, j, store, d), nil)
		last := j.Last()
		if diff := cmp.Diff([]uint64{2}, reported(l, "bad filter")); diff != "" {
			t.Errorf("%s: generations reported as refused (-want +got):\n%s", run, diff)
		}
		if run != "first run" && j.Last() != last {
			t.Errorf("%s: the journal grew from %d to %d", run, last, j.Last())
		}
	}
	d.m.Position.Generation = 3
	l := NewLoop(openSite(t, j, store, d), nil)
	got := reported(l, "another")
	if len(got) == 0 || got[len(got)-1] != 3 {
		t.Errorf("generations reported as refused: %v, want 3 last", got)
	}
}

// TestOvertaken checks that a refusal says whether it is only for the position.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind protocol.Kind
		at   uint64
		want bool
	}{
		"earlier":           {protocol.Conflict, 5, true},
		"the same, another": {protocol.Conflict, 6, true},
		"later":             {protocol.Conflict, 7, false},
		"wrong":             {protocol.Invalid, 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := openJournal(t)
			d := &desiredState{m: desired(6), offer: protocol.Errorf(c.kind, "no")}
			m := desired(c.at)
			if err := NewAdopter(openSite(t, j, openStore(t), d), func(protocol.SiteDesired) {}).Offer(t.Context(), protocol.Marshal(&m)); err != nil {
				t.Fatal(err)
			}
			var refused protocol.Adopted
			if err := protocol.Unmarshal(events(t, j, protocol.DesiredRefused)[0].Body, &refused); err != nil {
				t.Fatal(err)
			}
			if refused.Overtaken != c.want {
				t.Errorf("overtaken %t, want %t", refused.Overtaken, c.want)
			}
		})
	}
}

// TestRefusedIsReportedOnce offers a desired state that is refused, twice, and one that
// may be accepted later.
func TestRefusedIsReportedOnce(t *testing.T) {
	t.Parallel()
	j, d := openJournal(t), &desiredState{}
	s := openSite(t, j, openStore(t), d)
	var adopted []uint64
	a := NewAdopter(s, func(m protocol.SiteDesired) { adopted = append(adopted, m.Position.Generation) })
	m := desired(5)
	payload := protocol.Marshal(&m)
	d.offer = protocol.Errorf(protocol.Unavailable, "no connection")
	if err := a.Offer(t.Context(), payload); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("offer without a connection: %v, want an error of kind unavailable", err)
	}
	d.offer = protocol.Errorf(protocol.Invalid, "wrong site")
	for range 2 {
		if err := a.Offer(t.Context(), payload); err != nil {
			t.Errorf("offer of an invalid desired state: %v, want none: to retry does not help", err)
		}
	}
	got := events(t, j, protocol.DesiredRefused)
	if len(got) != 1 {
		t.Fatalf("%d events of kind desired_refused, want 1", len(got))
	}
	var refused protocol.Adopted
	if err := protocol.Unmarshal(got[0].Body, &refused); err != nil {
		t.Fatal(err)
	}
	if refused.Position.Generation != 5 || !strings.Contains(refused.Reason, "wrong site") {
		t.Errorf("refused generation %d because of %q, want 5 because of the wrong site", refused.Position.Generation, refused.Reason)
	}
	if len(adopted) != 0 {
		t.Errorf("adopted generations %v, want none", adopted)
	}
	d.offer = nil
	if err := a.Offer(t.Context(), payload); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]uint64{5}, adopted); diff != "" {
		t.Errorf("adopted generations (-want +got):\n%s", diff)
	}
}

// TestClockSetBack sets the LO's clock back by days while a retry is planned: it is made
// within the longest wait between two attempts.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	s := openSite(t, openJournal(t), openStore(t), &desiredState{m: desired(1, "web")})
	announce(t, s, "n1")
	l := NewLoop(s, func(context.Context, string, []byte) error { return nil })
	now := time.Now()
	l.Reconcile(t.Context(), now)
	d := s.node("n1").record().Deployments["web"]
	if err := s.acceptReport(t.Context(), protocol.DeploymentStatus{
		V: protocol.Version, Node: "n1", Deployment: "web", Agent: "agent-n1", Seq: 1, Position: d.Assigned.Position,
		State: lifecycle.Failed, Actor: lifecycle.EN, Digest: d.Assigned.Digest, Attempt: d.Assigned.Attempt, Code: protocol.StartFailed,
	}, now); err != nil {
		t.Fatal(err)
	}
	if next := l.Reconcile(t.Context(), now); next.Sub(now) <= 0 {
		t.Fatalf("the retry is due in %s: want a wait", next.Sub(now))
	}
	now = now.Round(0).Add(-72 * time.Hour)
	const longest = 5 * time.Minute
	next := l.Reconcile(t.Context(), now)
	if wait := next.Sub(now); wait <= 0 || wait > longest {
		t.Fatalf("after the clock was set back the retry is due in %s: want at most %s", wait, longest)
	}
	l.Reconcile(t.Context(), next)
	if got := s.node("n1").record().Deployments["web"].Assigned.Attempt; got != d.Assigned.Attempt+1 {
		t.Errorf("attempt %d is assigned, want %d", got, d.Assigned.Attempt+1)
	}
}

// TestPlacementsAreReportedOnceMore: a CO that lacks events, as its database was restored or this LO's journal was lost, gets where each
// deployment is placed, though nothing in that has changed. Each time it asks, it gets it once.
func TestPlacementsAreReportedOnceMore(t *testing.T) {
	t.Parallel()
	j := openJournal(t)
	s := openSite(t, j, openStore(t), &desiredState{m: desired(1, "a", "b")})
	announce(t, s, "n1")
	l := NewLoop(s, func(context.Context, string, []byte) error { return nil })
	now := time.Now()
	var last uint64
	appended := func(want uint64, what string) {
		t.Helper()
		l.Reconcile(t.Context(), now)
		if got := j.Last() - last; got != want {
			t.Errorf("%s: %d events, want %d", what, got, want)
		}
		last = j.Last()
		if got := len(events(t, j, protocol.PlacementEvent)); got != 2 {
			t.Errorf("%s: the journal has %d placements, want 2", what, got)
		}
	}
	l.Reconcile(t.Context(), now)
	last = j.Last()
	s.reconcileAll()
	appended(0, "where nothing changed")
	s.ReportPlacements()
	appended(2, "once the CO lacks events")
	s.reconcileAll()
	appended(0, "afterwards")
}
