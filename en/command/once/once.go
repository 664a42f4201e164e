// Package once is what a node knows of the commands that it received: each is executed at most once, and each ends. It is pure: messages
// and time in, decisions out. What it returns to be saved must be on disk before anything follows from it.
//
// Times are those of a clock that begins at the boot of the machine, see cotime.
package once

import (
	"fmt"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/command/cotime"
)

const (
	// MaxHeld bounds the commands that a node remembers. Past it those that came first are forgotten, and with them all that were issued
	// before: none of them is executed any more.
	MaxHeld = 1024
	// MaxRunning is how many commands are executed at a time, beside live ones.
	MaxRunning = 8
	// MaxLive is how many live commands run at once. They last as long as their reader reads, and wait for it; they have places of
	// their own, so that readers do not keep other commands from a node.
	MaxLive = 16
	// MaxWaiting is how many wait for that: more than an LO has open for a node, so that none that a site has received is refused for want of
	// room. Arguments are small (command.MaxArgs).
	MaxWaiting = 2 * command.MaxPerNode
	// fresh is how old the time of the CO may be when a command begins.
	fresh = time.Minute
	// patience is how long a command waits for the time of the CO, at most.
	patience = 10 * time.Minute
	// Tick is how long to wait until the next decision while a command waits.
	Tick = 2 * time.Second
)

// A Meta is what a node remembers beside single commands.
type Meta struct {
	// Agent is the id of the agent that remembers it. Another one begins anew.
	Agent string `cbor:"1,keyasint"`
	// BornMillis is when the agent began to remember, at the latest, by the clock of the CO: it executes nothing that was issued before.
	// Absent: it is not known yet.
	BornMillis int64 `cbor:"2,keyasint,omitempty"`
	// ForgottenMillis is when the latest command was issued that was forgotten. Absent: none was.
	ForgottenMillis int64 `cbor:"3,keyasint,omitempty"`
	// KeySet is the latest key set of the CO that came with a command. Absent: none did.
	KeySet []byte `cbor:"4,keyasint,omitempty"`
}

// An Entry is what a node remembers of a command.
type Entry struct {
	ID           command.ID `cbor:"1,keyasint"`
	IssuedMillis int64      `cbor:"2,keyasint"` // when the CO issued it, in milliseconds since 1970
	// Begun says that the execution may have begun.
	Begun bool `cbor:"3,keyasint,omitempty"`
	// Command is the command, where it is executed again after a crash. Absent: it is not.
	Command []byte `cbor:"4,keyasint,omitempty"`
	// Result is how it ended. Absent: it has not.
	Result *command.Result `cbor:"5,keyasint,omitempty"`
	// Acked says that the LO has the result.
	Acked bool `cbor:"6,keyasint,omitempty"`
}

// waiting is a command that has not begun in this run of the agent.
type waiting struct {
	command     *command.Command
	since       time.Duration
	interrupted bool // it had begun before a crash
}

// A Node is the node that receives the commands.
type Node struct {
	Name   protocol.NodeID
	Labels map[string]string
	Agent  string // agent id of the node
}

// A Ledger is all commands of a node. It is for one goroutine at a time.
type Ledger struct {
	Clock   cotime.Clock
	node    Node
	meta    Meta
	created time.Duration
	kinds   []command.Kind
	entries map[command.ID]*Entry
	ids     []command.ID // of entries, in the order in which they came
	waiting []waiting
	running int // without live ones
	live    map[command.ID]struct{}
}

// New returns the Ledger of a node that can execute these kinds, with what was saved, in the order in which it was. Of one command the last
// Entry counts. What was interrupted by a crash ends, or waits to be executed again: save are the entries that are to be saved for that.
func New(node Node, kinds []command.Kind, meta Meta, saved []Entry, now time.Duration) (l *Ledger, save []Entry) {
	l = &Ledger{node: node, kinds: kinds, meta: meta, created: now, entries: map[command.ID]*Entry{}, live: map[command.ID]struct{}{}}
	if meta.Agent != node.Agent {
		l.meta = Meta{Agent: node.Agent, KeySet: meta.KeySet}
		return l, nil
	}
	for _, e := range saved {
		l.put(e)
	}
	l.Clock.AtLeast(meta.ForgottenMillis)
	for _, id := range l.ids {
		e := l.entries[id]
		if e.Result != nil {
			continue
		}
		var c command.Command
		if len(e.Command) > 0 && protocol.Unmarshal(e.Command, &c) == nil {
			l.waiting = append(l.waiting, waiting{command: &c, since: now, interrupted: true})
			continue
		}
		r := l.result(id, command.Unknown, command.Interrupted, "the agent was interrupted while it executed the command: how far it came is unknown")
		e.Result = &r
		save = append(save, *e)
	}
	return l, save
}

// Meta returns what is to be remembered beside single commands.
func (l *Ledger) Meta() Meta { return l.meta }

// Entries returns what is remembered of single commands, in the order in which they came.
func (l *Ledger) Entries() []Entry {
	out := make([]Entry, 0, len(l.ids))
	for _, id := range l.ids {
		out = append(out, *l.entries[id])
	}
	return out
}

// SetKeySet remembers a key set.
func (l *Ledger) SetKeySet(b []byte) { l.meta.KeySet = b }

// put adds an entry, or replaces it.
func (l *Ledger) put(e Entry) {
	if l.entries[e.ID] == nil {
		l.ids = append(l.ids, e.ID)
	}
	l.entries[e.ID] = &e
	l.Clock.AtLeast(e.IssuedMillis)
}

func (l *Ledger) result(id command.ID, state command.State, code command.Code, message string) command.Result {
	return command.Result{V: protocol.Version, ID: id, Node: l.node.Name, State: state, Code: code, Message: message}
}

// Received accepts a command whose signature was checked. Where it ends at once, or has ended before, its entry is returned, to be saved, and
// its result is to be sent.
func (l *Ledger) Received(c *command.Command, now time.Duration) *Entry {
	l.Clock.AtLeast(c.IssuedMillis)
	if e := l.entries[c.ID]; e != nil {
		if e.Result == nil {
			return nil // it is under way
		}
		e.Acked = false
		return new(*e)
	}
	if l.Knows(c.ID) {
		return nil
	}
	code, message := l.refusal(c)
	if code == "" {
		l.waiting = append(l.waiting, waiting{command: c, since: now})
		return nil
	}
	return l.end(c, l.result(c.ID, command.Refused, code, message))
}

// Knows reports whether a command is under way, waits, or has ended.
func (l *Ledger) Knows(id command.ID) bool {
	return l.entries[id] != nil || slices.ContainsFunc(l.waiting, func(w waiting) bool { return w.command.ID == id })
}

// refusal returns why a command that is not known is refused; "": it is not.
func (l *Ledger) refusal(c *command.Command) (code command.Code, message string) {
	switch {
	case !c.Means(l.node.Name, l.node.Labels):
		return command.NotMeant, fmt.Sprintf("it does not mean node %s with the labels that it has", l.node.Name)
	case c.IssuedMillis <= l.meta.ForgottenMillis:
		return command.Busy, "so many commands came since it was issued that the agent cannot know whether it has executed it: ask again"
	case !slices.Contains(l.kinds, c.Kind):
		return command.UnknownKind, fmt.Sprintf("the agent does not know commands of kind %q: upgrade it", c.Kind)
	case isLive(c) && l.readers() >= MaxLive:
		return command.Busy, fmt.Sprintf("%d readers follow what the node sends, which is the limit: end one, or ask again later", MaxLive)
	case len(l.waiting) >= MaxWaiting:
		return command.Busy, fmt.Sprintf("%d commands wait at the node: ask again later", MaxWaiting)
	}
	if err := command.Arguments(c.Kind, c.Args); err != nil {
		return command.BadArguments, err.Error()
	}
	return "", ""
}

// isLive reports whether a command is live: it lasts as long as its output is read.
func isLive(c *command.Command) bool {
	d, err := command.Lookup(c.Kind)
	return err == nil && d.Live
}

// readers returns how many live commands are executed or wait.
func (l *Ledger) readers() int {
	n := len(l.live)
	for _, w := range l.waiting {
		if isLive(w.command) {
			n++
		}
	}
	return n
}

// end ends a command that is not executed.
func (l *Ledger) end(c *command.Command, r command.Result) *Entry {
	e := Entry{ID: c.ID, IssuedMillis: c.IssuedMillis, Result: &r}
	if have := l.entries[c.ID]; have != nil {
		e.Begun = have.Begun
	}
	l.put(e)
	return &e
}

// Cancelled cancels a command. Where it had not begun, its entry is returned, to be saved.
func (l *Ledger) Cancelled(id command.ID) *Entry {
	i := slices.IndexFunc(l.waiting, func(w waiting) bool { return w.command.ID == id && !w.interrupted })
	if i < 0 {
		return nil
	}
	c := l.waiting[i].command
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return l.end(c, l.result(id, command.Expired, command.Cancelled, "it was cancelled before it began"))
}

// A Decision is what is to be done now.
type Decision struct {
	// Meta says that what is remembered beside single commands has changed, and is to be saved before the rest is done.
	Meta bool
	// Ask says that the time of the CO is to be asked for.
	Ask bool
	// Begin are the commands that begin now. Their entries are saved before.
	Begin []Beginning
	// End are the entries of commands that end without an execution, to be saved.
	End []Entry
	// Forget are commands that are not remembered any more.
	Forget []command.ID
	// Next is when to decide again where nothing happens before; 0: never.
	Next time.Duration
}

// A Beginning is a command that begins.
type Beginning struct {
	Command     *command.Command
	Entry       Entry
	interrupted bool
}

// Decide says what is to be done. A command of Begin counts as under way from now on: Ended, or NotBegun, must follow.
func (l *Ledger) Decide(now time.Duration) Decision {
	var d Decision
	latest, known := l.Clock.Latest(now)
	age, _ := l.Clock.Age(now)
	if known && l.meta.BornMillis == 0 {
		l.meta.BornMillis, d.Meta = latest-(now-l.created).Milliseconds(), true
	}
	d.Ask = l.meta.BornMillis == 0
	keep := l.waiting[:0]
	for _, w := range l.waiting {
		if r := l.over(w, now); r != nil {
			d.End = append(d.End, *l.end(w.command, *r))
			continue
		}
		switch {
		case !known || age > fresh:
			d.Ask = true
		case l.admit(w.command):
			d.Begin = append(d.Begin, Beginning{w.command, l.begun(w.command), w.interrupted})
			continue
		}
		keep = append(keep, w)
	}
	l.waiting = keep
	d.Forget = l.crowded(&d)
	if len(l.waiting) > 0 || d.Ask {
		d.Next = Tick
	}
	return d
}

// admit takes a place for a command that begins, and reports false where there is none.
func (l *Ledger) admit(c *command.Command) bool {
	if isLive(c) { // there is one: see refusal
		l.live[c.ID] = struct{}{}
		return true
	}
	if l.running >= MaxRunning {
		return false
	}
	l.running++
	return true
}

// leave gives the place of a command back.
func (l *Ledger) leave(id command.ID) {
	if _, ok := l.live[id]; ok {
		delete(l.live, id)
		return
	}
	l.running--
}

// begun returns the entry of a command that begins.
func (l *Ledger) begun(c *command.Command) Entry {
	e := Entry{ID: c.ID, IssuedMillis: c.IssuedMillis, Begun: true}
	if kind, err := command.Lookup(c.Kind); err == nil && kind.Repeatable && !kind.Live {
		e.Command = protocol.Marshal(c)
	}
	l.put(e)
	return e
}

// over returns the result of a command that waits and must not begin any more; nil: it may.
func (l *Ledger) over(w waiting, now time.Duration) *command.Result {
	latest, known := l.Clock.Latest(now)
	age, _ := l.Clock.Age(now)
	c := w.command
	var r command.Result
	switch {
	case known && latest >= c.DeadlineMillis && (age <= fresh || l.Clock.Least() >= c.DeadlineMillis):
		r = l.result(c.ID, command.Expired, "", fmt.Sprintf("its deadline had passed by up to %d ms when it could have begun", latest-c.DeadlineMillis))
	case known && l.meta.BornMillis > 0 && c.IssuedMillis < l.meta.BornMillis:
		r = l.result(c.ID, command.Refused, command.IssuedBeforeAgent, "it was issued before this agent began to remember what it executes: ask again")
	case now-w.since > min(patience, life(c)) && (!known || age > fresh):
		r = l.result(c.ID, command.Refused, command.DeadlineUnverifiable,
			"the node could not learn the time of the CO before the deadline may have passed: see that the link between the site and the CO is up")
	default:
		return nil
	}
	if w.interrupted {
		r.State, r.Code, r.Message = command.Unknown, command.Interrupted, "the agent was interrupted while it executed it, and could not do it again: "+r.Message
	}
	return &r
}

// life is for how long a command may wait, on a clock that may be slow.
func life(c *command.Command) time.Duration {
	l := time.Duration(c.DeadlineMillis-c.IssuedMillis) * time.Millisecond
	return l + l/1000
}

// crowded forgets the commands that came first, where too many are remembered. Nothing that was issued before them is executed any more.
func (l *Ledger) crowded(d *Decision) (forget []command.ID) {
	for i := 0; len(l.ids) > MaxHeld && i < len(l.ids); {
		e := l.entries[l.ids[i]]
		if e.Result == nil || !e.Acked {
			i++
			continue
		}
		l.meta.ForgottenMillis, d.Meta = max(l.meta.ForgottenMillis, e.IssuedMillis), true
		forget = append(forget, e.ID)
		delete(l.entries, e.ID)
		l.ids = slices.Delete(l.ids, i, i+1)
	}
	return forget
}

// Ended takes the result of an execution, and returns the entry to be saved.
func (l *Ledger) Ended(r command.Result) Entry {
	l.leave(r.ID)
	e := *l.entries[r.ID]
	e.Command, e.Result = nil, &r
	l.put(e)
	return e
}

// NotBegun says that a command could not begin, as its entry could not be saved. It waits on.
func (l *Ledger) NotBegun(b Beginning, now time.Duration) {
	l.leave(b.Command.ID)
	if !b.interrupted {
		delete(l.entries, b.Command.ID)
		l.ids = slices.DeleteFunc(l.ids, func(id command.ID) bool { return id == b.Command.ID })
	}
	l.waiting = append(l.waiting, waiting{command: b.Command, since: now, interrupted: b.interrupted})
}

// Unsent returns the results that the LO does not have, in the order in which the commands came, at most so many.
func (l *Ledger) Unsent(most int) (results []command.Result) {
	for _, id := range l.ids {
		if e := l.entries[id]; e.Result != nil && !e.Acked && len(results) < most {
			results = append(results, *e.Result)
		}
	}
	return results
}

// Acked says that the LO has a result, and returns the entry to be saved.
func (l *Ledger) Acked(id command.ID) Entry {
	e := l.entries[id]
	e.Acked = true
	return *e
}

// Count returns how many commands wait, are executed, and are remembered.
func (l *Ledger) Count() (waiting, running, held int) {
	return len(l.waiting), l.running + len(l.live), len(l.entries)
}
