package proposal_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/protocol"
)

// remove returns the removals of n deployments of a site by a commit.
func remove(site, commit string, n int) []proposal.Removal {
	var all []proposal.Removal
	for i := range n {
		all = append(all, proposal.Removal{
			Site: protocol.SiteID(site), Deployment: protocol.DeploymentName(fmt.Sprintf("d%d", i)), Commit: commit,
		})
	}
	return all
}

func TestHold(t *testing.T) {
	t.Parallel()
	confirmed := func(list []proposal.Removal) []proposal.Removal {
		for i := range list {
			list[i].Confirmed = true
		}
		return list
	}
	caused := func(cause proposal.Cause, list []proposal.Removal) []proposal.Removal {
		for i := range list {
			list[i].Cause = cause
		}
		return list
	}
	for _, tt := range []struct {
		name     string
		removals []proposal.Removal
		running  int // at each site
		held     int
		cause    proposal.Cause
	}{
		{"the only deployment of a site", remove("berlin", "c", 1), 1, 0, ""},
		{"one of three", remove("berlin", "c", 1), 3, 0, ""},
		{"two of nineteen", remove("berlin", "c", 2), 19, 2, proposal.Many},
		{"two of twenty: a tenth is not more than a tenth", remove("berlin", "c", 2), 20, 0, ""},
		{"all of a site", remove("berlin", "c", 5), 5, 5, proposal.Many},
		{"one of two sites each, which have no other", append(remove("berlin", "c", 1), remove("munich", "c", 1)...), 1, 2, proposal.Many},
		{"one of two large sites each", append(remove("berlin", "c", 1), remove("munich", "c", 1)...), 10, 0, ""},
		{"two commits that remove one each", append(remove("berlin", "c1", 1), remove("berlin", "c2", 1)...), 2, 0, ""},
		{"many, each by a commit that names it", confirmed(remove("berlin", "c", 5)), 5, 0, ""},
		{"one beside many that are confirmed", append(confirmed(remove("berlin", "c", 5)), remove("berlin", "c", 1)...), 6, 0, ""},
		{"one for which no node is left", caused(proposal.NoNode, remove("berlin", "c", 1)), 100, 1, proposal.NoNode},
		{"one of a history that was replaced", caused(proposal.Rewritten, remove("berlin", "c", 1)), 1, 1, proposal.Rewritten},
		{"one for which no node is left, confirmed", confirmed(caused(proposal.NoNode, remove("berlin", "c", 1))), 1, 0, ""},
	} {
		running := map[protocol.SiteID]int{"berlin": tt.running, "munich": tt.running}
		held := proposal.DefaultLimits.Hold(tt.removals, running)
		if len(held) != tt.held {
			t.Errorf("%s: %d are held, want %d", tt.name, len(held), tt.held)
		}
		for i, cause := range held {
			if cause != tt.cause {
				t.Errorf("%s: removal %d is held because it %q, want %q", tt.name, i, cause, tt.cause)
			}
		}
	}
	var everywhere []proposal.Removal
	running := map[protocol.SiteID]int{}
	for i := range 11 {
		site := fmt.Sprint("site-", i)
		everywhere, running[protocol.SiteID(site)] = append(everywhere, remove(site, "c", 1)...), 100
	}
	for n, want := range map[int]int{10: 0, 11: 11} {
		if held := proposal.DefaultLimits.Hold(everywhere[:n], running); len(held) != want {
			t.Errorf("one of 100 at each of %d sites: %d are held, want %d", n, len(held), want)
		}
	}
	if held := (proposal.Limits{Percent: 10, Count: 1}).Hold(everywhere, running); len(held) != 0 {
		t.Errorf("without a limit of sites %d are held", len(held))
	}
	if held := (proposal.Limits{Percent: 100, Count: 1}).Hold(remove("berlin", "c", 5), map[protocol.SiteID]int{"berlin": 5}); len(held) != 0 {
		t.Errorf("with a limit of 100 percent %d are held", len(held))
	}
}

func TestConfirms(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		proposal.ConfirmLine("berlin", "hello"): true,
		"colony-confirm:berlin/*":               true,
		"Colony-Confirm: */*":                   false,
		"Colony-Confirm: berlin/hello2":         false,
		"Colony-Confirm: munich/hello":          false,
		"Colony-Confirm: berlin":                false,
		"Signed-off-by: berlin/hello":           false,
	} {
		if got := proposal.Confirms([]string{"Other: x", line}, "berlin", "hello"); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
}

func TestRemovesVolumes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		proposal.VolumesLine("berlin", "hello"): true,
		"Colony-Remove-Volumes: berlin/*":       false, // each is named
		"Colony-Remove-Volumes: berlin/other":   false,
		proposal.ConfirmLine("berlin", "hello"): false,
	} {
		if got := proposal.RemovesVolumes([]string{line}, "berlin", "hello"); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
}

func TestID(t *testing.T) {
	t.Parallel()
	got := []string{
		proposal.ID(proposal.Removals, "c1", 0), proposal.ID(proposal.Removals, "c1", 1), proposal.ID(proposal.Removals, "c2", 0),
	}
	// They stand in histories of repos: another rule for ids would make them mean others.
	if d := cmp.Diff([]string{"3dcb2641", "5677f77d", "ba2c6555"}, got); d != "" {
		t.Error(d)
	}
}
