package identity_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
	"github.com/colonyfleet/colony/co/fleet"
)

// TestRevoke revokes a site's LO and a node at a server, and prints what was revoked and until when.
func TestRevoke(t *testing.T) {
	t.Parallel()
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path
		out := fleet.Revocation{Site: "plant1", Until: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)}
		if strings.Contains(r.URL.Path, "/nodes/") {
			out.Node = "g1"
		}
		if strings.Contains(r.URL.Path, "unknown") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"detail": "no machine is known to be enrolled as unknown"}`))
			return
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		what    string
		command func(*command.Env) *cobra.Command
		arg     string
		asked   string // "": nothing
		says    string // in the output, or in the error
	}{
		{"a site", identitycmd.SiteRevoke, "plant1", "POST /api/v1/sites/plant1/revoke", "the LO of site plant1 is revoked: its key is on the list of its site until 2027-01-02T03:04:05Z"},
		{"a node", identitycmd.NodeRevoke, "plant1/g1", "POST /api/v1/nodes/plant1/g1/revoke", "node plant1/g1 is revoked"},
		{"an unknown site", identitycmd.SiteRevoke, "unknown", "POST /api/v1/sites/unknown/revoke", "no machine is known to be enrolled as unknown"},
		{"a node without its site", identitycmd.NodeRevoke, "g1", "", `"g1": want SITE/NODE`},
		{"a site alone", identitycmd.NodeRevoke, "plant1/", "", `want SITE/NODE`},
		{"too long a path", identitycmd.NodeRevoke, "plant1/g1/x", "", `want SITE/NODE`},
	} {
		asked = ""
		var out bytes.Buffer
		cmd := c.command(&command.Env{URL: server.URL, Format: "table", Timeout: time.Minute, Out: &out, Err: &out})
		cmd.SetArgs([]string{c.arg})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		text := ""
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			text = err.Error()
		}
		if text += out.String(); !strings.Contains(text, c.says) || asked != c.asked {
			t.Errorf("%s: %q, asked %q; want %q, asked %q", c.what, text, asked, c.says, c.asked)
		}
	}
}
