package co_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A played is the LO of site plant as far as commands go, with the nodes gw-1 and gw-2.
type played struct {
	t    *testing.T
	c    *client.Client
	got  chan client.Message
	kept []client.Message // that came and were not asked for yet
	set  keys.Set
	// session is that of its presence.
	session string
	events  uint64 // that it has sent
}

// signing has the CO sign with new keys.
func signing(t *testing.T) (keys.Set, func(*co.Options)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(dir); err != nil {
		t.Fatal(err)
	}
	set, err := keys.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return set, func(o *co.Options) { o.Signing.Dir = dir }
}

// play connects the LO of site plant to a broker.
func play(t *testing.T, url string, set keys.Set) *played {
	t.Helper()
	p := &played{t: t, got: make(chan client.Message, 1000), set: set}
	up := notify.New()
	var filters []client.Subscription
	for _, f := range []string{
		topic.ForSite(topic.Ack, "plant"), topic.ForSite(topic.SiteTime, "plant"),
		topic.ForCommand(topic.SiteCommand, "plant", topic.AnyCommand), topic.ForCommand(topic.SiteCredit, "plant", topic.AnyCommand), topic.ForCommand(topic.SiteInput, "plant", topic.AnyCommand),
	} {
		filters = append(filters, client.Subscription{Filter: f, QoS: 1})
	}
	var err error
	p.c, err = client.New(client.Options{
		URLs: []string{url}, ClientID: "plant", Username: "plant", Subscriptions: filters,
		Handle: func(_ context.Context, m client.Message) error { p.got <- m; return nil },
		OnUp:   func(context.Context, string) { up.Notify() },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	select {
	case <-up.C():
	case <-time.After(time.Minute):
		t.Fatal("the site did not connect")
	}
	return p
}

func (p *played) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = p.c.Stop(ctx)
}

func (p *played) publish(to string, m any, qos byte, retain bool) {
	p.t.Helper()
	if err := p.c.Publish(p.t.Context(), client.Message{Topic: to, Payload: protocol.Marshal(m), QoS: qos, Retain: retain}); err != nil {
		p.t.Fatal(err)
	}
}

// online reports that the site is connected.
func (p *played) online() {
	p.t.Helper()
	p.session = rand.Text()
	p.publish(topic.ForSite(topic.SiteOnline, "plant"), protocol.Presence{V: 1, Online: true, Session: p.session}, 1, true)
}

// next returns the next message of a kind that pick takes, of those that were not asked for before; nil: any.
func (p *played) next(kind topic.Kind, pick func(t topic.Topic, payload []byte) bool) (topic.Topic, []byte) {
	p.t.Helper()
	deadline := time.After(time.Minute)
	for i := 0; ; i++ {
		if i == len(p.kept) {
			select {
			case m := <-p.got:
				p.kept = append(p.kept, m)
			case <-deadline:
				p.t.Fatalf("no message of kind %s", kind)
			}
		}
		m := p.kept[i]
		if parsed, err := topic.Parse(m.Topic); err == nil && parsed.Kind == kind && (pick == nil || pick(parsed, m.Payload)) {
			p.kept = slices.Delete(p.kept, i, i+1)
			return parsed, m.Payload
		}
	}
}

// asked returns the next command that the site is asked for.
func (p *played) asked() *command.Command {
	p.t.Helper()
	at, payload := p.next(topic.SiteCommand, func(_ topic.Topic, payload []byte) bool { return len(payload) > 0 })
	var e command.Envelope
	if err := command.Unmarshal(payload, &e); err != nil {
		p.t.Fatal(err)
	}
	c, err := command.Open(p.set.Trust, "plant", e.Statement)
	if err != nil {
		p.t.Fatal(err)
	}
	if string(c.ID) != at.Tail || len(e.KeySet) == 0 {
		p.t.Fatalf("command %s on the topic of %s, with a key set of %d bytes", c.ID, at.Tail, len(e.KeySet))
	}
	return c
}

// cleared waits until nothing of a command is published.
func (p *played) cleared(id command.ID) {
	p.t.Helper()
	p.next(topic.SiteCommand, func(t topic.Topic, payload []byte) bool { return t.Tail == string(id) && len(payload) == 0 })
}

// report sends events and waits until they are committed.
func (p *played) report(events ...protocol.Event) {
	p.t.Helper()
	b := protocol.Batch{V: 1, Epoch: "e", First: p.events + 1, Count: uint32(len(events))}
	for _, e := range events {
		e.UnixMillis = 1_700_000_000_000
		b.Events = append(b.Events, protocol.Marshal(e)...)
	}
	p.events += uint64(len(events))
	p.publish(topic.ForSite(topic.Up, "plant"), b, 1, false)
	p.next(topic.Ack, func(_ topic.Topic, payload []byte) bool {
		var ack protocol.Ack
		return protocol.Unmarshal(payload, &ack) == nil && ack.Stream == "" && ack.Seq >= p.events
	})
}

func nodeUp(node protocol.NodeID) protocol.Event {
	return protocol.Event{Kind: protocol.NodeOnlineEvent, Node: node, Body: protocol.Marshal(protocol.Presence{V: 1, Online: true, Session: "x"})}
}

// runs reports that a node has the deployment meter.
func runs(node protocol.NodeID) protocol.Event {
	return protocol.Event{Kind: protocol.StatusEvent, Node: node, Body: protocol.Marshal(protocol.DeploymentStatus{
		V: 1, Node: node, Deployment: "meter", State: lifecycle.Pending, Actor: lifecycle.LO,
	})}
}

func received(id command.ID, nodes uint64) protocol.Event {
	return protocol.Event{Kind: protocol.CommandReceived, Body: protocol.Marshal(command.Received{V: 1, ID: id, Nodes: nodes})}
}

func result(id command.ID, node protocol.NodeID, state command.State, more ...func(*command.Result)) protocol.Event {
	r := command.Result{V: 1, ID: id, Node: node, State: state}
	for _, f := range more {
		f(&r)
	}
	return protocol.Event{Kind: protocol.CommandResult, Node: node, Body: protocol.Marshal(r)}
}

// restart asks for a restart of the deployment meter on nodes of site plant.
func (b *bench) restart(nodes ...string) fleet.Command {
	b.t.Helper()
	var c fleet.Command
	b.call(http.MethodPost, "/api/v1/commands", map[string]any{
		"kind": "restart", "args": map[string]any{"deployment": "meter"}, "targets": []any{map[string]any{"site": "plant", "nodes": nodes}},
	}, &c)
	return c
}

// shown waits until the CO shows of a command what is wanted.
func (b *bench) shown(id command.ID, want func(fleet.Command) bool) fleet.Command {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var c fleet.Command
		b.call(http.MethodGet, "/api/v1/commands/"+string(id), nil, &c)
		if want(c) {
			return c
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the command is %+v", c)
		}
	}
}

// TestCommandToSiteAndBack follows a command from the API to its site, and the results of its nodes back.
func TestCommandToSiteAndBack(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"), nodeUp("gw-2"), runs("gw-1"), runs("gw-2"))
	made := b.restart("gw-2", "gw-1")
	if made.State != "open" || made.Counts.Nodes != 2 || len(made.Sites) != 1 || made.Sites[0].State != fleet.CommandWaiting {
		t.Errorf("made %+v", made)
	}
	c := lo.asked()
	if c.ID != made.ID || c.Kind != command.Restart || len(c.Nodes) != 2 || c.Nodes[0] != "gw-1" || c.DeadlineMillis-c.IssuedMillis != 600_000 {
		t.Errorf("asked for %+v", c)
	}
	var subject command.Subject
	if err := protocol.Unmarshal(c.Args, &subject); err != nil || subject.Deployment != "meter" {
		t.Errorf("arguments %+v, %v", subject, err)
	}
	// The time that a site needs before it lets a command begin.
	before := time.Now().UnixMilli()
	lo.publish(topic.ForSite(topic.SiteTimeAsk, "plant"), command.TimeAsk{V: 1, Nonce: 77}, 0, false)
	var now command.Time
	if _, payload := lo.next(topic.SiteTime, nil); command.Unmarshal(payload, &now) != nil || now.Nonce != 77 || now.UnixMillis < before {
		t.Errorf("the time is %+v, asked at %d", now, before)
	}
	lo.report(received(c.ID, 2), result(c.ID, "gw-1", command.Running), result(c.ID, "gw-2", command.Running))
	lo.report(result(c.ID, "gw-1", command.Done, func(r *command.Result) { r.Output, r.DurationMillis = "restarted", 7 }))
	if got := b.shown(c.ID, func(fleet.Command) bool { return true }); got.Counts != (fleet.CommandCounts{Nodes: 2, Running: 1, Done: 1}) || got.Sites[0].State != fleet.CommandRunning || got.Sites[0].ReceivedAt == nil {
		t.Errorf("half done: %+v", got)
	}
	lo.report(result(c.ID, "gw-2", command.Failed, func(r *command.Result) { r.Code, r.Message = command.ExecutionFailed, "no" }), result(c.ID, "gw-1", command.Running))
	if got := b.shown(c.ID, func(fleet.Command) bool { return true }); got.State != "ended" || got.Counts != (fleet.CommandCounts{Nodes: 2, Done: 1, Failed: 1}) {
		t.Errorf("ended: %+v", got)
	}
	lo.cleared(c.ID)
	var results commandsapi.Results
	b.call(http.MethodGet, "/api/v1/commands/"+string(c.ID)+"/results", nil, &results)
	if len(results.Items) != 2 || results.Items[0].Output != "restarted" || results.Items[0].Duration != 7 || results.Items[1].Code != command.ExecutionFailed || results.Items[1].By != fleet.ByNode {
		t.Errorf("results %+v", results.Items)
	}
	var events struct{ Items []fleet.Event }
	b.call(http.MethodGet, "/api/v1/events?site=plant&kind=command_received,command_result", nil, &events)
	if len(events.Items) != 6 || !strings.Contains(events.Items[0].Message, string(c.ID)) || events.Items[4].Node != "gw-2" || events.Items[4].Code != "execution_failed" {
		t.Errorf("events %+v", events.Items)
	}
	for query, want := range map[string]bool{"site=plant": false, "site=plant&results=true": true} {
		b.call(http.MethodGet, "/api/v1/events?"+query, nil, &events)
		if got := slices.ContainsFunc(events.Items, func(e fleet.Event) bool { return e.Kind == string(protocol.CommandResult) }); got != want {
			t.Errorf("events of %s have results of nodes: %t, want %t", query, got, want)
		}
	}
	var list commandsapi.Commands
	b.call(http.MethodGet, "/api/v1/commands?site=plant&state=ended&kind=restart&q=METER", nil, &list)
	if len(list.Items) != 1 || list.Items[0].ID != c.ID {
		t.Errorf("listed %+v", list.Items)
	}
	for _, query := range []string{"state=open", "kind=probe", "q=other", "since=2100-01-01T00:00:00Z", "site=elsewhere"} {
		b.call(http.MethodGet, "/api/v1/commands?"+query, nil, &list)
		if len(list.Items) != 0 {
			t.Errorf("%s: %+v", query, list.Items)
		}
	}
	// One that the site reports although it has ended is cleared once again.
	lo.report(result(c.ID, "gw-1", command.Done))
	lo.cleared(c.ID)
}

// stopSite ends the LO that the bench plays: another one takes its place.
func (b *bench) stopSite() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.site.Stop(ctx); err != nil {
		b.t.Fatal(err)
	}
}

// TestCommandsOutliveTheCO restarts the CO, whose broker forgets what it retains: what has not ended is published again, what
// was cancelled is known to a site that was away meanwhile, and what has ended does not come back.
func TestCommandsOutliveTheCO(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"))
	ended, open, running, back := b.restart("gw-1"), b.restart("gw-1"), b.restart("gw-1"), b.restart("gw-1")
	for range 4 {
		lo.asked()
	}
	lo.report(received(ended.ID, 1), result(ended.ID, "gw-1", command.Done), received(running.ID, 1), result(running.ID, "gw-1", command.Running))
	lo.cleared(ended.ID)
	lo.stop()
	var after fleet.Command
	b.call(http.MethodDelete, "/api/v1/commands/"+string(back.ID), nil, &after)
	if after.Sites[0].State != fleet.CommandCancelled || after.Counts.Refused != 1 {
		t.Errorf("cancelled: %+v", after)
	}
	b.call(http.MethodDelete, "/api/v1/commands/"+string(running.ID), nil, &after)
	if after.Sites[0].State != fleet.CommandRunning || after.Sites[0].CancelledAt == nil || after.Counts.Running != 1 {
		t.Errorf("cancelled while it runs: %+v", after)
	}
	b.coStop()
	again, err := co.New(b.options)
	if err != nil {
		t.Fatal(err)
	}
	b.co = again
	b.coStop = testpart.Start(t, again)
	lo = play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.events = 5
	lo.online()
	seen := map[command.ID]string{}
	for len(seen) < 3 {
		at, payload := lo.next(topic.SiteCommand, nil)
		seen[command.ID(at.Tail)] = fmt.Sprint(len(payload) > 0)
	}
	want := map[command.ID]string{open.ID: "true", running.ID: "false", back.ID: "false"}
	for id, published := range want {
		if seen[id] != published {
			t.Errorf("command %s: published %q, want %s (%v)", id, seen[id], published, seen)
		}
	}
	lo.report(result(running.ID, "gw-1", command.Done))
	if got := b.shown(running.ID, func(fleet.Command) bool { return true }); got.State != "ended" || got.Counts.Done != 1 {
		t.Errorf("what had begun and was cancelled: %+v", got)
	}
	// The site had begun it after all: that counts more than what the CO believed.
	lo.report(received(back.ID, 1), result(back.ID, "gw-1", command.Done))
	if got := b.shown(back.ID, func(fleet.Command) bool { return true }); got.Sites[0].State != fleet.CommandEnded || got.Counts.Done != 1 || got.Counts.Refused != 0 {
		t.Errorf("begun before it was cancelled: %+v", got)
	}
}

// TestCommandsAreRefused asks for what cannot be.
func TestCommandsAreRefused(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign, func(o *co.Options) { o.Access.Required = true })
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"), runs("gw-1"))
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	other := b.scopedToken(access.Operator, "elsewhere")
	const (
		args    = `"args":{"deployment":"meter"}`
		targets = `"targets":[{"site":"plant","nodes":["gw-1"]}]`
	)
	for body, want := range map[string]string{
		`{"kind":"restart",` + args + `,` + targets + `}`:                                          "201 gw-1",
		`{"kind":"restart",` + args + `,"targets":[{"site":"plant"}]}`:                             `201 "nodes":["gw-1"]`,
		`{"kind":"inventory","targets":[{"site":"plant","all":true}]}`:                             "201 all",
		`{"kind":"dance",` + targets + `}`:                                                         "422 want one of restart, probe",
		`{"kind":"logs",` + args + `,` + targets + `}`:                                             "422 /logs",
		`{"kind":"restart",` + targets + `}`:                                                       "422 needs arguments",
		`{"kind":"restart","args":{"deployment":"meter","speed":9},` + targets + `}`:               `422 unknown key \"speed\"`,
		`{"kind":"restart","args":{"deployment":9},` + targets + `}`:                               "422 deployment: want a protocol.DeploymentName",
		`{"kind":"inventory",` + args + `,` + targets + `}`:                                        "422 has no arguments",
		`{"kind":"network-check","args":{"method":"smoke","target":"a"},` + targets + `}`:          "422 want dns, tcp or ping",
		`{"kind":"restart",` + args + `,"targets":[{"site":"plant","nodes":["gw-1"],"all":true}]}`: "422 one of them",
		`{"kind":"inventory","targets":[{"site":"plant"}]}`:                                        "422 want nodes by name",
		`{"kind":"inventory","targets":[{"site":"plant","all":true},{"site":"plant","all":true}]}`: "422 twice",
		`{"kind":"inventory","targets":[]}`:                                                        "422 want 1 to 1000 sites",
		`{"kind":"inventory","targets":[{"site":"nowhere","all":true}]}`:                           `404 no site \"nowhere\"`,
		`{"kind":"inventory","targets":[{"site":"plant","nodes":["gw-9"]}]}`:                       "404 no node gw-9",
		`{"kind":"restart","args":{"deployment":"none"},"targets":[{"site":"plant"}]}`:             "404 none",
		`{"kind":"inventory","deadline":"48h","targets":[{"site":"plant","all":true}]}`:            "422 from 1s to 24h",
		`{"kind":"inventory","deadline":"soon","targets":[{"site":"plant","all":true}]}`:           "422 body.deadline",
		`{"kind":"inventory","speed":9,"targets":[{"site":"plant","all":true}]}`:                   "422 unexpected property",
		`{"kind":"restart",` + args + `,"targets":[{"site":"plant","selector":{"":"x"}}]}`:         "422 labels with names",
	} {
		status, said := b.ask(http.MethodPost, "/api/v1/commands", admin, body)
		code, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(status) != code || !strings.Contains(said, text) {
			t.Errorf("%s: %d %s, want %s", body, status, said, want)
		}
	}
	// For a token of other sites there is no command of this one.
	var made fleet.Command
	_, said := b.ask(http.MethodPost, "/api/v1/commands", admin, `{"kind":"inventory","targets":[{"site":"plant","all":true}]}`)
	if err := json.Unmarshal([]byte(said), &made); err != nil || made.Actor != "root" {
		t.Fatalf("%s: %v", said, err)
	}
	for call, want := range map[string]int{
		"GET /api/v1/commands/" + string(made.ID): 404, "GET /api/v1/commands/" + string(made.ID) + "/results": 404, "DELETE /api/v1/commands/" + string(made.ID): 404,
		"GET /api/v1/commands/nonsense": 422, "GET /api/v1/commands/" + strings.Repeat("0", 32): 404, "GET /api/v1/commands?site=plant": 403, "GET /api/v1/deployments/plant/meter/logs": 403,
	} {
		method, path, _ := strings.Cut(call, " ")
		if status, said := b.ask(method, path, other, ""); status != want {
			t.Errorf("%s with a token of another site: %d %s, want %d", call, status, said, want)
		}
	}
	if status, said := b.ask(http.MethodPost, "/api/v1/commands", other, `{"kind":"inventory","targets":[{"site":"plant","all":true}]}`); status != http.StatusForbidden {
		t.Errorf("made with a token of another site: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodGet, "/api/v1/commands", other, ""); status != http.StatusOK || !strings.Contains(said, `"items":[]`) {
		t.Errorf("list of another site: %d %s", status, said)
	}
	// The audit names the caller of each operation.
	if status, said := b.ask(http.MethodGet, "/api/v1/audit?target=/api/v1/commands&principal=root", admin, ""); status != http.StatusOK || !strings.Contains(said, "command "+string(made.ID)+": inventory; at plant: all nodes") {
		t.Errorf("audit: %d %s", status, said)
	}
}

// TestNoCommandsWithoutKeys asks a CO for a command that has no keys.
func TestNoCommandsWithoutKeys(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s"}, true)
	deadline := time.Now().Add(time.Minute)
	for {
		status, said := b.ask(http.MethodPost, "/api/v1/commands", "", `{"kind":"inventory","targets":[{"site":"plant","all":true}]}`)
		if status == http.StatusConflict && strings.Contains(said, "colony co keys init") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %s", status, said)
		}
	}
}

// logs opens a stream of logs; left is called to leave.
func (b *bench) logs(query string, header ...string) (resp *http.Response, leave func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.co.HTTPAddr()+"/api/v1/deployments/plant/meter/logs"+query, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Close = true
	resp, err = http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { cancel(); _ = resp.Body.Close() })
	return resp, cancel
}

// frame is a frame with lines.
func frame(seq uint64, node protocol.NodeID, end bool, lines ...command.LogLine) command.Frame {
	f := command.Frame{V: 1, Seq: seq, Node: node, Items: uint64(len(lines)), End: end}
	for _, l := range lines {
		f.Data = append(f.Data, protocol.Marshal(l)...)
	}
	return f
}

// send sends a frame of a command.
func (p *played) send(id command.ID, f command.Frame) {
	p.t.Helper()
	p.publish(topic.ForCommand(topic.SiteLive, "plant", string(id)), f, 0, false)
}

// credit returns the next credit of a command.
func (p *played) credit(id command.ID) command.Credit {
	p.t.Helper()
	var c command.Credit
	_, payload := p.next(topic.SiteCredit, func(t topic.Topic, _ []byte) bool { return t.Tail == string(id) })
	if err := command.Unmarshal(payload, &c); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// TestLogs reads the logs of two nodes as text.
func TestLogs(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"), nodeUp("gw-2"), runs("gw-1"), runs("gw-2"))
	asked := make(chan command.ID, 1)
	go func() {
		c := lo.asked()
		var req command.LogRequest
		if err := protocol.Unmarshal(c.Args, &req); err != nil || req.Tail != 5 || req.Grep != "a.b" || req.SinceMillis != 600_000 || req.Container != "nginx" || req.Stream != "stderr" || len(c.Nodes) != 2 {
			t.Errorf("asked for %+v of %v: %v", req, c.Nodes, err)
		}
		if n := lo.credit(c.ID); n.End || n.Bytes < 8<<10 {
			t.Errorf("credit %+v", n)
		}
		lo.send(c.ID, frame(1, "gw-1", false, command.LogLine{Component: "web", Container: "nginx", UnixMillis: 1700000000000, Text: "one"}, command.LogLine{Container: "db", Text: "two", CutBytes: 9, UnixMillis: 1700000000001}))
		f := frame(2, "gw-1", true, command.LogLine{Text: "four", LostLines: 3, LostBytes: 40})
		f.LostItems, f.LostBytes = 7, 700
		lo.send(c.ID, f)
		end := frame(1, "gw-2", true)
		end.Code, end.Message = command.BudgetUsed, "enough"
		lo.send(c.ID, end)
		asked <- c.ID
	}()
	resp, _ := b.logs("?tail=5&grep=a.b&since=10m&container=nginx&stream=stderr&timestamps=true")
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %v", resp.Status, text, err)
	}
	var nodes [2]string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "[gw-1] ") {
			nodes[0] += line
		} else {
			nodes[1] += line
		}
	}
	if want := "[gw-1] 2023-11-14T22:13:20.000Z one\n[gw-1] 2023-11-14T22:13:20.001Z two... (9 bytes more)\n[gw-1] --- 7 lines (700 bytes) are missing here ---\n" +
		"[gw-1] --- 3 lines (40 bytes) are missing here ---\n[gw-1] - four\n"; nodes[0] != want {
		t.Errorf("gw-1:\n%swant\n%s", nodes[0], want)
	}
	if want := "[gw-2] --- node gw-2: failed (budget_used): enough ---\n"; nodes[1] != want {
		t.Errorf("gw-2: %s", nodes[1])
	}
	if c := lo.credit(<-asked); !c.End {
		for !c.End { // some came before
			c = lo.credit(command.ID(resp.Header.Get("Colony-Command")))
		}
	}
}

// TestLogsAreFollowed follows a log as events, and leaves.
func TestLogsAreFollowed(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"), runs("gw-1"))
	asked := make(chan *command.Command, 1)
	go func() {
		c := lo.asked()
		lo.report(received(c.ID, 1), result(c.ID, "gw-1", command.Running))
		asked <- c
	}()
	resp, leave := b.logs("?follow=true", "Accept", "text/event-stream")
	c := <-asked
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return ""
	}
	if got := next(); !strings.Contains(got, string(c.ID)) || !strings.Contains(got, `"nodes":["gw-1"]`) {
		t.Errorf("begin: %s", got)
	}
	lo.send(c.ID, frame(1, "gw-1", false, command.LogLine{Component: "web", Container: "nginx", Text: "one"}))
	if got := next(); got != `{"node":"gw-1","component":"web","container":"nginx","text":"one"}` {
		t.Errorf("line: %s", got)
	}
	lo.send(c.ID, frame(1, "gw-1", false, command.LogLine{Text: "again"})) // as QoS 0 may after a reconnection
	lo.send(c.ID, frame(4, "gw-1", false, command.LogLine{Text: "two"}))
	if got := next(); got != `{"node":"gw-1","lines":1}` {
		t.Errorf("frames that did not arrive: %s", got)
	}
	if got := next(); !strings.Contains(got, `"text":"two"`) {
		t.Errorf("line: %s", got)
	}
	leave()
	for credit := lo.credit(c.ID); !credit.End; {
		credit = lo.credit(c.ID)
	}
	lo.report(result(c.ID, "gw-1", command.Done))
	lo.cleared(c.ID)
}

// meanwhile runs what the site does while a request is open; the function that it returns waits for its end.
func meanwhile(do func()) (waitFor func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	return func() { <-done }
}

// TestLogsThatCannotBeRead asks for logs that no node sends.
func TestLogsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	b := start(t, sign)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	offline := protocol.Event{Kind: protocol.NodeOfflineEvent, Node: "gw-2", Body: protocol.Marshal(protocol.Presence{V: 1})}
	lo.report(nodeUp("gw-1"), nodeUp("gw-2"), nodeUp("gw-3"), runs("gw-1"), runs("gw-2"), offline)
	for query, want := range map[string]string{
		"?node=gw-2":                 "503 node plant/gw-2 is offline since",
		"?node=gw-3":                 "404 does not have the deployment \\\"meter\\\"; these do: gw-1, gw-2",
		"?node=gw-9":                 "404 gw-9",
		"?node=GW":                   "422 query.node",
		"?grep=(":                    "422 pattern",
		"?since=yesterday":           "422 query.since",
		"?follow=true&previous=true": "422 no new lines",
		"?stream=stdin":              "422 stream",
		"?speed=9":                   "422 speed",
	} {
		resp, _ := b.logs(query)
		text, _ := io.ReadAll(resp.Body)
		code, say, _ := strings.Cut(want, " ")
		if !strings.HasPrefix(resp.Status, code) || !strings.Contains(string(text), say) {
			t.Errorf("%s: %s %s, want %s", query, resp.Status, text, want)
		}
	}
	waitFor := meanwhile(func() {
		c := lo.asked()
		lo.send(c.ID, frame(1, "gw-1", true, command.LogLine{Text: "here"}))
		lo.report(received(c.ID, 1), result(c.ID, "gw-1", command.Done))
	})
	some, _ := b.logs("")
	if text, _ := io.ReadAll(some.Body); some.StatusCode != http.StatusOK || !strings.Contains(string(text), "[gw-2] --- node gw-2: unknown (node_away): the node is offline since") || !strings.Contains(string(text), "[gw-1] here\n") {
		t.Errorf("one of two nodes is offline: %s %s", some.Status, text)
	}
	waitFor()
	waitFor = meanwhile(func() {
		c := lo.asked()
		lo.report(received(c.ID, 1), result(c.ID, "gw-1", command.Refused, func(r *command.Result) { r.Code, r.Message = command.NoSuchSubject, "no container db" }))
	})
	resp, _ := b.logs("?node=gw-1&container=db")
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNotFound || !strings.Contains(string(text), "no container db; what containers wrote that run no more: colony logs plant/meter --previous") {
		t.Errorf("a container that is not there: %s %s", resp.Status, text)
	}
	waitFor()
	waitFor = meanwhile(func() {
		lo.asked()
		lo.report(protocol.Event{Kind: protocol.NodeOfflineEvent, Node: "gw-1", Body: protocol.Marshal(protocol.Presence{V: 1})})
	})
	resp, _ = b.logs("?node=gw-1")
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "node plant/gw-1 is offline since") {
		t.Errorf("a node that goes offline before it answers: %s %s", resp.Status, text)
	}
	waitFor()
	lo.publish(topic.ForSite(topic.SiteOnline, "plant"), protocol.Presence{V: 1, Session: lo.session}, 1, true)
	deadline := time.Now().Add(time.Minute)
	for {
		resp, leave := b.logs("?node=gw-1")
		text, _ := io.ReadAll(resp.Body)
		leave()
		if resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(text), `site \"plant\" is offline since`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s", resp.Status, text)
		}
	}
}
