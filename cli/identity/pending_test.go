package identity_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
)

// TestPending lists the nodes that wait, and approves and rejects them by what is shown of their keys.
func TestPending(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	var all []fleet.PendingNode
	for i := range 600 { // of sites before the others
		all = append(all, fleet.PendingNode{Site: "plant0", Node: "g0", Key: fmt.Sprintf("%064x", i)})
	}
	all = append(all, fleet.PendingNode{Site: "plant1", Node: "g1", Key: first, Device: "S1", Remote: "10.0.0.5:1"}, fleet.PendingNode{Site: "plant2", Node: "g1", Key: second, Taken: true})
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			page, site, begins := identityapi.Page[fleet.PendingNode]{Items: []fleet.PendingNode{}}, r.URL.Query().Get("site"), r.URL.Query().Get("key")
			for _, p := range all {
				if (site == "" || site == string(p.Site)) && strings.HasPrefix(p.Key, begins) {
					page.Total++
					if page.Total <= 500 {
						page.Items = append(page.Items, p)
					}
				}
			}
			_ = json.NewEncoder(w).Encode(page)
			return
		}
		body, _ := io.ReadAll(r.Body)
		asked = r.URL.Path + " " + strings.TrimSpace(string(body))
		var in struct{ Key string }
		_ = json.Unmarshal(body, &in)
		_ = json.NewEncoder(w).Encode(fleet.Decided{Site: "plant1", Node: "g1", Key: in.Key, Approved: strings.HasSuffix(r.URL.Path, "approve"), Until: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)})
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		command func(*command.Env) *cobra.Command
		args    []string
		asked   string
		says    string // in the output, or in the error
	}{
		{identitycmd.NodePending, nil, "", "and 102 more"},
		{identitycmd.NodePending, []string{"plant2"}, "", "another key has the name"},
		{identitycmd.NodePending, []string{"plant1"}, "", "a1a1a1a1a1a1a1a1"},
		{identitycmd.NodePending, []string{"No Site"}, "", `"No Site"`},
		{identitycmd.NodeApprove, []string{"plant1/g1", first[:16]}, `/api/v1/nodes/plant1/g1/approve {"key":"` + first + `","replace":false,"seconds":604800}`, "the key a1a1a1a1a1a1a1a1 of plant1/g1 is approved: it may enrol until 2027-01-02T03:04:05Z"},
		{identitycmd.NodeApprove, []string{"plant1/g1", second, "--replace", "--ttl", "1h"}, `/api/v1/nodes/plant1/g1/approve {"key":"` + second + `","replace":true,"seconds":3600}`, "is approved"},
		{identitycmd.NodeReject, []string{"plant1/g1", strings.ToUpper(first[:20])}, `/api/v1/nodes/plant1/g1/reject {"key":"` + first + `","seconds":604800}`, "the key a1a1a1a1a1a1a1a1 of plant1/g1 is rejected: it is refused until 2027"},
		{identitycmd.NodeApprove, []string{"plant1/g1", second[:16]}, "", "no node plant1/g1 with a key b2b2b2b2b2b2b2b2 waits"},
		{identitycmd.NodeApprove, []string{"plant1/g1", first[:15]}, "", "want 16 to 64 hex digits"},
		{identitycmd.NodeApprove, []string{"plant1/g1", "g1g1g1g1g1g1g1g1"}, "", "want 16 to 64 hex digits"},
		{identitycmd.NodeReject, []string{"g1", first[:16]}, "", "want SITE/NODE"},
	} {
		asked = ""
		var out bytes.Buffer
		cmd := c.command(&command.Env{URL: server.URL, Format: "table", Timeout: time.Minute, Out: &out, Err: &out})
		cmd.SetArgs(c.args)
		if c.args == nil {
			cmd.SetArgs([]string{})
		}
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		text := ""
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			text = err.Error()
		}
		if text += out.String(); !strings.Contains(text, c.says) || asked != c.asked {
			t.Errorf("%s %q: %q, asked %q; want %q, asked %q", cmd.Name(), c.args, text, asked, c.says, c.asked)
		}
		if cmd.Name() == "pending" && len(c.args) == 1 && c.args[0] == "plant1" && (strings.Contains(text, "plant2") || strings.Contains(text, "more")) {
			t.Errorf("plant1 alone: %q", text)
		}
	}
}
