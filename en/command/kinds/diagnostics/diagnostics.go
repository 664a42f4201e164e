// Package diagnostics executes the command that collects what a node knows of itself: all that an operator needs to find a fault from afar, in one
// archive. Values of parameters and variables of applications, which may be secrets, are not in it; their logs are.
package diagnostics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/archive"
	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// partWait is how long a part may take: an engine that has stopped, or a disk that hangs, costs a fault and no more.
	partWait = 15 * time.Second
	// mostPart bounds the content of a file of the archive, in bytes.
	mostPart = 2 << 20
	// logLines is how many lines of each log are collected, the last ones.
	logLines = 2000
)

// passwords finds those of URLs.
var passwords = regexp.MustCompile(`(://[^/\s:@]*):[^/\s@]*@`)

// Options are what the command needs of the agent. All are required.
type Options struct {
	Site    protocol.SiteID
	Node    protocol.NodeID
	Version string
	Now     func() time.Time
	// StateDir is the directory of the agent's state: the names and sizes of its files are collected.
	StateDir string
	// Config is the configuration of the agent. Passwords in URLs are left out; it has no other secrets.
	Config any
	// Metrics writes the metrics of the agent.
	Metrics   func(ctx context.Context, w io.Writer) error
	Inventory func(ctx context.Context) (protocol.Inventory, error)
	Records   func() []plan.Record
	List      func(ctx context.Context) ([]engine.Status, error)
	Logs      logs.Reader
}

// A part is a file of the archive.
type part struct {
	name  string
	write func(ctx context.Context, w io.Writer) error
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Diagnose, Run: func(ctx context.Context, r command.Request) (string, error) {
		var request wire.DiagnosticsRequest
		if err := protocol.Unmarshal(r.Command.Args, &request); err != nil {
			return "", command.Failf(wire.BadArguments, "%v", err)
		}
		return "", segments.New(r.Command.ID, request.Key, r.Live).Give(ctx, o.write)
	}}
}

// write writes the archive.
func (o Options) write(ctx context.Context, w io.Writer) error {
	a := archive.New(w, string(o.Site)+"-"+string(o.Node), o.Now())
	parts := append(o.own(), system()...)
	found, err := o.logParts(ctx)
	if err != nil {
		a.Fault("logs", err)
	}
	for _, p := range append(parts, found...) {
		content, err := p.content(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			a.Fault(p.name, err)
		}
		if len(content) == 0 {
			continue
		}
		if err := a.Add(p.name, content); err != nil {
			return err
		}
	}
	return a.Close()
}

// content returns what a part has; beside an error, as far as it came. A part that hangs is left behind with its goroutine, which ends when what it waits
// for does.
func (p part) content(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	type written struct {
		content []byte
		err     error
	}
	done := make(chan written, 1)
	go func() {
		b := &bounded{}
		err := p.write(ctx, b)
		if b.left > 0 {
			err = fmt.Errorf("it has %d bytes more, which were left out", b.left)
		}
		done <- written{b.Bytes(), err}
	}()
	select {
	case w := <-done:
		if w.err == nil || ctx.Err() == nil {
			return w.content, w.err
		}
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("it took longer than %s", partWait)
}

// bounded is a buffer that counts what has no room.
type bounded struct {
	bytes.Buffer
	left int
}

// Write takes everything.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), mostPart-b.Len())
	b.left += len(p) - n
	_, _ = b.Buffer.Write(p[:n]) // it never fails
	return len(p), nil
}

// own are the parts about the agent.
func (o Options) own() []part {
	return []part{
		{"about.json", func(_ context.Context, w io.Writer) error { return encode(w, o.about()) }},
		{"config.yaml", func(_ context.Context, w io.Writer) error {
			b, err := configfile.Marshal(o.Config)
			if err == nil {
				_, err = w.Write(passwords.ReplaceAll(b, []byte("$1:xxxxx@")))
			}
			return err
		}},
		{"inventory.json", func(ctx context.Context, w io.Writer) error {
			inv, err := o.Inventory(ctx)
			return errors.Join(encode(w, inv), err) // what there is without an engine that does not answer
		}},
		{"deployments.json", func(_ context.Context, w io.Writer) error { return encode(w, deployments(o.Records())) }},
		{"containers.json", func(ctx context.Context, w io.Writer) error {
			list, err := o.List(ctx)
			if err != nil {
				return err
			}
			return encode(w, list)
		}},
		{"metrics.txt", o.Metrics},
		{"state.txt", func(ctx context.Context, w io.Writer) error { return tree(ctx, w, o.StateDir) }},
	}
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// A deployment is one as the agent has it, without what its specification has.
type deployment struct {
	Deployment protocol.DeploymentName `json:"deployment"`
	State      string                  `json:"state"`
	Digest     protocol.Digest         `json:"digest,omitempty"`
	Active     protocol.Digest         `json:"active,omitempty"`
	Healthy    protocol.Digest         `json:"healthy,omitempty"`
	Proven     protocol.Digest         `json:"proven,omitempty"`
	Refused    protocol.Digest         `json:"refused,omitempty"`
	Attempt    uint32                  `json:"attempt,omitempty"`
	Rollback   bool                    `json:"rollback,omitempty"`
	Code       protocol.Code           `json:"code,omitempty"`
	Message    string                  `json:"message,omitempty"`
	Position   protocol.Position       `json:"position"`
	// Unacknowledged are the transitions that the LO has not acknowledged, the oldest first.
	Unacknowledged []transition `json:"unacknowledged,omitempty"`
}

// A transition is from one state to another.
type transition struct {
	At       time.Time     `json:"at"`
	Unsynced bool          `json:"unsynced,omitempty"`
	From     string        `json:"from,omitempty"`
	To       string        `json:"to"`
	Code     protocol.Code `json:"code,omitempty"`
	Message  string        `json:"message,omitempty"`
}

func deployments(records []plan.Record) []deployment {
	out := make([]deployment, 0, len(records))
	for i := range records {
		r := &records[i]
		d := deployment{
			Deployment: r.Deployment, State: string(r.State), Digest: r.Digest, Active: r.Active, Healthy: r.Healthy, Proven: r.Proven, Refused: r.Refused,
			Attempt: r.Attempt, Rollback: r.Rollback, Code: r.Code, Message: r.Message, Position: r.Position,
		}
		for j := range r.Reports {
			m := &r.Reports[j]
			d.Unacknowledged = append(d.Unacknowledged, transition{time.UnixMilli(m.UnixMillis).UTC(), m.Unsynced, string(m.From), string(m.State), m.Code, m.Message})
		}
		out = append(out, d)
	}
	return out
}

// logParts are the logs of the agent and of the containers: those that run, and the runs before.
func (o Options) logParts(ctx context.Context) ([]part, error) {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	reader := o.Logs
	parts := []part{{"logs/agent.log", func(ctx context.Context, w io.Writer) error {
		err := lines(ctx, w, reader, logs.Request{Agent: true, Tail: logLines})
		if protocol.KindOf(err) == protocol.NotFound && err != nil {
			return fmt.Errorf("the agent writes to the journal of its system: %w", err)
		}
		return err
	}}}
	all, err := reader.List(ctx)
	if err != nil {
		return parts, err
	}
	seen := map[string]bool{}
	for _, l := range all {
		for _, previous := range []bool{false, true} {
			name := "logs/" + l.Name() + ".log"
			if previous {
				name = "logs/" + l.Name() + ".previous.log"
			}
			if seen[name] || !previous && l.Removed || previous && !l.Removed && l.Runs < 2 {
				continue
			}
			seen[name] = true
			request := logs.Request{Deployment: l.Deployment, Component: l.Component, Container: l.Container, Previous: previous, Tail: logLines}
			parts = append(parts, part{name, func(ctx context.Context, w io.Writer) error { return lines(ctx, w, reader, request) }})
		}
	}
	return parts, nil
}

// lines writes the lines of a log, each with its time.
func lines(ctx context.Context, w io.Writer, reader logs.Reader, r logs.Request) error {
	for e, err := range reader.Read(ctx, r) {
		if err != nil {
			return err
		}
		at := "-"
		if !e.Time.IsZero() {
			at = e.Time.UTC().Format(time.RFC3339Nano)
		}
		text := e.Text
		if e.Gap != nil {
			text = fmt.Sprintf("[%d bytes are missing here]", e.Gap.Bytes)
		}
		if _, err := fmt.Fprintf(w, "%s %s %s\n", at, e.Stream, text); err != nil {
			return err
		}
	}
	return nil
}
