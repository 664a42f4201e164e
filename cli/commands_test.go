package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clicommand "github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/command"
)

const commandID = "0123456789abcdef0123456789abcdef"

// commandServer makes a command of each request, and goes on to the next of its states with each look.
func commandServer(t *testing.T, results []fleet.CommandResult, states ...fleet.Command) (url string, asked *string) {
	t.Helper()
	looks, asked := 0, new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/api/v1/commands"); path {
		case "POST ":
			b, _ := io.ReadAll(r.Body)
			*asked = string(b)
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(states[0])
		case "GET /" + commandID:
			looks = min(looks+1, len(states)-1)
			_ = json.NewEncoder(w).Encode(states[looks])
		case "GET /" + commandID + "/results":
			_ = json.NewEncoder(w).Encode(map[string]any{"items": results[:states[looks].Counts.Ended()]})
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"title":"Not Found","detail":"no answer for %s"}`, path)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// stateOf is a command at site plant.
func stateOf(state string, n fleet.CommandCounts) fleet.Command {
	c := fleet.Command{ID: commandID, Kind: command.Restart, State: fleet.CommandStateEnded, Counts: n, SiteCount: 1, Sites: []fleet.CommandSite{{CommandTarget: fleet.CommandTarget{Site: "plant"}, State: state, Counts: n}}}
	if fleet.CommandOpen(state) {
		c.State = fleet.CommandStateOpen
	}
	return c
}

// TestCommandsWait asks for commands and waits for what comes of them.
func TestCommandsWait(t *testing.T) {
	t.Parallel()
	results := []fleet.CommandResult{
		{Site: "plant", Node: "gw-1", State: command.Done, Output: "web: restarted\n", Duration: 1500, By: fleet.ByNode},
		{Site: "plant", Node: "gw-2", State: command.Expired, Code: command.NodeAway, Message: "it did not connect", By: fleet.ByLO},
	}
	waiting, half := stateOf(fleet.CommandWaiting, fleet.CommandCounts{Nodes: 2}), stateOf(fleet.CommandRunning, fleet.CommandCounts{Nodes: 2, Done: 1, Running: 1})
	mixed, one := stateOf(fleet.CommandEnded, fleet.CommandCounts{Nodes: 2, Done: 1, Expired: 1}), stateOf(fleet.CommandEnded, fleet.CommandCounts{Nodes: 1, Done: 1})
	done := table("plant/gw-1: done (1.5s)", " web: restarted")
	url, asked := commandServer(t, results, waiting, half, mixed)
	wantRun(t, url, "restart plant/meter --container web --selector line=3", done+table("plant/gw-2: expired (node_away): it did not connect [says the LO, as the node did not answer]"),
		"not done on all nodes: 1 done, 1 expired\n", exitFailed)
	if want := `{"kind":"restart","args":{"container":"web","deployment":"meter"},"targets":[{"site":"plant","selector":{"line":"3"}}],"deadline":"10m0s"}`; *asked != want {
		t.Errorf("asked for %s, want %s", *asked, want)
	}
	for line, want := range map[string]string{
		"pull plant/meter --node gw-1,gw-2 --deadline 1h": `{"kind":"pull","args":{"deployment":"meter"},"targets":[{"site":"plant","nodes":["gw-1","gw-2"]}],"deadline":"1h0m0s"}`,
		"probe plant/meter --all --component web":         `{"kind":"probe","args":{"component":"web","deployment":"meter"},"targets":[{"site":"plant","all":true}],"deadline":"10m0s"}`,
		"node check plant/gw-1 tcp plc:502 --count 3":     `{"kind":"network-check","args":{"count":3,"method":"tcp","target":"plc:502"},"targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node cordon plant/gw-1 --reason broken":          `{"kind":"cordon","args":{"reason":"broken"},"targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node drain plant/gw-1 --reason disk --force":     `{"kind":"drain","args":{"reason":"disk","force":true},"targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node hold plant/gw-1 --reason batch --for 2h":    `{"kind":"hold","args":{"reason":"batch","forMillis":7200000},"targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node uncordon plant/gw-1":                        `{"kind":"uncordon","targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node release plant/gw-1":                         `{"kind":"release","targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
		"node refresh plant/gw-1":                         `{"kind":"inventory","targets":[{"site":"plant","nodes":["gw-1"]}],"deadline":"10m0s"}`,
	} {
		url, asked := commandServer(t, results, waiting, one)
		wantRun(t, url, line, done, "", exitOK)
		if diff := cmp.Diff(want, *asked); diff != "" {
			t.Errorf("colony %s: %s", line, diff)
		}
	}
	url, _ = commandServer(t, results, waiting)
	wantRun(t, url, "restart plant/meter --no-wait", commandID+"\n", "", exitOK)
	goesOn := "the command goes on: colony command results " + commandID + " shows its results, colony command cancel " + commandID + " cancels it\n"
	wantRun(t, url, "restart plant/meter --timeout 10ms", "", goesOn+"command "+commandID+" has not ended within 10ms\n", exitFailed)
	refused := stateOf(fleet.CommandRefused, fleet.CommandCounts{})
	refused.Sites[0].Code, refused.Sites[0].Message = command.NoNode, "no node has these labels"
	url, _ = commandServer(t, nil, waiting, refused)
	wantRun(t, url, "restart plant/meter --selector line=9", "", "site plant refuses the command (no_node): no node has these labels\n", exitFailed)
	url, _ = commandServer(t, results, one)
	out, _, code := run(t, url, "restart", "plant/meter", "-o", "json")
	var whole struct {
		ID      string
		Results []fleet.CommandResult
	}
	if err := json.Unmarshal([]byte(out), &whole); err != nil || code != exitOK || whole.ID != commandID || len(whole.Results) != 1 {
		t.Errorf("as JSON: %d, %v: %s", code, err, out)
	}
	for line, words := range map[string]string{
		"restart meter": "want SITE/DEPLOYMENT", "node check plant/gw-1 smoke a": "want dns, tcp, ping", "node check plant/gw-1 ping a --count 11": "want 1 to 10", "pull plant/meter --deadline 1ms": "one second or more",
		"logs plant/meter --tail -1": "--tail -1", fmt.Sprintf("logs plant/meter --tail %d", command.MaxTail+1): "want 0 to", "command list --since -1h": "--since -1h", "logs plant/meter --since -1h": "--since",
	} {
		if _, said, code := run(t, url, strings.Fields(line)...); code != exitUsage || !strings.Contains(said, words) {
			t.Errorf("colony %s: %d %s", line, code, said)
		}
	}
}

// TestShowCommands lists and shows commands.
func TestShowCommands(t *testing.T) {
	t.Parallel()
	c := stateOf(fleet.CommandRunning, fleet.CommandCounts{Nodes: 7, Running: 1, Done: 2, Failed: 1})
	c.CreatedAt, c.Actor, c.Args = *past(0), "ann", map[string]string{"deployment": "meter", "container": "web"}
	c.Sites[0].Selector = map[string]string{"line": "3"}
	s := serve(t, map[string]any{
		"GET /commands?limit=50":                                  map[string]any{"items": []fleet.Command{c}},
		"GET /commands?kind=probe&limit=5&site=plant&state=ended": map[string]any{"items": []fleet.Command{}},
		"GET /commands?limit=7": map[string]any{"items": []fleet.Command{{
			ID: commandID, Kind: command.Probe, CreatedAt: *past(0), State: fleet.CommandStateEnded, SiteCount: 1, RefusedSites: 1, RefusedCode: command.Busy,
		}}},
		"GET /commands/" + commandID:                                c,
		"GET /commands/" + commandID + "/results?limit=1000":        map[string]any{"items": []fleet.CommandResult{{Site: "plant", Node: "gw-1", State: command.Running, By: fleet.ByNode}}},
		"DELETE /commands/" + commandID:                             c,
		"GET /commands/none/results?limit=1000&site=a&state=failed": map[string]any{"items": []fleet.CommandResult{}},
	})
	wantRun(t, s.URL, "command list", table("ID AGE KIND ABOUT WHO SITES STATE NODES", commandID+" 1s restart meter web ann 1 open 1 running, 2 done, 1 failed, 3 waiting"), "", exitOK)
	wantRun(t, s.URL, "command list --site plant --kind probe --state ended --limit 5", table("ID AGE KIND ABOUT WHO SITES STATE NODES"), "", exitOK)
	wantRun(t, s.URL, "command list --limit 7", table("ID AGE KIND ABOUT WHO SITES STATE NODES", commandID+" 1s probe - - 1 ended refused (busy)"), "", exitOK)
	out, _, code := run(t, s.URL, "command", "show", commandID)
	if code != exitOK || !strings.Contains(spaces(out), "SITE MEANT STATE RECEIVED NODES MESSAGE\nplant line=3 running - 1 running, 2 done, 1 failed, 3 waiting -") {
		t.Errorf("shown: %d %s", code, out)
	}
	wantRun(t, s.URL, "command results "+commandID, "plant/gw-1: running\n", "", exitOK)
	wantRun(t, s.URL, "command results none --site a --state failed", "", "no node has reported yet: colony command show none\n", exitOK)
	wantRun(t, s.URL, "command cancel "+commandID, commandID+": cancelled; 1 running, 2 done, 1 failed, 3 waiting\n", "", exitOK)
	wantRun(t, s.URL, "command show none", "", "no answer for GET /api/v1/commands/none\n", exitNotFound)
}

// TestLogs shows streams of logs.
func TestLogs(t *testing.T) {
	t.Parallel()
	const (
		begin = `event: begin` + "\n" + `data: {"command":"c","site":"plant","nodes":["gw-1","gw-2"]}` + "\n\n"
		one   = `event: begin` + "\n" + `data: {"command":"c","site":"plant","nodes":["gw-1"]}` + "\n\n"
		line  = `event: line` + "\n" + `data: {"node":"gw-1","component":"web","container":"nginx","unixMillis":1700000000000,"text":"GET /"}` + "\n\n"
		cut   = `event: line` + "\n" + `data: {"node":"gw-1","component":"web","container":"nginx","text":"long","cutBytes":7}` + "\n\n"
		whose = `event: gap` + "\n" + `data: {"node":"gw-1","component":"web","container":"nginx","lines":2,"bytes":9}` + "\n\n"
		gap   = `event: gap` + "\n" + `data: {"node":"gw-1","lines":3,"bytes":40}` + "\n\n"
		end   = `event: end` + "\n" + `data: {"node":"gw-1","state":"done"}` + "\n\n"
		fault = `event: end` + "\n" + `data: {"node":"gw-2","state":"refused","code":"busy","message":"too many"}` + "\n\n"
	)
	serveLogs := func(stream string, want string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/api/v1/deployments/plant/meter":
				_ = json.NewEncoder(w).Encode(fleet.Deployment{Site: "plant", Name: "meter"})
			case r.URL.Path == "/api/v1/deployments/plant/meter/logs" && r.URL.RawQuery == want && r.Header.Get("Accept") == "text/event-stream":
				_, _ = io.WriteString(w, stream)
			default:
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintf(w, `{"title":"Unavailable","detail":"asked for %s"}`, r.URL.RequestURI())
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	wantRun(t, serveLogs(one+line+cut+gap+whose+end, "tail=1000"), "logs plant/meter", table("GET /", "long... (7 bytes more)"), "gw-1: 3 lines (40 bytes) are missing here\ngw-1/web/nginx: 2 lines (9 bytes) are missing here\n", exitOK)
	wantRun(t, serveLogs(begin+line+end+fault, "container=nginx&follow=true&grep=G.T&node=gw-1&previous=true&since=10m0s&stream=stderr"),
		"logs plant/meter -f --since 10m --grep G.T --stream stderr --previous --container nginx --node gw-1", "[gw-1] GET /\n", "node gw-2: refused (busy): too many\nthe logs of 1 nodes are not whole\n", exitFailed)
	wantRun(t, serveLogs(one+line, "tail=5"), "logs plant/meter --tail 5", "GET /\n", "the connection to the CO broke before the logs ended (the event stream ended): begin again, with --since for what was missed\n", exitError)
	wantRun(t, serveLogs("", "none"), "logs plant/meter", "", "asked for /api/v1/deployments/plant/meter/logs?tail=1000\n", exitUnavailable)
	wantRun(t, serveLogs(one+gap+end, "tail=1000"), "logs plant/meter -o json", table(`{"command":"c","event":"begin","nodes":["gw-1"],"site":"plant"}`, `{"bytes":40,"event":"gap","lines":3,"node":"gw-1"}`, `{"event":"end","node":"gw-1","state":"done"}`), "", exitOK)
}

// TestLogsGoOn breaks the stream of a log that is followed, in each way: it goes on after the last line that was shown, and says what is missing.
func TestLogsGoOn(t *testing.T) {
	t.Parallel()
	const begin = `event: begin` + "\n" + `data: {"command":"c","site":"plant","nodes":["gw-1"]}` + "\n\n"
	line := func(run, number int) string {
		return fmt.Sprintf("event: line\ndata: {\"node\":\"gw-1\",\"component\":\"web\",\"container\":\"nginx\",\"stream\":\"stdout\",\"text\":\"%d.%d\",\"run\":%d,\"number\":%d}\n\n", run, number, run, number)
	}
	end := func(state, code string) string {
		return fmt.Sprintf("event: end\ndata: {\"node\":\"gw-1\",\"state\":%q,\"code\":%q}\n\n", state, code)
	}
	const gap = `event: gap` + "\n" + `data: {"node":"gw-1","component":"web","container":"nginx","lines":2,"bytes":9}` + "\n\n"
	streams := []string{
		begin + line(7, 1) + line(7, 2), // the connection breaks
		"",                              // the CO starts
		begin + line(7, 1) + line(7, 2) + line(7, 3) + end("failed", "interrupted"), // the agent is upgraded
		begin + gap + line(7, 6) + end("unknown", ""),                               // the CO stops
		begin + line(7, 9) + line(8, 10) + end("done", ""),                          // two lines got lost, and the container was started again
	}
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			_ = json.NewEncoder(w).Encode(fleet.Deployment{Site: "plant", Name: "meter"})
			return
		}
		q := r.URL.Query()
		if first := asked == 0; first != (q.Get("tail") == "1000") || first == q.Has("since") || first == (q.Get("resumed") == "true") || q.Get("follow") != "true" {
			t.Errorf("stream %d asked for by %s", asked, r.URL.RawQuery)
		}
		if asked++; streams[asked-1] == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"title":"Unavailable","detail":"the CO starts"}`)
			return
		}
		_, _ = io.WriteString(w, streams[asked-1])
	}))
	t.Cleanup(s.Close)
	wantRun(t, s.URL, "logs plant/meter -f", table("7.1", "7.2", "7.3", "7.6", "7.9", "8.10"), table(
		"the stream broke (the event stream ended): connecting again", "connected again",
		"node gw-1: failed (interrupted); it is asked again", "the stream broke (nodes ended what they sent): connecting again", "connected again",
		"gw-1/web/nginx: 2 lines (9 bytes) are missing here",
		"node gw-1: unknown; it is asked again", "the stream broke (nodes ended what they sent): connecting again", "connected again",
		"gw-1/web/nginx: 2 lines are missing here, or more"), exitOK)
	if asked != len(streams) {
		t.Errorf("%d streams", asked)
	}
}

// A full disk refuses what is written to it.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("no space left on device")

// TestLogsToFullDisk shows a line where it cannot be written.
func TestLogsToFullDisk(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/logs") {
			_, _ = io.WriteString(w, "event: begin\ndata: {\"nodes\":[\"gw-1\"]}\n\nevent: line\ndata: {\"node\":\"gw-1\",\"text\":\"a\"}\n\nevent: end\ndata: {\"node\":\"gw-1\",\"state\":\"done\"}\n\n")
			return
		}
		_ = json.NewEncoder(w).Encode(fleet.Deployment{Site: "plant", Name: "meter"})
	}))
	t.Cleanup(s.Close)
	a := &app{clicommand.Env{Out: full{}, Err: io.Discard}}
	root := a.root("test")
	root.SetArgs([]string{"logs", "plant/meter", "--url", s.URL})
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, errFull) || exitCode(err) != exitError {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
}

// TestCodesAreDocumented wants the page about commands to name each code that a user may see, and each state.
func TestCodesAreDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Commands\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, code := range command.Codes() {
		if !strings.Contains(text, "`"+string(code)+"`") {
			t.Errorf("docs/operations.md does not say what %s means", code)
		}
	}
	for _, state := range command.States() {
		if state.Ended() && !strings.Contains(text, "| `"+string(state)+"` |") {
			t.Errorf("docs/operations.md does not say what %s means", state)
		}
	}
}
