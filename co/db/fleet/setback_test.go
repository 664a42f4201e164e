package fleetdb_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// TestSetBackIsSaidOnce has a site report to a record that was set back: one event says what is lost, whatever comes first. What does
// not follow from that has an event of its own.
func TestSetBackIsSaidOnce(t *testing.T) {
	t.Parallel()
	raised := func(also ...string) []string { return append(also, fleet.DesiredEpochRaised) }
	for name, tt := range map[string]struct {
		raise  string // when: before, after, never
		at     protocol.Position
		events []string
		text   string // of the event of the raise
	}{
		"reports before the raise": {"after", protocol.Position{Epoch: 1, Generation: 9}, raised(), "with 4 events of its journal"},
		"reports after it":         {"before", protocol.Position{Epoch: 1, Generation: 9}, raised(), "with what the site reported after event 2 of its journal"},
		"no later desired state":   {"never", protocol.Position{Epoch: 1, Generation: 1}, []string{string(protocol.DesiredRefused), fleet.JournalGap, string(protocol.SnapshotEvent)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := open(t), t.Context()
			if _, _, err := s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("a", "1", "c1")}, fleet.SiteData{}); err != nil {
				t.Fatal(err)
			}
			j := &journal{epoch: "e"}
			held := protocol.Held{Position: tt.at, Digest: "sha256:x"}
			for range 6 {
				j.add(protocol.LOStarted, "", protocol.Presence{V: 1, Online: true})
			}
			j.add(protocol.DesiredRefused, "", protocol.Adopted{V: 1, Position: protocol.Position{Epoch: 1, Generation: 1}, Held: held, Reason: "older", Overtaken: true})
			j.add(protocol.SnapshotEvent, "", protocol.Snapshot{V: 1, Lost: 4})
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 2, 0))
			before := testpart.Must[int64](t)(s.LastEvent(ctx))
			if err := s.SetSitePresence(ctx, "home", protocol.Presence{V: 1, Online: true, Session: "1", Held: held}); err != nil {
				t.Fatal(err)
			}
			if tt.raise == "before" {
				testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held, fleet.Raise{Followed: true}))
			}
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, 7, 7, 6))
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, 8, 8, 0))
			if tt.raise == "after" {
				testpart.Must[protocol.SiteDesired](t)(s.Raise(ctx, "home", held, fleet.Raise{Followed: true}))
			}
			var kinds []string
			for _, e := range testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Site: "home", After: before})) {
				if e.Kind == fleet.SiteOnline {
					continue
				}
				kinds = append(kinds, e.Kind)
				if e.Kind == fleet.DesiredEpochRaised && !strings.Contains(e.Message, tt.text) {
					t.Errorf("the event of the raise says %q, want it to say %q", e.Message, tt.text)
				}
			}
			slices.Sort(kinds)
			if want := slices.Sorted(slices.Values(tt.events)); !slices.Equal(kinds, want) {
				t.Errorf("events %v, want %v", kinds, want)
			}
			if site := testpart.Must[fleet.Site](t)(s.Site(ctx, "home")); site.EventsLost != 4 {
				t.Errorf("%d events count as lost, want 4", site.EventsLost)
			}
			// The next gap is another thing.
			for range 4 {
				j.add(protocol.LOStarted, "", protocol.Presence{V: 1, Online: true})
			}
			at := testpart.Must[int64](t)(s.LastEvent(ctx))
			testpart.Must[protocol.Ack](t)(j.send(ctx, s, 11, 11, 10))
			if got := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Site: "home", After: at, Kinds: []string{fleet.JournalGap}})); len(got) != 1 {
				t.Errorf("%d events of a further gap, want 1", len(got))
			}
		})
	}
}
