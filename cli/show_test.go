package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// table is what a command prints: one line each, runs of spaces as one.
func table(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

// wantRun checks all that a command line prints, and its exit code. Runs of spaces
// count as one.
func wantRun(t *testing.T, server, line, stdout, stderr string, code int) {
	t.Helper()
	gotOut, gotErr, gotCode := run(t, server, strings.Fields(line)...)
	if gotCode != code {
		t.Errorf("colony %s: exit code %d, want %d", line, gotCode, code)
	}
	if diff := cmp.Diff(spaces(stdout), spaces(gotOut)); diff != "" {
		t.Errorf("colony %s: standard output (-want +got):\n%s", line, diff)
	}
	if diff := cmp.Diff(spaces(stderr), spaces(gotErr)); diff != "" {
		t.Errorf("colony %s: standard error (-want +got):\n%s", line, diff)
	}
}

// spaces makes one space of several, and removes those at the end of a line.
func spaces(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func past(d time.Duration) *time.Time {
	at := time.Now().Add(-d - time.Second)
	return &at
}

func TestShowApps(t *testing.T) {
	t.Parallel()
	v := fleet.AppVersion{
		AppID: "hello", Version: "1.1.0", Name: "Hello", Description: "Greets", Source: "file:///apps", Digest: "sha256:abc", ImportedAt: *past(2 * time.Hour),
		Stage: fleet.Retired, StageReason: "a hole", StageSince: past(time.Hour),
		Profiles:   []fleet.Profile{{ID: "compose", Type: "compose", Components: []fleet.Component{{Name: "web", Repository: "oci://r/hello", Revision: "1.1.0"}}}},
		Parameters: []fleet.Parameter{{Name: "port", Default: 8088, Immutable: true}, {Name: "addressee", Description: "who is greeted"}},
	}
	s := serve(t, map[string]any{
		"GET /apps?": map[string]any{"items": []fleet.App{
			{ID: "hello", Name: "Hello", Latest: "1.1.0", Versions: []string{"1.1.0", "1.0.0"}, Description: "Greets", Stages: map[string]fleet.Stage{"1.0.0": fleet.Deprecated}},
		}, "next": "c"},
		"GET /apps?cursor=c":             map[string]any{"items": []fleet.App{{ID: "meter", Latest: "2.0.0"}}},
		"GET /apps/hello":                fleet.App{ID: "hello", Latest: "1.1.0"},
		"GET /apps/hello/versions/1.1.0": v,
		"GET /deployments?app=hello&limit=50&version=1.1.0": map[string]any{"items": []fleet.Deployment{{
			Site: "home", Name: "greeter", State: lifecycle.Installed, Observation: fleet.Observation{Installed: 2, DesiredNodes: 3, Since: past(time.Hour)},
		}}, "next": "c"},
	})
	wantRun(t, s.URL, "app list", table("APP NAME LATEST VERSIONS DESCRIPTION", "hello Hello 1.1.0 1.1.0,1.0.0 (deprecated) Greets", "meter - 2.0.0 - -"), "", exitOK)
	shown := table("App: hello", "Version: 1.1.0", "Name: Hello", "Description: Greets", "Source: file:///apps", "Digest: sha256:abc", "Imported: 2h ago", "Stage: retired, since 1h: a hole", "",
		"PROFILE TYPE COMPONENT SOURCE", "compose compose web oci://r/hello:1.1.0", "",
		"PARAMETER DEFAULT IMMUTABLE DESCRIPTION", "port 8088 yes -", "addressee - - who is greeted", "",
		"DEPLOYMENT STATE NODES SINCE", "home/greeter INSTALLED 2 of 3 1h", "and more: colony deployment list --app hello --version 1.1.0")
	wantRun(t, s.URL, "app show hello", shown, "", exitOK)
	wantRun(t, s.URL, "app show hello@1.1.0", shown, "", exitOK)
	wantRun(t, s.URL, "app show none", "", "no answer for GET /api/v1/apps/none\n", exitNotFound)
}

// TestStages changes the stage of a version.
func TestStages(t *testing.T) {
	t.Parallel()
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var change api.StageChange
		if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
			t.Error(err)
		}
		asked = append(asked, fmt.Sprintf("%s %s %s %q", r.Method, r.URL.Path, change.Stage, change.Reason))
		_ = json.NewEncoder(w).Encode(fleet.AppVersion{AppID: "hello", Version: "1.0.0", Stage: change.Stage})
	}))
	defer s.Close()
	wantRun(t, s.URL, "app deprecate hello@1.0.0 --reason old", "hello@1.0.0: deprecated\n", "", exitOK)
	wantRun(t, s.URL, "app retire hello@1.0.0", "hello@1.0.0: retired\n", "", exitOK)
	wantRun(t, s.URL, "app activate hello@1.0.0", "hello@1.0.0: active\n", "", exitOK)
	wantRun(t, s.URL, "app retire hello", "", "\"hello\": want APP@VERSION\n", exitUsage)
	const path = "PATCH /api/v1/apps/hello/versions/1.0.0 "
	if diff := cmp.Diff([]string{path + `deprecated "old"`, path + `retired ""`, path + `active ""`}, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestImportApps imports a directory with one good package and one that is refused.
func TestImportApps(t *testing.T) {
	t.Parallel()
	var source string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method+" "+r.URL.Path != "POST /api/v1/apps" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		source = body["source"]
		_ = json.NewEncoder(w).Encode(api.ImportAnswer{Results: []api.ImportResult{
			{Path: "good", App: "hello", Version: "1.0.0", Outcome: "imported", Warnings: []string{"the image was not checked"}},
			{Path: "bad", Outcome: "refused", Problems: []api.Problem{{Path: "metadata.id", Line: 3, Message: "missing"}, {Path: "x", Message: "unknown"}}},
		}})
	}))
	defer s.Close()
	dir := t.TempDir()
	rows := table("PACKAGE APP VERSION RESULT", "good hello 1.0.0 imported", "bad - - refused")
	wantRun(t, s.URL, "app import "+dir, rows,
		table("warning: good: the image was not checked", "bad: not imported", "line 3: metadata.id: missing", "x: unknown"), exitUsage)
	if source != dir {
		t.Errorf("source %q, want the absolute path of the directory %q", source, dir)
	}
	wantRun(t, s.URL, "app remove hello", "", "\"hello\": want APP@VERSION\n", exitUsage)
	wantRun(t, s.URL, "app import oci://r/apps:1", rows,
		table("warning: good: the image was not checked", "bad: not imported", "line 3: metadata.id: missing", "x: unknown"), exitUsage)
	if source != "oci://r/apps:1" {
		t.Errorf("source %q, want oci://r/apps:1", source)
	}
}

func TestShowNodes(t *testing.T) {
	t.Parallel()
	n := fleet.Node{
		Site: "plant", ID: "gw1", State: "online", Online: true, ChangedAt: past(3 * time.Minute), ReportedAt: past(time.Minute), Version: "0.1.0", Labels: map[string]string{"role": "gateway", "line": "1"},
		Inventory: &protocol.Inventory{
			Hostname: "gw1.plant", OS: "Debian 13", Kernel: "6.12", Architecture: "arm64", Vendor: "Acme", Model: "Box", CPUModel: "A72", Cores: 4,
			MemoryBytes: 2 << 30, Engine: "containerd", EngineVersion: "2.1",
			Disks:       []protocol.Disk{{Mount: "/", Device: "/dev/mmcblk0p2", FileSystem: "ext4", TotalBytes: 16 << 30}},
			Interfaces:  []protocol.Interface{{Name: "eth0", Type: "ethernet", MAC: "00:11:22:33:44:55", Addresses: []string{"10.0.0.7/24"}}},
			Peripherals: []protocol.Peripheral{{Type: "serial", Path: "/dev/ttyUSB0"}},
			Volumes:     []protocol.Volume{{Deployment: "old", Name: "data", Bytes: 2 << 20}}, VolumeCount: 3,
			Unknown: []protocol.DeploymentName{"lost"}, Damaged: []string{"en/deployment hello"}, EngineFault: "no answer",
		},
	}
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	held := fleet.Node{Site: "dock", ID: "gw5", State: "online", Report: restriction.Report{
		Restrictions: []restriction.Restriction{
			{Kind: restriction.Drain, Reason: "new disk", Actor: "anna", ForMillis: 7_200_000, UntilMillis: at.UnixMilli()},
			{Kind: restriction.Hold, Reason: "a batch runs", Actor: "uid 1000", SetMillis: at.UnixMilli(), ForMillis: 7_200_000},
		},
		Waits: []restriction.Wait{{Deployment: "web", Why: "the update waits"}},
	}}
	s := serve(t, map[string]any{
		"GET /nodes?site=dock": map[string]any{"items": []fleet.Node{held, {Site: "dock", ID: "gw6", State: "online", Problem: "broken"}}},
		"GET /nodes/dock/gw5":  held,
		"GET /nodes?":          map[string]any{"items": []fleet.Node{n, {Site: "plant", ID: "gw2", State: "unknown"}}},
		"GET /nodes?site=quay": map[string]any{"items": []fleet.Node{{Site: "quay", ID: "gw3", State: "online", Problem: "2 gateways use this name"}, {Site: "quay", ID: "gw4", State: "online"}}},
		"GET /nodes?site=mill": map[string]any{"items": []fleet.Node{}},
		"GET /nodes/plant/gw1": n,
		"GET /nodes?label=line%3D1%2Crole%3Dgateway&q=gw&state=%21online&version=%210.1.0%2C0.2.0": map[string]any{"items": []fleet.Node{}},
		"GET /nodes?limit=1&state=offline&total=true":                                              map[string]any{"items": []fleet.Node{}, "total": 1000, "totalAtLeast": true},
		"GET /sites?limit=1&online=false&q=qu&total=true&version=1.0.0":                            map[string]any{"items": []fleet.Site{}, "total": 1},
		"GET /sites?": map[string]any{"items": []fleet.Site{{ID: "plant", Online: true, OnlineSince: past(50 * time.Hour), Nodes: 2, NodesOnline: 1, Deployments: 3, Generation: 7, Adopted: 6}, {ID: "quay", Nodes: 4, NodesUnknown: 4, ReportedAt: past(2 * time.Hour)}}},
		"GET /status": api.Status{Version: "0.1.0", Sites: 2, SitesOnline: 1, Nodes: 6, NodesOnline: 1, NodesUnknown: 4, Apps: 2, Deployments: map[string]int{"INSTALLED": 3}, Parts: map[string]string{"postgres": "ok", "deployments repo": "away"}},
	})
	head := "SITE NODE STATE SINCE REPORTED ARCH CORES MEMORY LABELS"
	wantRun(t, s.URL, "node list", table(head, "plant gw1 online 3m 1m arm64 4 2.0 GiB line=1,role=gateway", "plant gw2 unknown - - - - - -"), "", exitOK)
	wantRun(t, s.URL, "node list --site quay", table(head+" PROBLEM", "quay gw3 online - - - - - - 2 gateways use this name", "quay gw4 online - - - - - - -"), "", exitOK)
	wantRun(t, s.URL, "node list --site dock", table(head+" RESTRICTED PROBLEM", "dock gw5 online - - - - - - drained,held -", "dock gw6 online - - - - - - - broken"), "", exitOK)
	wantRun(t, s.URL, "node show dock/gw5", table("Node: dock/gw5", "State: online", "Site reported: never", "Restricted: drained by anna: new disk; until 2026-11-22 08:00:00",
		"Restricted: held by uid 1000: a batch runs; for 2h0m0s from 2026-11-22 08:00:00 on, by the clock of the site", "Waits: web: the update waits"), "", exitOK)
	wantRun(t, s.URL, "node list --site mill", table(head), "", exitOK)
	wantRun(t, s.URL, "node list --label line=1,role=gateway --state !ONLINE --version !0.1.0,0.2.0 --text gw", table(head), "", exitOK)
	wantRun(t, s.URL, "node list --state offline --total", "1000 or more\n", "", exitOK)
	wantRun(t, s.URL, "site list --online FALSE --version 1.0.0 --text qu --total", "1\n", "", exitOK)
	wantRun(t, s.URL, "site list --online false --version 1.0.0 --text qu --total -o yaml", "total: 1\n", "", exitOK)
	wantRun(t, s.URL, "node show plant/gw1", table("Node: plant/gw1", "State: online", "Since: 3m", "Site reported: 1m ago", "Agent: 0.1.0", "Labels: line=1,role=gateway",
		"Hostname: gw1.plant", "System: Debian 13", "Kernel: 6.12", "Architecture: arm64", "Hardware: Acme Box", "CPU: A72, 4 cores", "Memory: 2.0 GiB",
		"Engine: containerd 2.1", "Disk: / /dev/mmcblk0p2 ext4 16.0 GiB", "Interface: eth0 ethernet 00:11:22:33:44:55 10.0.0.7/24", "Peripheral: serial /dev/ttyUSB0",
		"Volume kept: data of old, which was removed: 2.0 MiB", "Volume kept: and 2 more", "Not recorded: lost: its containers stay until it is deployed once more under this name",
		"Damaged: en/deployment hello", "Engine fault: no answer"), "", exitOK)
	wantRun(t, s.URL, "site list", table("SITE STATE SINCE NODES DEPLOYMENTS ADOPTED REPORTED", "plant online 2d 1/2 3 6/7 -", "quay offline - ?/4 0 0/0 2h"), "", exitOK)
	wantRun(t, s.URL, "status", table("Version: 0.1.0", "Sites: 2, 1 online", "Nodes: 6, 1 online, 4 unknown (site offline)", "Apps: 2", "Deployments: INSTALLED=3", "",
		"PART STATE", "deployments repo away", "postgres ok"), "", exitOK)
}

func TestShowDeployments(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	d := fleet.Deployment{
		Site: "plant", Name: "hello", App: "hello", AppVersion: "1.1.0", State: lifecycle.Failed, Counts: map[lifecycle.State]int{lifecycle.Failed: 1},
		Commit: "0123456789abcdef", Problem: "no node fits", Rejected: map[string]string{"gw2": "no role"}, UpdatedAt: *past(time.Minute), Archived: true,
		Observation: fleet.Observation{
			Running: map[string]int{"1.0.0": 1}, DesiredNodes: 2, Since: past(time.Hour), ReportedAt: past(time.Minute),
			Generation: 7, ObservedGeneration: 6, Reason: "node gw1: crash_loop: it exits",
		},
		Nodes: []fleet.DeploymentNode{{
			Node: "gw1", State: lifecycle.Failed, AppVersion: "1.1.0", Attempt: 3, Code: "crash_loop", Message: "it exits", Waits: "the update waits",
			RunningVersion: "1.0.0", RetryAt: &at, UpdatedAt: *past(time.Minute), Since: *past(time.Hour),
			Components: []protocol.ComponentStatus{{Component: "web", Container: "app", State: "exited", ExitCode: 1, Restarts: 5}},
		}, {Node: "gw3", State: lifecycle.Failed, Attempt: 1, RetryAt: &at, UpdatedAt: *past(time.Minute), Since: *past(time.Hour)}},
	}
	s := serve(t, map[string]any{
		"GET /deployments?": map[string]any{"items": []fleet.Deployment{d}},
		"GET /deployments?app=hello&site=plant&state=FAILED":           map[string]any{"items": []fleet.Deployment{d}},
		"GET /deployments?q=lant%2Fh&state=%21INSTALLED&version=1.1.0": map[string]any{"items": []fleet.Deployment{d}},
		"GET /deployments/plant/hello":                                 d,
		"GET /deployments/plant/hello/history": api.History{
			Revisions:   []fleet.Revision{{Commit: "0123456789abcdef", Time: at, Author: "Ann", Message: "Deploy", AppVersion: "1.1.0"}},
			Transitions: []fleet.Transition{{Time: at, Node: "gw1", From: lifecycle.Installing, To: lifecycle.Failed, AppVersion: "1.1.0", Code: "crash_loop", Message: "it exits"}},
		},
		"POST /deployments/plant/hello/retry": d,
	})
	rows := table("SITE NAME APP DESIRED STATE NODES RUNNING ADOPTED SINCE REPORTED REASON",
		"plant hello hello 1.1.0 FAILED 0/2 1.0.0 6/7 1h 1m node gw1: crash_loop: it exits")
	wantRun(t, s.URL, "deployment list", rows, "", exitOK)
	wantRun(t, s.URL, "deployment list --site plant --app hello --state failed", rows, "", exitOK)
	wantRun(t, s.URL, "deployment list --state !installed --version 1.1.0 --text lant/h", rows, "", exitOK)
	wantRun(t, s.URL, "deployment show plant/hello", table("Deployment: plant/hello", "App: hello 1.1.0", "State: FAILED", "Since: 1h", "Reason: node gw1: crash_loop: it exits",
		"Nodes: 0/2 run the desired version", "Running: 1.0.0", "Generation: 7, the site has adopted 6", "Site: offline, last report 1m ago", "Commit: 0123456789abcdef", "Archived: yes", "Problem: no node fits", "",
		"NODE STATE PHASE VERSION DIGEST RUNNING ATTEMPT NEXT SINCE UPDATED REASON", "gw1 FAILED - 1.1.0 - 1.0.0 3 - 1h 1m crash_loop it exits; the update waits", "gw3 FAILED - - - - 1 2026-11-22 08:00:00 1h 1m -", "",
		"NODE COMPONENT CONTAINER STATE EXIT RESTARTS MESSAGE", "gw1 web app exited 1 5 -", "", "Not chosen:", "gw2: no role"), "", exitOK)
	wantRun(t, s.URL, "deployment history plant/hello", table("COMMIT TIME VERSION AUTHOR MESSAGE", "0123456789ab 2026-11-22 08:00:00 1.1.0 Ann Deploy", "",
		"TIME NODE FROM TO VERSION REASON", "2026-11-22 08:00:00 gw1 INSTALLING FAILED 1.1.0 crash_loop it exits"), "", exitOK)
	wantRun(t, s.URL, "deployment retry plant/hello", "plant/hello: hello 1.1.0 is tried again, commit 0123456789ab\n", "", exitOK)
	wantRun(t, s.URL, "deployment retry plant/none", "", "no answer for POST /api/v1/deployments/plant/none/retry\n", exitNotFound)
}

// wantArgs runs a command line whose arguments may be empty.
func wantArgs(t *testing.T, url string, args []string, want string) {
	t.Helper()
	if stdout, stderr, code := run(t, url, args...); code != exitOK || stdout != want {
		t.Errorf("colony %q: exit code %d, %q, %q; want %q", args, code, stdout, stderr, want)
	}
}

// A request is one that the API got, as far as TestDeploy compares it.
type request struct{ Line, IfMatch, Body string }

// TestDeploy creates a deployment, updates one that runs the same application, and
// does not change one that runs another.
func TestDeploy(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []request
	answer := fleet.Deployment{Site: "plant", Name: "hello", App: "hello", AppVersion: "1.1.0", Commit: "0123456789abcdef"}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodGet {
			mu.Lock()
			got = append(got, request{r.Method + " " + r.URL.Path, r.Header.Get("If-Match"), string(body)})
			mu.Unlock()
		}
		switch path := strings.TrimPrefix(r.URL.Path, "/api/v1"); {
		case path == "/events":
			_, _ = io.WriteString(w, `{"items":[]}`)
		case r.Method == http.MethodGet && path == "/deployments/plant/unlisted":
			_ = json.NewEncoder(w).Encode(fleet.Deployment{Site: "plant", Name: "unlisted", App: "hello", AppVersion: "1.0.0"})
		case r.Method == http.MethodPatch && path == "/deployments/plant/unlisted":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"title":"Not Found","detail":"the deployments repo has no deployment unlisted"}`)
		case r.Method == http.MethodGet && path == "/deployments/plant/hello":
			w.Header().Set("ETag", `"abc"`)
			_ = json.NewEncoder(w).Encode(answer)
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"title":"Not Found","detail":"no such deployment"}`)
		case r.Method == http.MethodPatch && strings.Contains(string(body), "9.9.9"):
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"title":"Unprocessable","detail":"the deployment is not valid","errors":[{"location":"body.version","message":"no version 9.9.9"}]}`)
		case r.Method == http.MethodPatch && strings.Contains(string(body), "8.8.8"):
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `{"title":"Precondition Failed","detail":"it was changed since you read it"}`)
		default:
			_ = json.NewEncoder(w).Encode(answer)
		}
	}))
	defer s.Close()
	done := "plant/hello: hello 1.1.0, commit 0123456789ab\n"
	wantRun(t, s.URL, "deploy hello@1.1.0 --site plant --set port=8088 --set name=x", done, "", exitOK)
	wantRun(t, s.URL, "deploy hello@1.1.0 --site plant --name other --node gw1", done, "", exitOK)
	wantArgs(t, s.URL, []string{"deploy", "hello", "--site", "plant", "--replicas", "0", "--nodes", "", "--node", ""}, done)
	wantRun(t, s.URL, "deploy hello@9.9.9 --site plant", "", "the deployment is not valid\n  body.version: no version 9.9.9\n", exitUsage)
	wantRun(t, s.URL, "deploy hello@8.8.8 --site plant", "", "it was changed since you read it\n", exitConflict)
	wantRun(t, s.URL, "deploy hello@1.1.0 --site plant --name unlisted", done, "", exitOK)
	want := []request{
		{"PATCH /api/v1/deployments/plant/hello", "", `{"version":"1.1.0","parameters":{"name":"x","port":"8088"}}`},
		{"POST /api/v1/deployments", "", `{"site":"plant","name":"other","app":"hello","version":"1.1.0","node":"gw1"}`},
		{"PATCH /api/v1/deployments/plant/hello", "", `{"node":"","nodes":{},"replicas":0}`},
		{"PATCH /api/v1/deployments/plant/hello", "", `{"version":"9.9.9"}`},
		{"PATCH /api/v1/deployments/plant/hello", "", `{"version":"8.8.8"}`},
		{"PATCH /api/v1/deployments/plant/unlisted", "", `{"version":"1.1.0"}`},
		{"POST /api/v1/deployments", "", `{"site":"plant","name":"unlisted","app":"hello","version":"1.1.0"}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests that write (-want +got):\n%s", diff)
	}
}

// TestUnreachableAPI names the address and how to choose another one.
func TestUnreachableAPI(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	_, stderr, code := run(t, s.URL, "site", "list")
	if code != exitUnavailable || !strings.Contains(stderr, "the API at "+s.URL+" does not answer") || !strings.Contains(stderr, "Another address goes in --url or COLONY_URL") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	_, stderr, code = run(t, "ftp://x", "site", "list")
	if want := "--url (or COLONY_URL) \"ftp://x\": want a URL such as http://127.0.0.1:8080\n"; code != exitUsage || stderr != want {
		t.Errorf("exit code %d, %q; want %d, %q", code, stderr, exitUsage, want)
	}
}

// TestAnswersThatAreNotJSON shows what a server that is no CO answered.
func TestAnswersThatAreNotJSON(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/status" {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.WriteString(w, "<html>")
	}))
	defer s.Close()
	wantRun(t, s.URL, "status", "", "502 Bad Gateway <html>\n", exitUnavailable)
	_, stderr, code := run(t, s.URL, "site", "list")
	if code != exitError || !strings.Contains(stderr, "answer of GET /api/v1/sites: ") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// TestRolesRefuseTheirConfiguration starts each role with a file that is wrong.
func TestRolesRefuseTheirConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"unknown.yaml": "nonsense: 1\n", "empty.yaml": "{}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"co --config " + dir + "/none.yaml":                   "none.yaml",
		"co --config " + dir + "/unknown.yaml":                "nonsense",
		"lo --config " + dir + "/unknown.yaml":                "nonsense",
		"en --config " + dir + "/unknown.yaml":                "nonsense",
		"co --config " + dir + "/empty.yaml":                  "databaseURL: missing; want a PostgreSQL URL",
		"lo --config " + dir + "/empty.yaml":                  "site",
		"en --config " + dir + "/empty.yaml":                  "lo.mqtt: missing; want a list of URLs",
		"co --log-level loud --config " + dir + "/empty.yaml": `--log-level "loud": want debug, info, warn or error`,
	} {
		if _, stderr, code := run(t, "", strings.Fields(line)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("colony %s: exit code %d, %q; want %d and %q", line, code, stderr, exitUsage, want)
		}
	}
}

func TestDownWithoutAFleet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wantRun(t, "", "down --state-dir "+dir, "nothing runs in "+dir+"\n", "", exitOK)
}

func TestSampleParameters(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"8088", "true", "x y", "", "[", "[a-z]+", "1.10", "0644", "0x10", "1e3", "1_000", "2024-01-01", "'x'", "abc #def", "~", "123456789012345678901234", "{a: b}", "[[a]]",
	} {
		if got := command.ParameterValue(text); got != text {
			t.Errorf("ParameterValue(%q) = %#v, want the text", text, got)
		}
	}
	if got, want := command.ParameterValue("[a, 1.10, '0x1']"), []any{"a", "1.10", "0x1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("a list is %#v, want %#v", got, want)
	}
}

// TestEventsAsDocuments prints events as JSON and as YAML.
func TestEventsAsDocuments(t *testing.T) {
	t.Parallel()
	e := fleet.Event{ID: 7, Time: time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC), Kind: "site_online", Site: "plant"}
	s := serve(t, map[string]any{"GET /events?limit=1&newest=true": map[string]any{"items": []fleet.Event{e}}})
	wantRun(t, s.URL, "events --limit 1 -o json", `{"id":7,"time":"2026-11-22T08:00:00Z","kind":"site_online","site":"plant"}`+"\n", "", exitOK)
	wantRun(t, s.URL, "events --limit 1 -o yaml", table("---", "id: 7", "kind: site_online", "site: plant", `time: "2026-11-22T08:00:00Z"`), "", exitOK)
}

// TestAPIThatHangs asks a server that accepts connections and never answers.
func TestAPIThatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer s.Close()
	defer close(release)
	for _, command := range []string{"status", "site list", "events --follow", "app import oci://r/a:1", "deploy hello --site plant"} {
		_, stderr, code := run(t, s.URL, append(strings.Fields(command), "--request-timeout", "50ms")...)
		if code != exitUnavailable || !strings.Contains(stderr, "the API at "+s.URL+" does not answer (no ") {
			t.Errorf("colony %s: exit code %d, %q", command, code, stderr)
		}
	}
	if _, stderr, code := run(t, s.URL, "status", "--request-timeout", "0s"); code != exitUsage {
		t.Errorf("a timeout of 0: exit code %d, %q", code, stderr)
	}
}
