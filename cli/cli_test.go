package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// run plays a command line against a server and returns both streams and the exit code.
func run(t *testing.T, server string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	root := a.root("test")
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append(args, "--url", server))
	err := root.ExecuteContext(t.Context())
	if err != nil {
		fmt.Fprintln(&errs, err)
	}
	return out.String(), errs.String(), exitCode(err)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"app", "nonsense"}, "nonsense"},
		{[]string{"deploy", "hello"}, "site"},
		{[]string{"deploy", "hello", "--site", "s", "--set", "x"}, "name=value"},
		{[]string{"deploy", "hello", "--site", "s", "--nodes", "x"}, "key=value"},
		{[]string{"deployment", "show", "x"}, "SITE/DEPLOYMENT"},
		{[]string{"node", "show", "a/b/c"}, "SITE/NODE"},
		{[]string{"site", "list", "-o", "xml"}, "table, json or yaml"},
		{[]string{"site", "list", "--nonsense"}, "nonsense"},
		{[]string{"site", "show"}, "accepts 1 arg"},
		{[]string{"up", "--site", "Bad", "--state-dir", "/tmp/x"}, "Bad"},
		{[]string{"co", "--config", "/does/not/exist"}, "/does/not/exist"},
	} {
		_, stderr, code := run(t, "http://127.0.0.1:1", tt.args...)
		if code != exitUsage && !(tt.args[0] == "deploy" && code == exitError) || !strings.Contains(stderr, tt.want) {
			t.Errorf("colony %v: exit code %d, %q; want a usage error with %q", tt.args, code, stderr, tt.want)
		}
	}
}

func TestExitCodesOfAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{404: exitNotFound, 409: exitConflict, 412: exitConflict, 422: exitUsage, 503: exitUnavailable, 500: exitError} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"title":"T","status":%d,"detail":"what is wrong","errors":[{"message":"m","location":"parameters.port"}]}`, status)
		}))
		_, stderr, code := run(t, s.URL, "site", "list")
		s.Close()
		if code != want || !strings.Contains(stderr, "what is wrong\n  parameters.port: m") {
			t.Errorf("status %d: exit code %d, %q", status, code, stderr)
		}
	}
	if _, stderr, code := run(t, "http://127.0.0.1:1", "site", "list"); code != exitUnavailable || !strings.Contains(stderr, "COLONY_URL") {
		t.Errorf("no server: exit code %d, %q", code, stderr)
	}
}

func TestListsFetchAllPages(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := api.List[fleet.Site]{Items: []fleet.Site{{ID: "a"}}, Next: "2"}
		if r.URL.Query().Get("cursor") == "2" {
			page = api.List[fleet.Site]{Items: []fleet.Site{{ID: "b"}}}
		}
		_ = json.NewEncoder(w).Encode(page)
	}))
	defer s.Close()
	for _, format := range []string{"table", "json", "yaml"} {
		stdout, stderr, code := run(t, s.URL, "site", "list", "-o", format)
		if code != 0 || !strings.Contains(stdout, "a") || !strings.Contains(stdout, "b") {
			t.Errorf("-o %s: exit code %d, %s%s", format, code, stdout, stderr)
		}
	}
}

// TestStreamResumes checks that a broken stream goes on after the last event.
func TestStreamResumes(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		asked <- last
		first := 6
		if last == "7" {
			first = 8
		}
		for id := first; id < first+2; id++ {
			fmt.Fprintf(w, ": beat\n\nid: %d\nevent: x\ndata: {\"id\":%d,\"kind\":\"x\"}\n\n", id, id)
		}
	}))
	defer s.Close()
	var got []int64
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := &client{base: s.URL, http: s.Client()}
	err := c.events(ctx, url.Values{"site": {"s"}}, 5, func(e fleet.Event) bool {
		got = append(got, e.ID)
		return e.ID < 9
	})
	if err != nil || fmt.Sprint(got) != "[6 7 8 9]" {
		t.Errorf("events %v, %v", got, err)
	}
	if a, b := <-asked, <-asked; a != "5" || b != "7" {
		t.Errorf("it resumed after %s and %s", a, b)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	want, old := protocol.DigestOf([]byte("new")), protocol.DigestOf([]byte("old"))
	node := func(s lifecycle.State, d, refused protocol.Digest) fleet.DeploymentNode {
		return fleet.DeploymentNode{Node: "n", State: s, Digest: d, Refused: refused}
	}
	for _, tt := range []struct {
		name    string
		d       fleet.Deployment
		settled bool
		bad     bool
	}{
		{"not compiled yet", fleet.Deployment{}, false, false},
		{"no node yet", fleet.Deployment{Digest: want}, false, false},
		{"installed", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Installed, want, "")}}, true, false},
		{"still the old one", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Installed, old, "")}}, false, false},
		{"rolled back", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Installed, old, want)}}, true, true},
		{"one is not there", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Installed, want, ""), node(lifecycle.Updating, want, "")}}, false, false},
		{"failed, but it is tried again", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Failed, want, "")}}, false, false},
		{"not placeable", fleet.Deployment{Digest: want, Problem: "not placeable", Rejected: map[string]string{"n": "no label"}}, true, true},
	} {
		settled, err := judge(tt.d)
		if settled != tt.settled || (err != nil) != tt.bad {
			t.Errorf("%s: settled %t, %v", tt.name, settled, err)
		}
	}
}

func TestEventLine(t *testing.T) {
	t.Parallel()
	got := eventLine(fleet.Event{
		Kind: "deployment_status", Site: "s", Node: "n", Deployment: "d", From: lifecycle.Installing, To: lifecycle.Installing,
		Phase: protocol.Pulling, Pulled: 1536, Total: 1 << 20, AppVersion: "1.0",
	})
	for _, want := range []string{"s/n/d", "INSTALLING pulling 1.5 KiB of 1.0 MiB", "1.0"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
}
