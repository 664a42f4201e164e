package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/sitefile"
)

// serve answers with JSON by method and path; what is not there is a 404.
func serve(t *testing.T, answers map[string]any) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/api/v1")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"title":"Not Found","detail":"no answer for %s %s"}`, r.Method, r.URL.RequestURI())
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestSiteShow(t *testing.T) {
	t.Parallel()
	reported, yes, no := time.Now().Add(-3*time.Minute-time.Second), true, false
	up := []sitedata.Stream{
		{Last: 7, Committed: 7, Reported: &reported, RTTSeconds: 0.0352, BytesPerSecond: 8192},
		{
			Rule: "temps", Queued: 1500, Bytes: 3 << 20, OldestSeconds: 7205, Dropped: 12, Expired: 3, Last: 2000, Committed: 500,
			RTTSeconds: 0.00061, BytesPerSecond: 100, Reported: &reported,
		},
		{Rule: "new"},
		{Rule: "old", Removed: true, Reported: &reported},
	}
	down := []sitedata.Stream{{Rule: "recipes", Queued: 2, Bytes: 100, OldestSeconds: 61}}
	online := fleet.Site{ID: "home", Online: true}
	s := serve(t, map[string]any{
		"GET /sites/home":                     online,
		"GET /sites/home/link?refresh=true":   sitedata.Link{Site: "home", Online: true, Refreshed: &yes, Up: up, Down: down},
		"GET /sites/home/link?refresh=false":  sitedata.Link{Site: "home", Online: true, Up: up, Down: down},
		"GET /sites/silent":                   online,
		"GET /sites/silent/link?refresh=true": sitedata.Link{Online: true, Refreshed: &no, Up: up},
		"GET /sites/away":                     fleet.Site{ID: "away"},
		"GET /sites/away/link?refresh=false":  sitedata.Link{Up: up},
	})
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"home"}, []string{
			"Streams of the site (as of now)", "STREAM              QUEUED  OLDEST  BYTES    DROPPED  EXPIRED  RTT    RATE       REPORTED",
			"events              0       -       -        0        0        35ms   8.0KiB/s   3m ago",
			"data/temps          1500    2h      3.0 MiB  12       3        610µs  100B/s     3m ago",
			"data/new            0       -       -        0        0        -      -          never",
			"data/old (no rule)", "Streams to the site, queued at the CO", "data/recipes  2       1m      100 B  0",
		}},
		{[]string{"home", "--cached"}, []string{"Streams of the site (as it last reported)"}},
		{[]string{"silent"}, []string{"the site did not answer for all of them within 5 s: as it last reported"}},
		{[]string{"away"}, []string{"the site is offline: as it last reported; more may be queued by now"}},
		{[]string{"home", "-o", "json"}, []string{`"id": "home"`, `"link": {`, `"queued": 1500`, `"refreshed": true`}},
		{[]string{"home", "-o", "yaml"}, []string{"id: home\n", "queued: 1500\n"}},
	} {
		stdout, stderr, code := run(t, s.URL, append([]string{"site", "show"}, tt.args...)...)
		if code != 0 {
			t.Errorf("%v: exit code %d, %s", tt.args, code, stderr)
		}
		for _, want := range tt.want {
			if !strings.Contains(squeeze(stdout), squeeze(want)) {
				t.Errorf("%v: no %q in\n%s", tt.args, want, stdout)
			}
		}
	}
	if _, stderr, code := run(t, s.URL, "site", "show", "none"); code != exitNotFound {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// squeeze makes columns independent of their width.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(lines, "\n")
}

// A rulesServer holds the rules of the site home, as the API does.
type rulesServer struct {
	mu       sync.Mutex
	rules    sitedata.DataRules
	ifMatch  []string
	problems string // of a PUT
}

func (s *rulesServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method != http.MethodGet {
		s.ifMatch = append(s.ifMatch, r.Header.Get("If-Match"))
	}
	switch r.Method {
	case http.MethodPut:
		if s.problems != "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, s.problems)
			return
		}
		var body struct{ Document string }
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.rules.Document, s.rules.Commit = body.Document, "0123456789abcdef"
		s.rules.Rules = make([]sitefile.Rule, strings.Count(body.Document, "name:"))
	case http.MethodDelete:
		s.rules = sitedata.DataRules{Site: "home"}
	}
	if s.rules.Commit != "" {
		w.Header().Set("ETag", `"`+s.rules.Commit+`"`)
	}
	_ = json.NewEncoder(w).Encode(s.rules)
}

func TestSiteData(t *testing.T) {
	t.Parallel()
	h := &rulesServer{rules: sitedata.DataRules{Site: "home", Rules: []sitefile.Rule{}}}
	s := httptest.NewServer(h)
	defer s.Close()
	file := filepath.Join(t.TempDir(), "site.yaml")
	const document = "# mine\nrules: [{name: a}, {name: b}]\n"
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		args           string
		stdout, stderr string
		code           int
	}{
		{"get home", "", "site home has no data rules; colony site data edit home adds some\n", 0},
		{"set home -f " + file, "home: 2 data rules at commit 0123456789ab\n", "", 0},
		{"get home", document, "", 0},
		{"get home -o json", "", "", 0},
		{"set home -f /does/not/exist", "", "read rules: open /does/not/exist", exitUsage},
		{"set home", "", `required flag(s) "file" not set`, exitUsage},
		{"set home -f /dev/null", "", "the file is empty: to have no rules, use colony site data delete", exitUsage},
		{"delete home", "home: data rules removed from the deployments repo\n", "", 0},
		{"get home", "", "site home has no data rules", 0},
	} {
		stdout, stderr, code := run(t, s.URL, append([]string{"site", "data"}, strings.Fields(step.args)...)...)
		if code != step.code || !strings.Contains(stdout, step.stdout) || !strings.Contains(stderr, step.stderr) || step.stdout != "" && stdout != step.stdout {
			t.Errorf("%s: exit code %d\n%s%s", step.args, code, stdout, stderr)
		}
	}
	h.rules.Commit, h.rules.Document, h.rules.Problem = "c", "bad\n", "line 1: one\nline 2: two"
	stdout, stderr, _ := run(t, s.URL, "site", "data", "get", "home")
	if stdout != "bad\n" || stderr != "this file is not valid, so the last good rules hold:\n  line 1: one\n  line 2: two\n" {
		t.Errorf("a bad file: %q, %q", stdout, stderr)
	}
}

// TestSiteDataEdit is not parallel: it sets the editor in the environment.
func TestSiteDataEdit(t *testing.T) {
	h := &rulesServer{rules: sitedata.DataRules{Site: "home"}}
	s := httptest.NewServer(h)
	defer s.Close()
	editor := filepath.Join(t.TempDir(), "editor")
	play := func(script string) (stdout, stderr string, code int) {
		t.Helper()
		if err := os.WriteFile(editor, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		t.Setenv("VISUAL", editor+" --wait")
		t.Setenv("TMPDIR", t.TempDir())
		return run(t, s.URL, "site", "data", "edit", "home")
	}
	stdout, stderr, code := play(`test "$1" = --wait && sed -i 's/everything/all/' "$2"`)
	if code != 0 || stdout != "home: 1 data rules at commit 0123456789ab\n" || !strings.Contains(h.rules.Document, "- name: all") {
		t.Fatalf("exit code %d, %s%s\n%s", code, stdout, stderr, h.rules.Document)
	}
	// What an editor begins with is a valid file.
	if _, err := sitefile.Parse("home", []byte(h.rules.Document)); err != nil {
		t.Errorf("the first file is not valid:\n%v", err)
	}
	if stdout, stderr, code = play("true"); code != 0 || stderr != "nothing was changed\n" || len(h.ifMatch) != 1 {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if _, stderr, code = play("exit 3"); code != exitUsage || !strings.Contains(stderr, "VISUAL or EDITOR names another") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	h.problems = `{"title":"T","detail":"the input is not valid","errors":[{"message":"line 7: x","location":"body.document"}]}`
	_, stderr, code = play(`echo "# more" >> "$2"`)
	_, path, _ := strings.Cut(stderr, "what you wrote is in ")
	retained, err := os.ReadFile(strings.TrimSpace(path))
	if code != exitUsage || !strings.Contains(stderr, "body.document: line 7: x") || err != nil || !strings.HasSuffix(string(retained), "# more\n") {
		t.Errorf("exit code %d, %s\n%s %v", code, stderr, retained, err)
	}
	if want := []string{"", `"0123456789abcdef"`}; strings.Join(h.ifMatch, " ") != strings.Join(want, " ") {
		t.Errorf("If-Match %q, want %q: an edit goes on top of what was read", h.ifMatch, want)
	}
}

// message is a stored message as the stream sends it.
func message(id, topic, payload string) string {
	return "id: " + id + "\nevent: message\ndata: {\"topic\":\"" + topic + "\",\"payload\":\"" + payload + "\",\"qos\":1}\n\n"
}

// TestDataTail follows a stream that breaks, is refused while the database is away,
// and goes on: nothing is left out, nothing comes twice.
func TestDataTail(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/link") {
			fmt.Fprint(w, `{"site":"home","online":false}`)
			return
		}
		asked = append(asked, r.URL.Query().Encode()+" after "+r.Header.Get("Last-Event-ID"))
		switch len(asked) {
		case 1:
			fmt.Fprint(w, "retry: 1000\n\nid: begin\nevent: begin\ndata: {}\n\n: \n\n")
		case 2:
			fmt.Fprint(w, message("1", "line/1", "20.5")+message("2", "line/2", `a\u001b[31m\nb`)+"id: 3\nevent: message\ndata: {\"topic\":")
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, message("3", "line/3", "x"))
			fmt.Fprint(w, "event: message\ndata: {\"topic\":\"live\",\"payloadBase64\":\"AP8=\",\"time\":\"2026-01-31T08:00:00Z\",\"qos\":0,\"retain\":true}\n\n")
			fmt.Fprint(w, "event: lost\ndata: {\"messages\":7}\n\nevent: message\ndata: {\"topic\":\"end\",\"payload\":\"\",\"qos\":0}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	var errs bytes.Buffer
	out := &until{text: "end", then: cancel}
	a := &app{command.Env{Out: out, Err: &errs}}
	root := a.root("test")
	root.SetArgs([]string{"data", "tail", "home", "line/#", "--rule", "r", "--url", s.URL})
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	const none = "-----------------------  "
	want := none + "line/1  20.5\n" + none + "line/2  \"a\\x1b[31m\\nb\"\n" + none + "line/3  x\n" +
		time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC).Local().Format("2006-01-02 15:04:05.000") + "  live  0x00ff  (retained)\n" + none + "end  \n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if !strings.Contains(errs.String(), "site home is offline") || !strings.Contains(errs.String(), "7 messages are missing here") {
		t.Errorf("stderr: %s", errs.String())
	}
	query := "rule=r&topic=line%2F%23 after "
	if got, want := strings.Join(asked, "\n"), strings.Join([]string{query, query + "begin", query + "2", query + "2"}, "\n"); got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}

// until is a buffer that does something once it holds a text.
type until struct {
	bytes.Buffer
	text string
	then func()
}

// Write adds b.
func (u *until) Write(b []byte) (int, error) {
	n, err := u.Buffer.Write(b)
	if strings.Contains(u.String(), u.text) {
		u.then()
	}
	return n, err
}

func TestDataHistory(t *testing.T) {
	t.Parallel()
	item := func(payload string) sitedata.DataMessage {
		return sitedata.DataMessage{Topic: "t", Payload: &payload, Rule: "r"}
	}
	s := serve(t, map[string]any{
		"GET /sites/home/data?limit=50&newest=true":                                      sitedata.Messages{Items: []sitedata.DataMessage{item("1"), item("2")}, Read: "x"},
		"GET /sites/home/data?limit=1000&newest=false&topic=a%2F%2B":                     sitedata.Messages{Items: []sitedata.DataMessage{item("1")}, Next: "p", Read: "p"},
		"GET /sites/home/data?after=p&limit=1000&newest=false&topic=a%2F%2B":             sitedata.Messages{Items: []sitedata.DataMessage{item("2")}, Read: "q"},
		"GET /sites/home/data?limit=5&newest=true&since=2026-01-31T07%3A00%3A00Z&rule=r": nil,
		"GET /sites/home/data?limit=5&newest=true&rule=r&since=2026-01-31T07%3A00%3A00Z": sitedata.Messages{Items: []sitedata.DataMessage{item("3")}},
		"GET /sites/home/data?limit=50&newest=true&until=2026-01-31T07%3A00%3A00Z":       sitedata.Messages{Items: []sitedata.DataMessage{item("4")}},
	})
	for line, want := range map[string][]string{
		"home":               {"t  1\n", "t  2\n"},
		"home a/+ --limit 0": {"t  1\n", "t  2\n"},
		"home --limit 5 --rule r --since 2026-01-31T08:00:00+01:00": {"t  3\n"},
		"home --until 2026-01-31T07:00:00Z --json":                  {`{"topic":"t","rule":"r","payload":"4","qos":0}` + "\n"},
		"home --until 2026-01-31T07:00:00Z -o yaml":                 {"---\n", "topic: t\n"},
	} {
		stdout, stderr, code := run(t, s.URL, append([]string{"data", "history"}, strings.Fields(line)...)...)
		for _, w := range want {
			if code != 0 || !strings.Contains(stdout, w) {
				t.Errorf("%s: exit code %d, %q, %s; want %q", line, code, stdout, stderr, w)
			}
		}
	}
	for line, want := range map[string]string{
		"home --limit 1001": "0 to 1000", "home --since soon": `--since "soon": want a time`, "home --until -3h": "how long ago", "": "want: colony data history SITE [FILTER]",
	} {
		if _, stderr, code := run(t, s.URL, append([]string{"data", "history"}, strings.Fields(line)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}
