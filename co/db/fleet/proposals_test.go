package fleetdb_test

import (
	"testing"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// TestDecidedBetweenSites decides on a proposal after the first of its sites was recorded: the
// second one can still be decided, and what was decided stays.
func TestDecidedBetweenSites(t *testing.T) {
	t.Parallel()
	for _, first := range []proposal.State{proposal.Confirmed, proposal.Withdrawn} {
		t.Run(string(first), func(t *testing.T) {
			t.Parallel()
			pool, ctx := openDB(t), t.Context()
			s, proposals := fleetdb.New(pool), proposaldb.New(pool)
			save := func(site protocol.SiteID, held bool) {
				t.Helper()
				d := want("a", "1", "c1")
				if held {
					d.Hold = fleet.Hold{Proposal: "p", Commit: "c2", Cause: string(proposal.Many)}
				}
				if _, _, err := s.SaveDesired(ctx, site, "c2", []fleet.Desired{d}, fleet.SiteData{}); err != nil {
					t.Fatal(err)
				}
			}
			save("berlin", false)
			save("munich", false)
			save("berlin", true)
			decide := map[proposal.State]func() (proposal.Proposal, error){
				proposal.Confirmed: func() (proposal.Proposal, error) { return proposals.Confirm(ctx, "p", "ann") },
				proposal.Withdrawn: func() (proposal.Proposal, error) { return proposals.Withdraw(ctx, "p", "ann") },
			}
			testpart.Must[proposal.Proposal](t)(decide[first]())
			save("berlin", true) // nothing new is held of it
			if p := testpart.Must[proposal.Proposal](t)(proposals.Proposal(ctx, "p")); p.State != first || p.ClosedBy != "ann" {
				t.Errorf("the proposal is %s by %q after the same was recorded again, want %s by ann", p.State, p.ClosedBy, first)
			}
			save("munich", true)
			p := testpart.Must[proposal.Proposal](t)(proposals.Proposal(ctx, "p"))
			if p.State != proposal.Open || p.ClosedBy != "" || p.ClosedAt != nil || p.Held != 1 {
				t.Errorf("the proposal is %s, holds %d; want it open, with munich held: %+v", p.State, p.Held, p)
			}
			if p = testpart.Must[proposal.Proposal](t)(proposals.Confirm(ctx, "p", "bob")); p.State != proposal.Confirmed {
				t.Errorf("the proposal is %s after it was confirmed", p.State)
			}
			states := map[protocol.SiteID]proposal.State{}
			for _, e := range p.Effects {
				states[e.Site] = e.State
			}
			if states["berlin"] != first || states["munich"] != proposal.Confirmed {
				t.Errorf("effects are %v, want berlin %s and munich confirmed", states, first)
			}
		})
	}
}

// TestCauseOfAHold has the reason of a removal that is held become another one: the proposal says the present one, and no event is repeated.
func TestCauseOfAHold(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s, proposals := fleetdb.New(pool), proposaldb.New(pool)
	for _, cause := range []proposal.Cause{"", proposal.Unheard, proposal.SetBack} {
		d := want("a", "1", "c1")
		if cause != "" {
			d.Hold = fleet.Hold{Proposal: "p", Commit: "c2", Cause: string(cause)}
		}
		if _, _, err := s.SaveDesired(ctx, "berlin", "c2", []fleet.Desired{d}, fleet.SiteData{}); err != nil {
			t.Fatal(err)
		}
	}
	if list := testpart.Must[[]fleet.Standing](t)(proposals.Standing(ctx)); len(list) != 1 || list[0].Cause != string(proposal.SetBack) || !list[0].Open {
		t.Errorf("held is %+v, want a, because the branch was set back", list)
	}
	if events := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Kinds: []string{fleet.ProposalOpened}})); len(events) != 1 {
		t.Errorf("%d events of it, want one", len(events))
	}
}
