package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// run plays a command line against a server and returns both streams and the exit code.
func run(t *testing.T, server string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runAt(t, append(args, "--url", server)...)
}

// runAt runs the command line as it is.
func runAt(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{command.Env{Out: &out, Err: &errs}}
	root := a.root("test")
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
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
		{[]string{"deploy", "hello", "--site", "s", "--nodes", "=x"}, "key=value"},
		{[]string{"deploy", "hello", "--site", "s", "--backoff", "-1s"}, "--backoff"},
		{[]string{"events", "--limit", "-1"}, "0 to 1000"},
		{[]string{"events", "--limit", "1001"}, "0 to 1000"},
		{[]string{"co"}, "config"},
		{[]string{"help", "nonsense"}, "nonsense"},
		{[]string{"completion", "nonsense"}, "nonsense"},
		{[]string{"deployment", "show", "x"}, "SITE/DEPLOYMENT"},
		{[]string{"node", "show", "a/b/c"}, "SITE/NODE"},
		{[]string{"site", "list", "-o", "xml"}, "table, json or yaml"},
		{[]string{"site", "list", "--nonsense"}, "nonsense"},
		{[]string{"site", "show"}, "colony site show got 0 arguments, want: colony site show SITE (see colony site show --help)"},
		{[]string{"status", "x"}, "colony status takes no arguments, and got 1"},
		{[]string{"up", "--site", "Bad", "--state-dir", "/tmp/x"}, "Bad"},
		{[]string{"co", "--config", "/does/not/exist"}, "/does/not/exist"},
	} {
		_, stderr, code := run(t, "http://127.0.0.1:1", tt.args...)
		if code != exitUsage || !strings.Contains(stderr, tt.want) {
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

func TestAddressOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"127.0.0.1:8080", "ftp://x", "::", "/", ""} {
		if _, stderr, code := run(t, url, "status"); code != exitUsage || !strings.Contains(stderr, "COLONY_URL") {
			t.Errorf("--url %q: exit code %d, %q", url, code, stderr)
		}
	}
}

// TestInterruption checks that only a command without another end succeeds when
// it is interrupted: a script must not take a deploy that was cut off for done.
func TestInterruption(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]int{
		"events -f": exitOK, "deployment watch s/d": exitOK,
		"deployment delete s/d --wait": exitError, "deployment rollback s/d --wait": exitError,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") == "text/event-stream" {
				cancel()
				<-r.Context().Done()
				return
			}
			fmt.Fprint(w, `{"site":"s","name":"d"}`)
		}))
		var out bytes.Buffer
		a := &app{command.Env{Out: &out, Err: &out}}
		root := a.root("test")
		root.SetArgs(append(strings.Fields(line), "--url", s.URL))
		if code := exitCode(root.ExecuteContext(ctx)); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", line, code, want, out.String())
		}
		s.Close()
	}
}

func TestRemovalAnswersInEachFormat(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer s.Close()
	for format, want := range map[string]string{
		"table": "s/d: its removal is asked for: colony deployment show says what is left\n", "yaml": "name: d\nsite: s\nstate: DELETING\n",
		"json": "{\n  \"name\": \"d\",\n  \"site\": \"s\",\n  \"state\": \"DELETING\"\n}\n",
	} {
		if stdout, stderr, code := run(t, s.URL, "deployment", "delete", "s/d", "-o", format); code != 0 || stdout != want {
			t.Errorf("-o %s: exit code %d, %q, %s", format, code, stdout, stderr)
		}
	}
}

func TestReasonsAreShownWhole(t *testing.T) {
	t.Parallel()
	got := verdict.Reasons(map[string]string{"b": "wants 4 cores, has 2", "a": "role=x, line=y"})
	if want := "\n  a: role=x, line=y\n  b: wants 4 cores, has 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestListsFetchAllPages(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := form.List[fleet.Site]{Items: []fleet.Site{{ID: "a"}}, Next: "2"}
		if r.URL.Query().Get("cursor") == "2" {
			page = form.List[fleet.Site]{Items: []fleet.Site{{ID: "b"}}}
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
	now := time.Now()
	for name, tt := range map[string]struct {
		site     time.Time
		unsynced bool
		want     string // at the end of the line; "": nothing of the site's clock
	}{
		"in step":       {now.Add(-time.Second), false, ""},
		"late":          {now.Add(-time.Hour), false, "  (by the site's clock at " + now.Add(-time.Hour).Format(time.DateTime) + ")"},
		"a wrong clock": {time.Unix(0, 0), true, "  (by the site's clock at " + time.Unix(0, 0).Format(time.DateTime) + " (not synchronised))"},
	} {
		got := eventLine(fleet.Event{Kind: "node_online", Time: now, SiteTime: &tt.site, Unsynced: tt.unsynced})
		if !strings.HasSuffix(got, tt.want) || tt.want == "" && strings.Contains(got, "clock") {
			t.Errorf("%s: %q, want %q at its end", name, got, tt.want)
		}
	}
}
