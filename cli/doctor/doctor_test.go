package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/cli/doctor/node"
	"github.com/colonyfleet/colony/co"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// statuses returns "check: status" for each finding, without the checks of the machine,
// which the test does not choose.
func statuses(r doctor.Report) (out []string) {
	for _, f := range r.Findings {
		if f.Check != "clock" && f.Check != "kernel" && f.Check != "disk" {
			out = append(out, fmt.Sprintf("%s: %s", f.Check, f.Status))
		}
	}
	return out
}

func wantStatuses(t *testing.T, what string, r doctor.Report, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, statuses(r)); diff != "" {
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Error(err)
		}
		t.Errorf("%s (-want +got):\n%s\n%s", what, diff, text.String())
	}
}

// TestLO checks the LO of a site before it runs, and while it runs without its CO.
func TestLO(t *testing.T) {
	t.Parallel()
	co, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "plant", filepath.Join(t.TempDir(), "lo"), "127.0.0.1:0", "127.0.0.1:0", slog.New(slog.DiscardHandler)
	o.CO.MQTT, o.CO.HTTP, o.CO.MaxBackoff = []string{"tcp://" + co.Addr().String()}, "", time.Second
	wantStatuses(t, "before it runs", doctor.Run(t.Context(), "lo", "1", LO(o)),
		"configuration: ok", "permissions: ok", "identity: warn", "ports: ok", "ports: ok", "co: ok", "backlog: ok", "damage: ok")

	l, err := lo.New(o)
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, l)
	if err := co.Close(); err != nil {
		t.Fatal(err)
	}
	o.MQTT, o.HTTP, o.CO.HTTP = l.MQTTAddr(), l.HTTPAddr(), "http://"+co.Addr().String()
	if err := os.WriteFile(filepath.Join(o.StateDir, "state", "site.json.damaged-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := doctor.Run(t.Context(), "lo", "1", LO(o))
	wantStatuses(t, "while it runs without its CO", r,
		"configuration: ok", "permissions: ok", "identity: warn", "ports: ok", "ports: ok", "co: fail", "api: fail", "registry: fail", "backlog: warn", "backlog: ok", "damage: warn")
	if r.Status != doctor.Fail || r.Err() == nil {
		t.Errorf("status %s, error %v; want fail and an error", r.Status, r.Err())
	}

	o.HTTP = "" // it cannot be asked, and holds its lock
	wantStatuses(t, "while it runs without HTTP", doctor.Run(t.Context(), "lo", "1", LO(o)),
		"configuration: ok", "permissions: ok", "identity: warn", "ports: ok", "co: fail", "api: fail", "registry: fail", "backlog: ok", "damage: warn")
}

// TestStatusOfLO judges what a running LO says of itself.
func TestStatusOfLO(t *testing.T) {
	t.Parallel()
	s := lo.Status{
		Journal:   journal.Stats{Depth: 3, Bytes: 60, MaxBytes: 100, OldestUnixMillis: 1000},
		Data:      []data.StreamStatus{{Rule: "temps", Queued: 9, Bytes: 96, MaxBytes: 100}},
		DataFault: "two rules of one name",
		Site:      "plant", COAheadSeconds: 60 * 24 * 3600, NotEnrolled: []protocol.NodeID{"gw-2"},
		Nodes: []nodestatus.NodeStatus{{Node: "gw-1", Problem: "2 gateways use this name"}, {Node: "gw-2"}},
	}
	var got []string
	for _, f := range judgeStatus(s, time.UnixMilli(61_000)) {
		got = append(got, string(f.Status)+" "+f.Message)
	}
	want := []string{
		"warn the LO is not connected to the CO",
		"warn the clock of the CO is 1440h0m0s ahead of this machine's: one of the two is wrong",
		"warn the journal: 3 events wait for the CO, the oldest for 1m0s, 60 B of 100 B in use",
		"fail the queue of data rule temps: 9 messages wait for the CO, 96 B of 100 B in use",
		"fail the data rules are not wholly in force: two rules of one name",
		"warn 1 nodes have no certificate, and are not let in: gw-2",
		"fail node gw-1: 2 gateways use this name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// TestCO checks a CO with a real database and repo, and one whose are away.
func TestCO(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote, o.Logger = filepath.Join(dir, "co"), pgtest.New(t), "127.0.0.1:0", "127.0.0.1:0", remote, slog.New(slog.DiscardHandler)
	wantStatuses(t, "before it runs", doctor.Run(t.Context(), "co", "1", CO(o)),
		"configuration: ok", "permissions: ok", "identity: warn", "certificate: ok", "database: ok", "git: ok", "git: warn", "ports: ok", "ports: ok", "sites: ok", "pending: ok", "revocations: ok", "parts: ok", "damage: ok")

	o.DatabaseURL, o.Git.Remote, o.Git.CredentialFile = "postgres://nobody:secret@127.0.0.1:1/x", filepath.Join(dir, "none.git"), filepath.Join(dir, "none")
	o.Broker.URLs = []string{"tcp://127.0.0.1:1"}
	r := doctor.Run(t.Context(), "co", "1", CO(o))
	wantStatuses(t, "with nothing that it needs", r,
		"configuration: ok", "permissions: ok", "permissions: fail", "identity: ok", "certificate: ok", "database: fail", "git: ok", "git: fail", "broker: fail", "ports: ok", "sites: ok", "pending: ok", "revocations: ok", "parts: ok", "damage: ok")
	for _, f := range r.Findings {
		if strings.Contains(f.Message, "secret") {
			t.Errorf("%s shows the password: %s", f.Check, f.Message)
		}
	}
	if judgeServer(130_004, "13.4").Status != doctor.Warn {
		t.Error("PostgreSQL 13 is not warned of")
	}
}

// TestSitesThatAreNotEnrolled names the first of them.
func TestSitesThatAreNotEnrolled(t *testing.T) {
	t.Parallel()
	if f := judgeUnenrolled(identityapi.Page[fleet.Unenrolled]{}); f.Status != doctor.OK {
		t.Errorf("none: %+v", f)
	}
	list := identityapi.Page[fleet.Unenrolled]{Total: 12}
	for i := range 12 {
		list.Items = append(list.Items, fleet.Unenrolled{Site: protocol.SiteID(fmt.Sprintf("plant%02d", i))})
	}
	if f := judgeUnenrolled(list); f.Status != doctor.Warn || !strings.Contains(f.Message, "12 sites are not enrolled") || !strings.HasSuffix(f.Message, ": plant00, plant01, plant02, plant03, plant04, plant05, plant06, plant07, plant08, plant09, …") {
		t.Errorf("twelve: %+v", f)
	}
}

// TestNodesThatWait names the nodes that wait to be approved, with their keys.
func TestNodesThatWait(t *testing.T) {
	t.Parallel()
	if f := judgeWaiting(identityapi.Page[fleet.PendingNode]{}); f.Status != doctor.OK {
		t.Errorf("none: %+v", f)
	}
	list := identityapi.Page[fleet.PendingNode]{Total: 1, Items: []fleet.PendingNode{{Site: "plant1", Node: "g1", Key: strings.Repeat("ab", 32)}}}
	if f := judgeWaiting(list); f.Status != doctor.Warn || !strings.HasSuffix(f.Message, "1 nodes without a join token wait to be approved: plant1/g1 (key abababababababab)") {
		t.Errorf("one: %+v", f)
	}
}

// TestSitesWithoutTheirList names the sites that do not go by their lists of revoked keys.
func TestSitesWithoutTheirList(t *testing.T) {
	t.Parallel()
	if f := judgePending(identityapi.Page[fleet.PendingRevocation]{}); f.Status != doctor.OK {
		t.Errorf("none: %+v", f)
	}
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	list := identityapi.Page[fleet.PendingRevocation]{Total: 2, Items: []fleet.PendingRevocation{{Site: "plant1", Number: 7, Made: made, Online: true}, {Site: "plant2", Number: 9, Made: made}}}
	if f := judgePending(list); f.Status != doctor.Warn || !strings.HasSuffix(f.Message, "2 sites do not go by their list of revoked keys yet: plant1 (list 7, since 2026-01-02T03:04:05Z), plant2 (list 9, since 2026-01-02T03:04:05Z, offline)") {
		t.Errorf("two: %+v", f)
	}
}

// TestCommand runs colony doctor on a file that is not valid and on one that is not there:
// the report says so, in both formats, and the command fails.
func TestCommand(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lo.yaml")
	if err := os.WriteFile(path, []byte("site: plant\nspeed: 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"co", "lo", "en"} {
		for file, want := range map[string]string{path: "speed", path + "x": "no such file"} {
			var got []doctor.Report
			cmd := Command("1", func(r doctor.Report) error { got = append(got, r); return nil })
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs([]string{tier, "--config", file})
			if err := cmd.ExecuteContext(t.Context()); err == nil {
				t.Errorf("doctor %s --config %s succeeds", tier, file)
			}
			if len(got) != 1 || got[0].Tier != tier || len(got[0].Findings) != 1 || got[0].Findings[0].Status != doctor.Fail || !strings.Contains(got[0].Findings[0].Message, want) {
				t.Errorf("doctor %s --config %s: %+v, want one failure that says %q", tier, file, got, want)
			}
		}
	}
}

// TestDocumented compares the checks with docs/operations.md.
func TestDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for tier, checks := range map[string][]doctor.Check{"CO": CO(co.DefaultOptions()), "LO": LO(lo.DefaultOptions()), "EN": node.Checks(en.DefaultOptions())} {
		seen := map[string]bool{}
		for _, c := range checks {
			if seen[c.Name] {
				t.Errorf("%s has two checks %q", tier, c.Name)
			}
			seen[c.Name] = true
			row := "| `" + c.Name + "` |"
			at := strings.Index(string(page), row)
			if at < 0 {
				t.Errorf("docs/operations.md lacks the check %s of %s", c.Name, tier)
				continue
			}
			if line, _, _ := strings.Cut(string(page[at+len(row):]), "|"); !strings.Contains(line, tier) {
				t.Errorf("docs/operations.md does not say that %s has the check %s:%s", tier, c.Name, line)
			}
		}
	}
}

// TestJSON holds the keys of the report, which programs read.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := doctor.Run(t.Context(), "lo", "1", []doctor.Check{{Name: "disk", Run: func(context.Context) []doctor.Finding {
		return []doctor.Finding{doctor.Failf("free some space", "full")}
	}}})
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"tier": "lo", "version": "1", "status": "fail",
		"findings": []any{map[string]any{"check": "disk", "status": "fail", "message": "full", "fix": "free some space"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
