package co_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	"github.com/colonyfleet/colony/co/api/commands/socket"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/duplex"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// visited is the node gw-1 of site plant, at a program that a session runs: it shows what it is given, and ends with 3 at "exit".
type visited struct {
	lo    *played
	id    command.ID
	peer  *duplex.Peer
	ended chan struct{} // closed when the output is not read any more
}

// visit plays the node of the next session.
func (p *played) visit(ctx context.Context) *visited {
	c := p.asked()
	v := &visited{p, c.ID, duplex.New(), make(chan struct{})}
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	write := func(r command.Record) { _ = v.peer.Write(ctx, &r) }
	seq, bytes := uint64(0), uint64(0)
	work.Go(func() {
		_ = v.peer.Send(ctx, func(m *command.Segment) error {
			data := protocol.Marshal(m)
			seq, bytes = seq+1, bytes+uint64(len(data))
			return p.c.Publish(ctx, client.Message{
				Topic: topic.ForCommand(topic.SiteLive, "plant", string(c.ID)), Payload: protocol.Marshal(command.Frame{V: 1, Seq: seq, Node: "gw-1", Items: 1, Data: data, TotalItems: seq, TotalBytes: bytes}),
			})
		})
	})
	work.Go(func() {
		_ = v.peer.Serve(ctx, func(list []command.Record) error {
			for _, r := range list {
				switch {
				case r.Kind == command.Stdin && string(r.Data) == "exit":
					write(command.Record{Kind: command.Exit, Code: 3})
				case r.Kind == command.Stdin:
					write(command.Record{Kind: command.Stdout, Data: r.Data})
				default:
					write(command.Record{Kind: command.Stderr, Data: []byte(string(r.Kind) + " " + r.Name + "\n")})
				}
			}
			return nil
		})
	})
	work.Go(func() { // what comes down
		for {
			var m client.Message
			select {
			case m = <-p.got:
			case <-ctx.Done():
				return
			}
			parsed, err := topic.Parse(m.Topic)
			if err != nil || parsed.Tail != string(c.ID) {
				continue
			}
			switch parsed.Kind { //nolint:exhaustive // the others are not about it
			case topic.SiteInput:
				var s command.Segment
				if command.Unmarshal(m.Payload, &s) == nil && s.Node == "gw-1" {
					_ = v.peer.Accept(&s)
				}
			case topic.SiteCredit:
				var credit command.Credit
				if command.Unmarshal(m.Payload, &credit) == nil && credit.End {
					stop()
				}
			}
		}
	})
	go func() {
		defer close(v.ended)
		work.Wait()
	}()
	p.t.Cleanup(func() { stop(); <-v.ended })
	write(command.Record{Kind: command.Began, Name: "main/web"})
	return v
}

const execPath = "/api/v1/deployments/plant/meter/exec?argument=sh&argument=-l&input=true&terminal=true&columns=90&rows=33"

// dial opens a session.
func (b *bench) dial(path, token string) (*websocket.Conn, *http.Response, error) {
	b.t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	d := websocket.Dialer{Subprotocols: []string{socket.Protocol}, HandshakeTimeout: time.Minute}
	conn, resp, err := d.DialContext(b.t.Context(), "ws://"+b.co.HTTPAddr()+path, header)
	if conn != nil {
		b.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, resp, err
}

// awaits reads messages until one is a control of a type, and returns it with what was shown before.
func awaits(t *testing.T, conn *websocket.Conn, kind string) (c socket.Control, stdout, stderr string) {
	t.Helper()
	for {
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		k, message, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("before %s: %v", kind, err)
		}
		switch {
		case k == websocket.BinaryMessage && message[0] == socket.ChannelStdout:
			stdout += string(message[1:])
		case k == websocket.BinaryMessage:
			stderr += string(message[1:])
		default:
			c = socket.Control{}
			if err := json.Unmarshal(message, &c); err != nil {
				t.Fatal(err)
			}
			if c.Type == kind {
				return c, stdout, stderr
			}
		}
	}
}

func types(t *testing.T, conn *websocket.Conn, kind int, text string) {
	t.Helper()
	if err := conn.WriteMessage(kind, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// inhabited is a CO whose site plant has the node gw-1 with the deployment meter.
func inhabited(t *testing.T, change ...func(*co.Options)) (*bench, *played) {
	t.Helper()
	set, sign := signing(t)
	b := start(t, append(change, sign)...)
	b.stopSite()
	lo := play(t, "tcp://"+b.co.MQTTAddr(), set)
	lo.online()
	lo.report(nodeUp("gw-1"), runs("gw-1"))
	return b, lo
}

// TestSession runs a program at a node that the test plays, by WebSocket, and reads what was recorded.
func TestSession(t *testing.T) {
	t.Parallel()
	b, lo := inhabited(t)
	if _, resp, err := b.dial(execPath, ""); err == nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("at a site that does not allow it: %v, %v", resp, err)
	}
	b.call(http.MethodPut, "/api/v1/sites/plant/exec", map[string]bool{"allowed": true}, nil)
	b.badHandshakes(t)

	conn, _, err := b.dial(execPath, "")
	if err != nil {
		t.Fatal(err)
	}
	v := lo.visit(t.Context())
	opened, _, _ := awaits(t, conn, "open")
	if s := opened.Session; s == nil || s.ID != v.id || s.Node != "gw-1" || !s.Terminal {
		t.Fatalf("opened %+v", opened.Session)
	}
	awaits(t, conn, "began")
	types(t, conn, websocket.BinaryMessage, "\x00h\xc3\xb6llo")
	types(t, conn, websocket.TextMessage, `{"type":"resize","columns":120,"rows":40}`)
	types(t, conn, websocket.TextMessage, `{"type":"signal","signal":"TERM"}`)
	types(t, conn, websocket.BinaryMessage, "\x00exit")
	exit, stdout, stderr := awaits(t, conn, "exit")
	end, _, _ := awaits(t, conn, "end")
	if stdout != "höllo" || stderr != "resize \nsignal TERM\n" || *exit.ExitCode != 3 || *end.ExitCode != 3 || end.Reason != fleet.SessionExited {
		t.Errorf("shown %q and %q, ended %+v", stdout, stderr, end)
	}
	<-v.ended
	var asked struct{ Args map[string]any }
	if b.call(http.MethodGet, "/api/v1/commands/"+string(v.id), nil, &asked); asked.Args["deployment"] != "meter" || asked.Args["arguments"] != nil {
		t.Errorf("the command shows %v", asked.Args)
	}
	var s fleet.Session
	b.call(http.MethodGet, "/api/v1/sessions/"+string(v.id), nil, &s)
	if s.EndedAt == nil || s.BeganAt == nil || s.Container != "web" || s.Component != "main" || *s.ExitCode != 3 || strings.Join(s.Arguments, " ") != "sh -l" {
		t.Errorf("session %+v", s)
	}
	recorded := b.recording(t, v.id, "")
	if sum := sha256.Sum256(recorded); s.Digest != protocol.Digest("sha256:"+hex.EncodeToString(sum[:])) || s.Recorded != int64(len(recorded)) {
		t.Errorf("a recording of %d bytes, recorded as %d, %s", len(recorded), s.Recorded, s.Digest)
	}
	for _, want := range []string{`"width":90,"height":33`, `"o","höllo"]`, `"r","120x40"]`, `"o","signal TERM\n"]`} {
		if !bytes.Contains(recorded, []byte(want)) {
			t.Errorf("%s is not in the recording:\n%s", want, recorded)
		}
	}
	b.stopped(t, lo)
	b.idle(t, lo)
}

// TestSessionWithoutSiteFile removes the file of a site that allows sessions, and spoils it: what was in force is.
func TestSessionWithoutSiteFile(t *testing.T) {
	t.Parallel()
	for problem, content := range map[string]string{"it is missing": "", "line 1": "spec: x\n"} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			b, lo := inhabited(t)
			b.call(http.MethodPut, "/api/v1/sites/plant/data-rules", map[string]string{
				"document": "apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec: {exec: allowed, data: {rules: [{name: a, direction: up, topics: [a]}]}}\n",
			}, nil)
			b.event(fleet.DataRulesChanged, "1 rule")
			b.push(func(dir string) {
				name := filepath.Join(dir, "sites/plant/site.yaml")
				err := os.Remove(name)
				if content != "" {
					err = os.WriteFile(name, []byte(content), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			b.event(fleet.DataRulesInvalid, problem)
			conn, _, err := b.dial(execPath, "")
			if err != nil {
				t.Fatal(err)
			}
			v := lo.visit(t.Context())
			awaits(t, conn, "began")
			types(t, conn, websocket.BinaryMessage, "\x00exit")
			awaits(t, conn, "end")
			<-v.ended
		})
	}
}

// idle has a session end where nothing is typed for as long as its client said.
func (b *bench) idle(t *testing.T, lo *played) {
	t.Helper()
	conn, _, err := b.dial(execPath+"&idle=1s", "")
	if err != nil {
		t.Fatal(err)
	}
	v := lo.visit(t.Context())
	awaits(t, conn, "began")
	if end, _, _ := awaits(t, conn, "end"); end.Reason != fleet.SessionIdle {
		t.Errorf("ended %+v", end)
	}
	<-v.ended
}

func (b *bench) recording(t *testing.T, id command.ID, query string) []byte {
	t.Helper()
	resp, err := http.Get("http://" + b.co.HTTPAddr() + "/api/v1/sessions/" + string(id) + "/recording" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return body
}

// badHandshakes asks for sessions by what is no opening handshake: nothing of them is left.
func (b *bench) badHandshakes(t *testing.T) {
	t.Helper()
	good := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
	for name, tt := range map[string]struct {
		change func(h http.Header)
		path   string
		want   int
	}{
		"no upgrade":     {func(h http.Header) { h.Del("Upgrade") }, execPath, http.StatusUpgradeRequired},
		"no connection":  {func(h http.Header) { h.Set("Connection", "close") }, execPath, http.StatusBadRequest},
		"version 8":      {func(h http.Header) { h.Set("Sec-Websocket-Version", "8") }, execPath, http.StatusBadRequest},
		"no key":         {func(h http.Header) { h.Del("Sec-Websocket-Key") }, execPath, http.StatusBadRequest},
		"short key":      {func(h http.Header) { h.Set("Sec-Websocket-Key", "YQ==") }, execPath, http.StatusBadRequest},
		"another origin": {func(h http.Header) { h.Set("Origin", "https://evil.example") }, execPath, http.StatusForbidden},
		"no program":     {func(http.Header) {}, "/api/v1/deployments/plant/meter/exec", http.StatusUnprocessableEntity},
		"idle for years": {func(http.Header) {}, execPath + "&idle=9000h", http.StatusUnprocessableEntity},
		"no duration":    {func(http.Header) {}, execPath + "&idle=soon", http.StatusUnprocessableEntity},
		"no such node":   {func(http.Header) {}, execPath + "&node=gw-9", http.StatusNotFound},
		"no deployment":  {func(http.Header) {}, strings.Replace(execPath, "meter", "none", 1), http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = good.Clone()
		tt.change(req.Header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %s, %s", name, resp.Status, body)
		}
	}
	var list commandsapi.SessionList
	b.call(http.MethodGet, "/api/v1/sessions", nil, &list)
	var commands commandsapi.Commands
	b.call(http.MethodGet, "/api/v1/commands", nil, &commands)
	if len(list.Items) > 0 || len(commands.Items) > 0 {
		t.Errorf("sessions %+v, commands %+v of no session", list.Items, commands.Items)
	}
}

// stopped has a session followed by another person, and ended by a third one.
func (b *bench) stopped(t *testing.T, lo *played) {
	t.Helper()
	conn, _, err := b.dial(execPath, "")
	if err != nil {
		t.Fatal(err)
	}
	v := lo.visit(t.Context())
	awaits(t, conn, "began")
	followed := make(chan []byte, 1)
	waitFor := meanwhile(func() { followed <- b.recording(t, v.id, "?follow=true") })
	types(t, conn, websocket.BinaryMessage, "\x00first")
	testpart.Eventually(t, "what was typed is recorded", func() bool { return bytes.Contains(b.recording(t, v.id, ""), []byte("first")) })
	b.call(http.MethodDelete, "/api/v1/sessions/"+string(v.id), nil, nil)
	if end, _, _ := awaits(t, conn, "end"); end.Reason != fleet.SessionStopped {
		t.Errorf("ended %+v", end)
	}
	waitFor()
	if got := <-followed; !bytes.Contains(got, []byte("first")) {
		t.Errorf("followed: %s", got)
	}
	<-v.ended
	var list commandsapi.SessionList
	b.call(http.MethodGet, "/api/v1/sessions?site=plant&open=false&limit=1", nil, &list)
	if len(list.Items) != 1 || list.Items[0].ID != v.id || list.Items[0].Reason != fleet.SessionStopped || list.Next == "" {
		t.Errorf("%+v", list)
	}
}

// TestSessionsNeedPermission has roles ask for a session, and a token that is revoked while its session is open; both are in the audit.
func TestSessionsNeedPermission(t *testing.T) {
	t.Parallel()
	b, lo := inhabited(t, func(o *co.Options) { o.Access.Required = true })
	_, admin := b.tokenOf("ada", access.Admin, time.Hour)
	_, operator := b.tokenOf("otto", access.Operator, time.Hour)
	if status, said := b.ask(http.MethodPut, "/api/v1/sites/plant/exec", operator, `{"allowed":true}`); status != http.StatusForbidden {
		t.Errorf("an operator allows programs: %d %s", status, said)
	}
	document, _ := json.Marshal(map[string]string{"document": "apiVersion: colony/v1\nkind: Site\nmetadata: {id: plant}\nspec: {exec: allowed}\n"})
	if status, said := b.ask(http.MethodPut, "/api/v1/sites/plant/data-rules", operator, string(document)); status != http.StatusForbidden {
		t.Errorf("an operator allows programs by the site's file: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodPut, "/api/v1/sites/plant/exec", admin, `{"allowed":true}`); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, said)
	}
	for _, text := range []string{operator, ""} {
		if _, resp, err := b.dial(execPath, text); err == nil || resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a session of who may not: %v, %v", resp, err)
		}
	}
	id, visitor := b.tokenOf("vera", access.Admin, time.Hour)
	conn, _, err := b.dial(execPath, visitor)
	if err != nil {
		t.Fatal(err)
	}
	v := lo.visit(t.Context())
	awaits(t, conn, "began")
	b.revoke(id, admin)
	if end, _, _ := awaits(t, conn, "end"); end.Reason != fleet.SessionDenied {
		t.Errorf("ended %+v", end)
	}
	<-v.ended
	testpart.Eventually(t, "the session is in the audit", func() bool {
		_, said := b.ask(http.MethodGet, "/api/v1/audit?principal=vera", admin, "")
		return strings.Contains(said, "recording sha256:") && strings.Contains(said, string(v.id)) && strings.Contains(said, `"status":101`)
	})
}

// TestSessionsEndWithTheCO stops a CO that carries a session: that is recorded, and the client and the audit learn it.
func TestSessionsEndWithTheCO(t *testing.T) {
	t.Parallel()
	b, lo := inhabited(t)
	b.call(http.MethodPut, "/api/v1/sites/plant/exec", map[string]bool{"allowed": true}, nil)
	conn, _, err := b.dial(execPath, "")
	if err != nil {
		t.Fatal(err)
	}
	v := lo.visit(t.Context())
	awaits(t, conn, "began")
	waitFor := meanwhile(b.coStop)
	if end, _, _ := awaits(t, conn, "end"); end.Reason != fleet.SessionCO {
		t.Errorf("ended %+v", end)
	}
	waitFor()
	c, err := co.New(b.options)
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, c)
	b.co = c
	var s fleet.Session
	b.call(http.MethodGet, "/api/v1/sessions/"+string(v.id), nil, &s)
	if s.Reason != fleet.SessionCO || s.Digest == "" {
		t.Errorf("session %+v", s)
	}
	var list struct {
		Items []struct {
			Operation, Detail string
			Status            int
		}
	}
	b.call(http.MethodGet, "/api/v1/audit", nil, &list)
	found := false
	for _, e := range list.Items {
		found = found || strings.HasSuffix(e.Operation, "/exec") && e.Status == http.StatusSwitchingProtocols && strings.Contains(e.Detail, "co_stopped") && strings.Contains(e.Detail, string(s.Digest))
	}
	if !found {
		t.Errorf("audit %+v", list.Items)
	}
}
