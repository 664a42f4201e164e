package once

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

var me = Node{Name: "n1", Labels: map[string]string{"line": "4"}, Agent: "a1"}

// kinds are what the agent can do: once a restart, again and again a look at the machine.
var kinds = []command.Kind{command.Restart, command.Inventory}

const t0 = int64(1_900_000_000_000) // of the CO

func id(n int) command.ID { return command.ID(fmt.Sprintf("%032x", n)) }

func issue(n int, kind command.Kind, at int64, life time.Duration) *command.Command {
	c := &command.Command{V: 1, ID: id(n), Site: "plant", Kind: kind, All: true, IssuedMillis: at, DeadlineMillis: at + life.Milliseconds()}
	if kind == command.Restart {
		c.Args = protocol.Marshal(command.Subject{Deployment: "app"})
	}
	return c
}

// answered has the ledger know that the CO has the time at, at now.
func answered(l *Ledger, at int64, now time.Duration) {
	ask := l.Clock.Ask(uint64(now)+1, now)
	l.Clock.Learn(command.Time{Nonce: ask.Nonce, UnixMillis: at})
}

func result(e *Entry) string {
	if e == nil || e.Result == nil {
		return "none"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", e.Result.State, e.Result.Code))
}

func TestRefused(t *testing.T) {
	t.Parallel()
	l, _ := New(me, kinds, Meta{Agent: "a1", BornMillis: 1, ForgottenMillis: 5}, nil, 0)
	other := issue(1, command.Inventory, t0, time.Hour)
	other.All, other.Selector = false, map[string]string{"line": "5"}
	arguments := issue(2, command.Restart, t0, time.Hour)
	arguments.Args = nil
	for want, c := range map[string]*command.Command{
		"refused not_meant": other, "refused bad_arguments": arguments, "refused unknown_kind": issue(3, command.Probe, t0, time.Hour), "refused busy": issue(4, command.Inventory, 5, time.Hour),
	} {
		if got := result(l.Received(c, 0)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for n := range MaxWaiting {
		if got := result(l.Received(issue(10+n, command.Inventory, t0, time.Hour), 0)); got != "none" {
			t.Fatalf("command %d: %s", n, got)
		}
	}
	if got := result(l.Received(issue(1000, command.Inventory, t0, time.Hour), 0)); got != "refused busy" {
		t.Errorf("one too many: %s", got)
	}
	answered(l, t0, 0)
	if d := l.Decide(0); len(d.Begin) != MaxRunning || d.Next != Tick {
		t.Errorf("%d begin at a time", len(d.Begin))
	}
}

// TestLive has readers take all places that live commands have: others begin all the same, and one reader more is refused at once.
func TestLive(t *testing.T) {
	t.Parallel()
	l, _ := New(me, append(kinds, command.Logs), Meta{Agent: "a1", BornMillis: 1}, nil, 0)
	follow := func(n int) *command.Command {
		c := issue(n, command.Logs, t0, time.Hour)
		c.Args = protocol.Marshal(command.LogRequest{Subject: command.Subject{Deployment: "app"}, Follow: true})
		return c
	}
	answered(l, t0, 0)
	for n := range MaxLive {
		if got := result(l.Received(follow(n), 0)); got != "none" {
			t.Fatalf("reader %d: %s", n, got)
		}
	}
	if got := result(l.Received(follow(100), 0)); got != "refused busy" {
		t.Errorf("one reader too many, while they wait: %s", got)
	}
	if d := l.Decide(0); len(d.Begin) != MaxLive {
		t.Fatalf("%d readers begin", len(d.Begin))
	}
	if got := result(l.Received(follow(101), 0)); got != "refused busy" {
		t.Errorf("one reader too many: %s", got)
	}
	for n := range MaxRunning {
		l.Received(issue(200+n, command.Restart, t0, time.Hour), 0)
	}
	if d := l.Decide(0); len(d.Begin) != MaxRunning {
		t.Errorf("%d restarts begin beside the readers, want %d", len(d.Begin), MaxRunning)
	}
	l.Ended(command.Result{V: 1, ID: id(0), Node: me.Name, State: command.Done})
	if got := result(l.Received(follow(102), 0)); got != "none" {
		t.Errorf("a reader, after one has ended: %s", got)
	}
	if waiting, running, _ := l.Count(); waiting != 1 || running != MaxLive-1+MaxRunning {
		t.Errorf("%d wait and %d are executed", waiting, running)
	}
}

func TestTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		born    int64
		know    func(l *Ledger)
		at      time.Duration
		ask     bool
		begins  bool
		want    string // how it ends
		command *command.Command
	}{
		"not known":                         {born: 1, at: time.Second, ask: true},
		"never known, and the wait is over": {born: 1, at: 11 * time.Minute, want: "refused deadline_unverifiable"},
		"in time":                           {born: 1, know: func(l *Ledger) { answered(l, t0, time.Second) }, at: 2 * time.Second, begins: true},
		"what is known is old":              {born: 1, know: func(l *Ledger) { answered(l, t0, time.Second) }, at: 2 * time.Minute, ask: true},
		"late":                              {born: 1, know: func(l *Ledger) { answered(l, t0+time.Hour.Milliseconds()-1000, 0) }, at: 2 * time.Second, want: "expired"},
		"before the agent":                  {born: t0 + 1, know: func(l *Ledger) { answered(l, t0+2, 0) }, want: "refused issued_before_agent"},
		"a new agent learns when it began":  {know: func(l *Ledger) { answered(l, t0-1000, time.Second) }, at: time.Second, begins: true},
		"a new agent is too late":           {know: func(l *Ledger) { answered(l, t0+5000, time.Second) }, at: time.Second, want: "refused issued_before_agent"},
		"a lie about the time is not believed where the CO has signed a later one": {born: 1, know: func(l *Ledger) {
			l.Received(issue(9, command.Probe, t0+2*time.Hour.Milliseconds(), time.Hour), 0)
			answered(l, t0, 0)
		}, want: "expired"},
	} {
		l, _ := New(me, kinds, Meta{Agent: "a1", BornMillis: tt.born}, nil, 0)
		if e := l.Received(issue(1, command.Inventory, t0, time.Hour), 0); e != nil {
			t.Fatalf("%s: %s", name, result(e))
		}
		if tt.know != nil {
			tt.know(l)
		}
		d := l.Decide(tt.at)
		got := "none"
		if len(d.End) > 0 {
			got = result(&d.End[0])
		}
		if want := tt.want; got != want && (want != "" || got != "none") || len(d.Begin) > 0 != tt.begins || d.Ask != tt.ask {
			t.Errorf("%s: begins %t, asks %t, ends %s; want %t, %t, %s", name, len(d.Begin) > 0, d.Ask, got, tt.begins, tt.ask, tt.want)
		}
	}
}

// TestCrash begins commands, and starts the agent again with what was saved.
func TestCrash(t *testing.T) {
	t.Parallel()
	l, _ := New(me, kinds, Meta{Agent: "a1", BornMillis: 1}, nil, 0)
	l.Received(issue(1, command.Restart, t0, time.Hour), 0)
	l.Received(issue(2, command.Inventory, t0, time.Hour), 0)
	l.Received(issue(3, command.Inventory, t0, time.Minute), 0)
	answered(l, t0, 0)
	var saved []Entry
	for _, b := range l.Decide(0).Begin {
		saved = append(saved, b.Entry)
	}
	next, save := New(me, kinds, l.Meta(), saved, 0)
	if len(save) != 1 || save[0].ID != id(1) || result(&save[0]) != "unknown interrupted" {
		t.Errorf("after the crash: %+v", save)
	}
	if got := next.Received(issue(1, command.Restart, t0, time.Hour), 0); result(got) != "unknown interrupted" {
		t.Errorf("the command once more: %s", result(got))
	}
	answered(next, t0+2*time.Minute.Milliseconds(), 0)
	d := next.Decide(0)
	if len(d.Begin) != 1 || d.Begin[0].Command.ID != id(2) {
		t.Errorf("again begins %+v, want what does no harm", d.Begin)
	}
	if len(d.End) != 1 || d.End[0].ID != id(3) || result(&d.End[0]) != "unknown interrupted" {
		t.Errorf("past its deadline: %+v", d.End)
	}
	// Another agent remembers nothing of it, and executes nothing that was issued before.
	another, _ := New(Node{Name: "n1", Agent: "a2"}, kinds, l.Meta(), saved, 0)
	another.Received(issue(1, command.Restart, t0, time.Hour), 0)
	answered(another, t0+5, 0)
	if d := another.Decide(0); len(d.End) != 1 || result(&d.End[0]) != "refused issued_before_agent" {
		t.Errorf("another agent: %+v", d)
	}
}

// TestForgotten has more commands than a node remembers: what was forgotten is not executed again.
func TestForgotten(t *testing.T) {
	t.Parallel()
	l, _ := New(me, kinds, Meta{Agent: "a1", BornMillis: 1}, nil, 0)
	for n := range MaxHeld + 10 {
		l.Received(issue(n, command.Inventory, t0+int64(n), time.Hour), 0)
		answered(l, t0, 0)
		for _, b := range l.Decide(0).Begin {
			l.Ended(command.Result{ID: b.Command.ID, State: command.Done})
			l.Acked(b.Command.ID)
		}
	}
	l.Decide(0)
	if _, _, held := l.Count(); held != MaxHeld || l.Meta().ForgottenMillis != t0+9 {
		t.Errorf("%d held, forgotten until %d", held, l.Meta().ForgottenMillis-t0)
	}
	if got := result(l.Received(issue(3, command.Inventory, t0+3, time.Hour), 0)); got != "refused busy" {
		t.Errorf("a command that was forgotten: %s", got)
	}
}

// TestOnce sends commands in any order, again and again, to an agent that crashes at any moment, with any clock and a time of the CO that
// is late: each is executed at most once, but for those that may be repeated, none past its deadline, and each ends.
func TestOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		w := &world{r: r, executed: map[command.ID]int{}, sent: map[command.ID]bool{}, truth: t0}
		w.start()
		for n := range rapid.IntRange(1, 6).Draw(r, "commands") {
			kind := kinds[rapid.IntRange(0, 1).Draw(r, "kind")]
			w.commands = append(w.commands, issue(n, kind, t0+rapid.Int64Range(0, 100_000).Draw(r, "issued"), time.Duration(rapid.Int64Range(1, 600).Draw(r, "life"))*time.Second))
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			w.step(rapid.IntRange(0, 7).Draw(r, "step"))
		}
		// What was sent, and is retained, ends once the agent runs on.
		for range 40 {
			for _, c := range w.commands {
				if w.sent[c.ID] {
					w.l.Received(c, w.now)
				}
			}
			w.pass(30 * time.Second)
			w.decide()
			w.finish()
		}
		for _, c := range w.commands {
			if !w.sent[c.ID] {
				continue
			}
			e := w.l.entries[c.ID]
			if e == nil || e.Result == nil || !e.Result.State.Ended() {
				r.Fatalf("command %s has not ended", c.ID)
			}
			if c.Kind == command.Restart && (w.executed[c.ID] > 1 || e.Result.State == command.Expired && w.executed[c.ID] > 0) {
				r.Fatalf("command %s was executed %d times, and is %s", c.ID, w.executed[c.ID], e.Result.State)
			}
		}
	})
}

// world is an agent with its disk, and the CO.
type world struct {
	r        *rapid.T
	l        *Ledger
	truth    int64         // the time of the CO
	now      time.Duration // of the machine, since its boot
	meta     Meta
	saved    []Entry
	under    []*command.Command // being executed
	commands []*command.Command
	sent     map[command.ID]bool
	executed map[command.ID]int
}

func (w *world) start() {
	var save []Entry
	w.under = nil
	w.l, save = New(me, kinds, w.meta, w.saved, w.now)
	w.meta = w.l.Meta()
	w.saved = append(w.saved, save...)
}

func (w *world) pass(d time.Duration) {
	w.truth += d.Milliseconds()
	w.now += d
}

func (w *world) step(what int) {
	switch what {
	case 0: // a command arrives, perhaps once more
		if len(w.commands) == 0 {
			return
		}
		c := w.commands[rapid.IntRange(0, len(w.commands)-1).Draw(w.r, "which")]
		w.sent[c.ID] = true
		if e := w.l.Received(c, w.now); e != nil {
			w.saved = append(w.saved, *e)
		}
	case 1:
		w.pass(time.Duration(rapid.Int64Range(0, 300_000).Draw(w.r, "passes")) * time.Millisecond)
	case 2:
		answered(w.l, w.truth, w.now)
	case 3: // an answer that was long under way
		ask := w.l.Clock.Ask(uint64(w.now)+7, w.now)
		at := w.truth
		w.pass(time.Duration(rapid.Int64Range(0, 60_000).Draw(w.r, "way")) * time.Millisecond)
		w.l.Clock.Learn(command.Time{Nonce: ask.Nonce, UnixMillis: at})
	case 4:
		w.decide()
	case 5:
		w.finish()
	case 6:
		w.start() // the agent was killed
	default:
		w.now = 0 // the machine was
		w.start()
	}
}

// decide does what the agent does, or is killed before one of its steps.
func (w *world) decide() {
	d := w.l.Decide(w.now)
	if d.Meta {
		w.meta = w.l.Meta()
	}
	w.saved = append(w.saved, d.End...)
	for _, b := range d.Begin {
		w.saved = append(w.saved, b.Entry)
		if rapid.IntRange(0, 9).Draw(w.r, "killed before it begins") == 0 {
			w.start()
			return
		}
		if w.truth >= b.Command.DeadlineMillis {
			w.r.Fatalf("command %s begins %d ms after its deadline", b.Command.ID, w.truth-b.Command.DeadlineMillis)
		}
		w.executed[b.Command.ID]++
		w.under = append(w.under, b.Command)
	}
}

// finish ends what is executed.
func (w *world) finish() {
	for _, c := range w.under {
		w.saved = append(w.saved, w.l.Ended(command.Result{V: 1, ID: c.ID, Node: "n1", State: command.Done}))
	}
	w.under = nil
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	l, _ := New(me, kinds, Meta{Agent: "a1", BornMillis: 1}, nil, 0)
	l.Received(issue(1, command.Inventory, t0, time.Hour), 0)
	if got := result(l.Cancelled(id(1))); got != "expired cancelled" {
		t.Errorf("cancelled: %s", got)
	}
	l.Received(issue(2, command.Inventory, t0, time.Hour), 0)
	answered(l, t0, 0)
	if d := l.Decide(0); len(d.Begin) != 1 || l.Cancelled(id(2)) != nil {
		t.Error("what has begun is cancelled")
	}
	if got := l.Unsent(9); len(got) != 1 || got[0].ID != id(1) {
		t.Errorf("unsent %+v", got)
	}
	if diff := cmp.Diff(l.Acked(id(1)).Acked, true); diff != "" || len(l.Unsent(9)) != 0 {
		t.Error("what the LO has is sent again")
	}
}
