// Package logstream writes the logs of containers to a client of the API, as text or as events.
package logstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/command/live"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A Begin is the data of the first event of a stream of logs.
type Begin struct {
	Command command.ID        `json:"command"` // the command that reads the logs
	Site    protocol.SiteID   `json:"site"`
	Nodes   []protocol.NodeID `json:"nodes"` // the nodes that are asked
}

// A Line is the data of an event of kind line.
type Line struct {
	Node protocol.NodeID `json:"node"`
	command.LogLine
}

// A Gap is the data of an event of kind gap: what is missing here. Lines of 0: it is not known how many.
type Gap struct {
	Node protocol.NodeID `json:"node"`
	// Component and Container are whose lines they are. Empty: of any that the node reads.
	Component string `json:"component,omitempty"`
	Container string `json:"container,omitempty"`
	Lines     uint64 `json:"lines,omitempty"`
	Bytes     uint64 `json:"bytes,omitempty"` // how many are missing; absent: it is not known
}

// An End is the data of an event of kind end: nothing more comes of a node.
type End struct {
	Node    protocol.NodeID `json:"node"`
	State   string          `json:"state"` // how the command ended there
	Code    command.Code    `json:"code,omitempty"`
	Message string          `json:"message,omitempty"` // State for people
}

const (
	// Stall is how long a client may read nothing: one that looks at a page of a long log does so for a while.
	Stall = 5 * time.Minute
	// chunk is how many bytes go into one write, about, where there are more.
	chunk = 32 << 10
)

// A Writer writes logs to a client, as text or as events.
type Writer struct {
	w          http.ResponseWriter
	c          *http.ResponseController
	events     bool
	timestamps bool
	whose      Whose
	buffer     []byte
}

// New returns a Writer of the answer w, whose header it sets.
func New(w http.ResponseWriter, events, timestamps bool, whose Whose) *Writer {
	kind := "text/plain; charset=utf-8"
	if events {
		kind = "text/event-stream"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.Header().Set("Connection", "close") // it has a write deadline that no further request should meet
	return &Writer{w: w, c: http.NewResponseController(w), events: events, timestamps: timestamps, whose: whose}
}

// Flush writes what waits.
func (o *Writer) Flush() error {
	if len(o.buffer) == 0 {
		return nil
	}
	if err := o.c.SetWriteDeadline(time.Now().Add(Stall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	_, err := o.w.Write(o.buffer)
	o.buffer = o.buffer[:0]
	if err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	return o.c.Flush()
}

func (o *Writer) event(kind string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	o.buffer = fmt.Appendf(o.buffer, "event: %s\ndata: %s\n\n", kind, b)
	return nil
}

// Begin opens the answer.
func (o *Writer) Begin(b Begin) error {
	o.w.Header().Set("Colony-Command", string(b.Command))
	o.w.WriteHeader(http.StatusOK)
	if !o.events {
		return o.c.Flush()
	}
	if err := o.event("begin", b); err != nil {
		return err
	}
	return o.Flush()
}

// Beat keeps a stream of events open at proxies.
func (o *Writer) Beat() error {
	if o.events {
		o.buffer = append(o.buffer, ": \n\n"...)
	}
	return o.Flush()
}

// Frame writes the lines of a frame.
func (o *Writer) Frame(f command.Frame) error {
	if err := o.gap(Gap{Node: f.Node, Lines: f.LostItems, Bytes: f.LostBytes}); err != nil {
		return err
	}
	lines, err := live.Lines(f)
	if err != nil {
		if err := o.gap(Gap{Node: f.Node, Lines: f.Items, Bytes: uint64(len(f.Data))}); err != nil { // it cannot be read
			return err
		}
	}
	for i := range lines {
		if err := o.line(f.Node, lines[i]); err != nil {
			return err
		}
	}
	if len(o.buffer) >= chunk {
		return o.Flush()
	}
	return nil
}

func (o *Writer) line(node protocol.NodeID, l command.LogLine) error {
	if err := o.gap(Gap{node, l.Component, l.Container, l.LostLines, l.LostBytes}); err != nil {
		return err
	}
	if l.LostLines+l.LostBytes > 0 && l.Text == "" && l.UnixMillis == 0 {
		return nil // it stands for the gap alone
	}
	l.LostLines, l.LostBytes = 0, 0
	if o.events {
		return o.event("line", Line{node, l})
	}
	o.buffer = append(o.buffer, o.whose.Prefix(node, l.Component, l.Container)...)
	if o.timestamps {
		at := "-"
		if l.UnixMillis != 0 {
			at = time.UnixMilli(l.UnixMillis).UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
		o.buffer = append(append(o.buffer, at...), ' ')
	}
	o.buffer = append(o.buffer, l.Text...)
	if l.CutBytes > 0 {
		o.buffer = fmt.Appendf(o.buffer, "... (%d bytes more)", l.CutBytes)
	}
	o.buffer = append(o.buffer, '\n')
	return nil
}

// A Whose says what begins a line of text: where there are several nodes the node, and where there are several containers the
// component and the container.
type Whose struct{ Nodes, Containers bool }

// Prefix returns that for a line; component and container are empty where it is of no container alone.
func (w Whose) Prefix(node protocol.NodeID, component, container string) string {
	var parts []string
	if w.Nodes {
		parts = append(parts, string(node))
	}
	if w.Containers {
		parts = append(parts, component, container)
	}
	if name := name(parts...); name != "" {
		return "[" + name + "] "
	}
	return ""
}

// name joins the names that are not empty.
func name(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

// Several reports whether a deployment has more than one container.
func Several(d *fleet.Deployment) bool {
	found := map[string]bool{}
	for i := range d.Nodes {
		for _, c := range d.Nodes[i].Components {
			found[c.Component+"/"+c.Container] = true
		}
	}
	return len(found) > 1
}

// gap says what is missing.
func (o *Writer) gap(g Gap) error {
	if g.Lines == 0 && g.Bytes == 0 {
		return nil
	}
	if o.events {
		return o.event("gap", g)
	}
	o.buffer = append(append(append(o.buffer, o.whose.Prefix(g.Node, g.Component, g.Container)...), "--- "+g.String()+" ---"...), '\n')
	return nil
}

// Of names whose lines are missing.
func (g Gap) Of() string { return name(string(g.Node), g.Component, g.Container) }

// String says what is missing, for people.
func (g Gap) String() string {
	switch {
	case g.Lines == 0:
		return fmt.Sprintf("%d bytes are missing here", g.Bytes)
	case g.Bytes == 0:
		return fmt.Sprintf("%d lines are missing here, or more", g.Lines)
	}
	return fmt.Sprintf("%d lines (%d bytes) are missing here", g.Lines, g.Bytes)
}

// End says that nothing more comes of a node; a text says it only where something is wrong.
func (o *Writer) End(e End) error {
	if o.events {
		return o.event("end", e)
	}
	if e.State == string(command.Done) {
		return nil
	}
	o.buffer = append(append(append(o.buffer, o.whose.Prefix(e.Node, "", "")...), "--- "+e.String()+" ---"...), '\n')
	return nil
}

// String says how it ended, for people.
func (e End) String() string {
	text := "node " + string(e.Node) + ": " + e.State
	if e.Code != "" {
		text += " (" + string(e.Code) + ")"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}
