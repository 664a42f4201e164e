package cli

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/protocol"
)

func TestProposals(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	p := proposal.Proposal{
		ID: "0a1b2c3d", Kind: proposal.Removals, Commit: "0123456789abcdef", State: proposal.Open, Held: 2, Sites: 1, Deployments: 3, Nodes: 9, OpenedAt: at,
		Effects: []proposal.Effect{{
			Site: "berlin", Deployment: "hello", App: "hello", AppVersion: "1.0.0", Cause: proposal.Many, State: proposal.Open,
			Nodes: []protocol.NodeID{"a", "b", "c", "d", "e", "f", "g"}, NodeCount: 8,
		}, {Site: "berlin", Deployment: "meter", Cause: proposal.Rewritten, State: proposal.Open, Nodes: []protocol.NodeID{"a"}, NodeCount: 1}},
	}
	listed := p
	listed.Effects = nil
	confirmed := p
	confirmed.State, confirmed.Held = proposal.Confirmed, 0
	s := serve(t, map[string]any{
		"GET /proposals?limit=1000&state=open": map[string]any{"items": []proposal.Proposal{listed}},
		"GET /proposals?limit=1000":            map[string]any{"items": []proposal.Proposal{}},
		"GET /proposals/0a1b2c3d":              p,
		"POST /proposals/0a1b2c3d/confirm":     confirmed,
		"POST /proposals/0a1b2c3d/withdraw":    confirmed,
		"POST /sites/berlin/accept-position":   api.AcceptedPosition{Site: "berlin", Position: protocol.Position{Epoch: 9, Generation: 4}},
		"GET /status":                          api.Status{Version: "1", Proposals: 1, Held: 2},
	})
	wantRun(t, s.URL, "proposal list", table("PROPOSAL KIND STATE HELD SITES PLACEMENTS COMMIT OPENED CLOSED BY",
		"0a1b2c3d removals open 2 1 9 0123456789ab 2026-03-01 12:00:00 - -"), "", exitOK)
	wantRun(t, s.URL, "proposal list --state all", table("PROPOSAL KIND STATE HELD SITES PLACEMENTS COMMIT OPENED CLOSED BY"), "", exitOK)
	wantRun(t, s.URL, "proposal show 0a1b2c3d", table("Proposal: 0a1b2c3d", "Kind: removals", "State: open", "Commit: 0123456789abcdef",
		"Opened: 2026-03-01 12:00:00", "Effects: 3 deployments at 1 sites, in 9 places (a node counts for each deployment that it runs); 2 wait", "",
		"SITE DEPLOYMENT APP STATE NODES CAUSE",
		"berlin hello hello 1.0.0 open a,b,c,d,e and 3 more "+string(proposal.Many),
		"berlin meter - open a "+string(proposal.Rewritten), "and 1 more"), "", exitOK)
	wantRun(t, s.URL, "proposal confirm 0a1b2c3d", table("proposal 0a1b2c3d is confirmed: 3 deployments are removed"), "", exitOK)
	wantRun(t, s.URL, "proposal withdraw 0a1b2c3d", table("proposal 0a1b2c3d is withdrawn: 3 deployments stay as they are"), "", exitOK)
	wantRun(t, s.URL, "proposal confirm none", "", "no answer for POST /api/v1/proposals/none/confirm\n", exitNotFound)
	wantRun(t, s.URL, "site accept-position berlin", table("berlin: the CO goes on at position 9.4"), "", exitOK)
	wantRun(t, s.URL, "co backup", "", "colony co backup got 0 arguments, want: colony co backup DIRECTORY (see colony co backup --help)\n", exitUsage)
	wantRun(t, s.URL, "co backup dir", "", "required flag(s) \"config\" not set (see colony co backup --help)\n", exitUsage)
	wantRun(t, s.URL, "co restore dir --config /none.yaml", "", "read configuration: open /none.yaml: no such file or directory\n", exitUsage)
	wantRun(t, s.URL, "status", table("Version: 1", "Sites: 0, 0 online", "Nodes: 0, 0 online", "Apps: 0", "Removals held: 2, by 1 proposals: colony proposal list", "",
		"PART STATE"), "", exitOK)
}
