package command_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/session"
	"github.com/colonyfleet/colony/co/session/recording"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A person is at a program.
type person struct {
	typed chan command.Record
	left  chan struct{}
	once  sync.Once

	mu   sync.Mutex // protects what follows
	seen map[command.RecordKind]*bytes.Buffer
	came time.Time // the last output
}

func newPerson() *person {
	return &person{typed: make(chan command.Record), left: make(chan struct{}), seen: map[command.RecordKind]*bytes.Buffer{command.Stdout: {}, command.Stderr: {}, command.Began: {}}}
}

// Receive returns what was typed.
func (p *person) Receive() (command.Record, error) {
	select {
	case r := <-p.typed:
		return r, nil
	case <-p.left:
		return command.Record{}, errors.New("nobody is there any more")
	}
}

// Send shows something.
func (p *person) Send(r *command.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.seen[r.Kind]; b != nil {
		b.Write(r.Data)
		b.WriteString(r.Name)
	}
	p.came = time.Now()
	return nil
}

// Close ends Receive.
func (p *person) Close() { p.once.Do(func() { close(p.left) }) }

func (p *person) types(r command.Record) {
	select {
	case p.typed <- r:
	case <-p.left:
	}
}

func (p *person) text(s string) { p.types(command.Record{Kind: command.Stdin, Data: []byte(s)}) }

func (p *person) of(kind command.RecordKind) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[kind].String()
}

// sees waits until the program has shown a text.
func (p *person) sees(t *testing.T, text string) {
	t.Helper()
	testpart.Eventually(t, fmt.Sprintf("%q is shown", text), func() bool { return strings.Contains(p.of(command.Stdout), text) })
}

// A visit is a session that is under way.
type visit struct {
	*person
	id     command.ID
	record *bytes.Buffer
	end    chan fleet.SessionEnd
}

// visit opens a session.
func (c *co) visit(ctx context.Context, request command.ExecRequest) *visit {
	c.t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Deployment, request.Key = "app", public
	m := c.command(command.Exec, request, "n1")
	reader, err := c.hub.Open(plant, m.ID, 1)
	if err != nil {
		c.t.Fatal(err)
	}
	recorder, first := recording.New(recording.Header{Columns: request.Columns, Rows: request.Rows, At: time.Now(), Arguments: request.Arguments})
	v := &visit{newPerson(), m.ID, bytes.NewBuffer(first), make(chan fleet.SessionEnd, 1)}
	c.send(m)
	go func() {
		defer reader.Close(ctx)
		v.end <- session.Run(ctx, session.Options{
			ID: m.ID, Node: "n1", Key: key, Way: reader, Client: v.person, Idle: time.Hour, AnswerWait: time.Minute,
			Publish: func(ctx context.Context, payload []byte) error {
				return c.b.Publish(ctx, broker.Message{Topic: topic.ForCommand(topic.SiteInput, plant, string(m.ID)), Payload: payload})
			},
			Record: func(_ context.Context, chunk []byte) error { v.record.Write(chunk); return nil },
			Began:  func(context.Context, string, string) {},
			Result: func(context.Context) (*fleet.CommandResult, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, r := range c.results[m.ID]["n1"] {
					if r.State.Ended() {
						return &fleet.CommandResult{State: r.State, Code: r.Code, Message: r.Message}, nil
					}
				}
				return nil, nil
			},
		}, recorder, len(first))
	}()
	return v
}

// ends waits for the end of a session.
func (v *visit) ends(t *testing.T, reason fleet.SessionReason, code int32, message string) {
	t.Helper()
	select {
	case e := <-v.end:
		if e.Reason != reason || (e.ExitCode == nil) != (reason != fleet.SessionExited) || e.ExitCode != nil && *e.ExitCode != code || !strings.Contains(e.Message, message) {
			t.Errorf("the session ended %s (%v): %s; want %s, %d: %s", e.Reason, e.ExitCode, e.Message, reason, code, message)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the session does not end")
	}
}

// TestSessions runs programs in real containers, over real brokers, with a person at them.
func TestSessions(t *testing.T) {
	t.Parallel()
	daemon, registry, c := containerdtest.Start(t), containerdtest.NewRegistry(t), newCO(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	s := newSite(t, c)
	s.on(daemon, "n1", "10.97.0.0/16")
	c.desire(1, protocol.Container{Name: "web", Image: image, Command: []string{"wait"}, Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	for name, run := range map[string]func(t *testing.T, c *co){
		"outputs and code": codes, "terminal": terminals, "input": inputs, "leave": leave, "forged": forged, "what is not there": notThere,
	} {
		t.Run(name, func(t *testing.T) { run(t, c) })
	}
	t.Run("cut", func(t *testing.T) { cuts(t, c) }) // the last: all sessions would be cut
}

func program(arguments ...string) command.ExecRequest {
	return command.ExecRequest{Arguments: append([]string{"/toolbox"}, arguments...)}
}

func codes(t *testing.T, c *co) {
	v := c.visit(t.Context(), program("blame", "7", "to stderr", "to stdout"))
	v.ends(t, fleet.SessionExited, 7, "")
	if v.of(command.Stdout) != "to stdout\n" || v.of(command.Stderr) != "to stderr\n" || v.of(command.Began) != "main/web" {
		t.Errorf("shown: %q, %q, in %q", v.of(command.Stdout), v.of(command.Stderr), v.of(command.Began))
	}
	if got := v.record.String(); !strings.Contains(got, `"o","to stdout\n"]`) || !strings.Contains(got, `"o","to stderr\n"]`) {
		t.Errorf("recorded: %s", got)
	}
	c.ends(v.id, "n1", command.Done, "")
}

func terminals(t *testing.T, c *co) {
	r := program("shell")
	r.Terminal, r.Input, r.Columns, r.Rows = true, true, 90, 33
	v := c.visit(t.Context(), r)
	v.sees(t, "$ ")
	v.text("size\r")
	v.sees(t, "90x33")
	v.types(command.Record{Kind: command.Resize, Columns: 120, Rows: 40})
	v.text("size\r")
	v.sees(t, "120x40")
	v.text("\x03")
	v.sees(t, "interrupted")
	v.types(command.Record{Kind: command.Signal, Name: "INT"})
	testpart.Eventually(t, "the signal is shown", func() bool { return strings.Count(v.of(command.Stdout), "interrupted") == 2 })
	v.text("exit 5\r")
	v.ends(t, fleet.SessionExited, 5, "")
	if got := v.record.String(); !strings.Contains(got, `"r","120x40"]`) || !strings.Contains(got, "90x33") {
		t.Errorf("recorded: %s", got)
	}
}

func inputs(t *testing.T, c *co) {
	r := program("copy")
	r.Input = true
	v := c.visit(t.Context(), r)
	want := strings.Repeat("a line that is typed and comes back\n", 10_000)
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 10_000)
		v.text(rest[:n])
		rest = rest[n:]
	}
	v.types(command.Record{Kind: command.StdinEnd})
	v.ends(t, fleet.SessionExited, 0, "")
	if got := v.of(command.Stdout); got != want {
		t.Errorf("%d bytes came back of %d, or others", len(got), len(want))
	}
	// Without input it is at its end.
	v = c.visit(t.Context(), program("copy"))
	v.ends(t, fleet.SessionExited, 0, "")
}

// leave has the person leave, and a CO that stops: the program ends with that.
func leave(t *testing.T, c *co) {
	v := c.visit(t.Context(), program("hang"))
	testpart.Eventually(t, "the program runs", func() bool { return v.of(command.Began) != "" })
	v.Close()
	v.ends(t, fleet.SessionLeft, 0, "")
	c.ends(v.id, "n1", command.Done, "")
	ctx, stop := context.WithCancelCause(t.Context())
	v = c.visit(ctx, program("hang"))
	testpart.Eventually(t, "the program runs", func() bool { return v.of(command.Began) != "" })
	stop(session.Because(fleet.SessionStopped, "anna ended it"))
	v.ends(t, fleet.SessionStopped, 0, "anna")
	c.ends(v.id, "n1", command.Done, "")
}

// forged has an attacker between the CO and the node send input: what the CO did not sign for the session is
// left out.
func forged(t *testing.T, c *co) {
	r := program("copy")
	r.Input = true
	v := c.visit(t.Context(), r)
	testpart.Eventually(t, "the program runs", func() bool { return v.of(command.Began) != "" })
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m := command.Segment{V: 1, Node: "n1", Data: protocol.Marshal(command.Record{Kind: command.Stdin, Data: []byte("forged")})}
		if i > 0 {
			m.Sign(v.id, other)
		}
		if i > 1 {
			m.Ack = 1
		}
		if err := c.b.Publish(t.Context(), broker.Message{Topic: topic.ForCommand(topic.SiteInput, plant, string(v.id)), Payload: protocol.Marshal(&m)}); err != nil {
			t.Fatal(err)
		}
	}
	v.text("typed")
	v.types(command.Record{Kind: command.StdinEnd})
	v.ends(t, fleet.SessionExited, 0, "")
	if got := v.of(command.Stdout); got != "typed" {
		t.Errorf("the program got %q", got)
	}
}

func notThere(t *testing.T, c *co) {
	v := c.visit(t.Context(), command.ExecRequest{Arguments: []string{"/no-such-program"}})
	v.ends(t, fleet.SessionRefused, 0, "no-such-program")
	r := program("wait")
	r.Container = "other"
	v = c.visit(t.Context(), r)
	v.ends(t, fleet.SessionRefused, 0, "it has main/web")
}

// cuts has the link between the site and the CO fail for 14 s: nothing of what is typed and shown is lost.
func cuts(t *testing.T, c *co) {
	r := program("copy")
	r.Input = true
	v := c.visit(t.Context(), r)
	var want strings.Builder
	for i := range 40 {
		switch i {
		case 10:
			c.stop()
		case 30:
			time.Sleep(12 * time.Second)
			c.stop = c.start()
		}
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", 2000))
		want.WriteString(line)
		v.text(line)
		time.Sleep(100 * time.Millisecond)
	}
	v.types(command.Record{Kind: command.StdinEnd})
	v.ends(t, fleet.SessionExited, 0, "")
	if got := v.of(command.Stdout); got != want.String() {
		t.Errorf("%d bytes came back of %d, or others", len(got), want.Len())
	}
}

// TestRefusedCommands has a node whose configuration refuses programs in its containers.
func TestRefusedCommands(t *testing.T) {
	t.Parallel()
	c := newCO(t)
	s := newSite(t, c)
	s.join("n1", func(o *en.Options) { o.RefusedCommands = []command.Kind{command.Exec} })
	c.desire(1, protocol.Container{Name: "web", Image: "r/web"})
	c.installed("n1")
	v := c.visit(t.Context(), program("wait"))
	v.ends(t, fleet.SessionRefused, 0, "refusedCommands")
	c.ends(v.id, "n1", command.Failed, command.Forbidden)
}
