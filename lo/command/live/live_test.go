package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

const followed = command.ID("0123456789abcdef0123456789abcdef")

// line is one of a log, as long as text.
func line(n int) []byte {
	return protocol.Marshal(command.LogLine{Component: "main", Container: "web", Text: fmt.Sprintf("line %06d", n)})
}

// gate lets everything pass, or nothing.
type gate struct {
	room   int
	closed chan struct{} // nil: it is open
	small  bool          // what is small goes at once
}

func (g *gate) Room() int { return g.room }

func (g *gate) Small(n int) func(bool) {
	if !g.small || n > mostSmall {
		return nil
	}
	return func(bool) {}
}

func (g *gate) Wait(ctx context.Context, _ int) (func(bool), error) {
	if g.closed != nil {
		select {
		case <-g.closed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func(bool) {}, nil
}

// end is the CO's end, and the nodes'.
type end struct {
	mu      sync.Mutex
	frames  []command.Frame
	credits map[protocol.NodeID]command.Credit
	given   int // messages of credit
	inputs  map[protocol.NodeID][]command.Segment
	down    bool
}

func (e *end) begin(_ context.Context, _ string, payload []byte) (func(context.Context) error, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, errors.New("no link")
	}
	var f command.Frame
	if err := command.Unmarshal(payload, &f); err != nil {
		return nil, err
	}
	e.frames = append(e.frames, f)
	return func(context.Context) error { return nil }, nil
}

func (e *end) publish(_ context.Context, name string, payload []byte, _ bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := topic.Parse(name)
	if err == nil && t.Kind == topic.NodeInput {
		var m command.Segment
		err = command.Unmarshal(payload, &m)
		e.inputs[t.Node] = append(e.inputs[t.Node], m)
		return err
	}
	if err != nil || t.Kind != topic.NodeCredit {
		return fmt.Errorf("published on %s", name)
	}
	e.given++
	var m command.Credit
	err = command.Unmarshal(payload, &m)
	e.credits[t.Node] = m
	return err
}

// arrived returns the segments that a node got.
func (e *end) arrived(node protocol.NodeID) []command.Segment {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inputs[node]
}

// state returns how much credit was given, and the last that n1 got.
func (e *end) state() (int, command.Credit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.given, e.credits["n1"]
}

// sums returns how many items arrived and were lost, and checks that frames are counted and pieces are whole.
func (e *end) sums(t *testing.T, node protocol.NodeID) (arrived, lost uint64, ended bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := uint64(0)
	for _, f := range e.frames {
		if f.Node != node {
			continue
		}
		seq++
		if f.Seq != seq {
			t.Errorf("frame %d has number %d", seq, f.Seq)
		}
		found := uint64(0)
		for b := f.Data; len(b) > 0; found++ {
			n := command.FirstItem(b)
			if n == 0 {
				t.Fatal("a frame ends within an item")
			}
			b = b[n:]
		}
		if found != f.Items {
			t.Errorf("a frame has %d items, and says %d", found, f.Items)
		}
		arrived, lost, ended = arrived+f.Items, lost+f.LostItems, ended || f.End
	}
	return arrived, lost, ended
}

// harness is a Live that runs.
func harness(t *testing.T, g *gate) (*Live, *end) {
	t.Helper()
	e := &end{credits: map[protocol.NodeID]command.Credit{}, inputs: map[protocol.NodeID][]command.Segment{}}
	l, err := New(Options{
		Site: "plant", Gate: g, Begin: e.begin, Publish: e.publish, Logger: slog.New(slog.DiscardHandler),
		Open: func(command.ID, int) []protocol.NodeID { return []protocol.NodeID{"n1", "n2"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l, e
}

// send has a node send lines, and says whether they are the last.
func send(t *testing.T, l *Live, node protocol.NodeID, first, count int, last bool) {
	t.Helper()
	f := command.Frame{V: 1, Seq: 1, End: last}
	for n := range count {
		f.Data = append(f.Data, line(first+n)...)
		f.Items++
	}
	if err := l.Frame(node, followed, protocol.Marshal(&f)); err != nil {
		t.Fatal(err)
	}
}

func credit(t *testing.T, l *Live, m command.Credit) {
	t.Helper()
	m.V = 1
	if err := l.Credit(followed, protocol.Marshal(&m)); err != nil {
		t.Fatal(err)
	}
}

// TestFollow carries lines of two nodes in small pieces, as long as a reader has a lease, and hands credit on.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, e := harness(t, &gate{room: 100})
		send(t, l, "n1", 0, 5, false) // it has no reader
		credit(t, l, command.Credit{Bytes: 1 << 20})
		send(t, l, "n1", 5, 50, false)
		send(t, l, "n2", 0, 7, true)
		synctest.Wait()
		if got, lost, _ := e.sums(t, "n1"); got != 50 || lost != 0 {
			t.Errorf("%d lines of n1 arrived, %d lost", got, lost)
		}
		if got, _, ended := e.sums(t, "n2"); got != 7 || !ended {
			t.Errorf("%d lines of n2 arrived, ended %t", got, ended)
		}
		for _, f := range e.frames {
			if len(f.Data) > 100 {
				t.Errorf("a piece of %d bytes", len(f.Data))
			}
		}
		if c := e.credits["n2"]; c.Bytes != 1<<20 {
			t.Errorf("credit of n2 %+v", c)
		}
		time.Sleep(lease + time.Second) // of virtual time
		send(t, l, "n1", 55, 1, false)
		synctest.Wait()
		if got, _, _ := e.sums(t, "n1"); got != 50 {
			t.Error("lines arrive after the lease has ended")
		}
	})
}

// TestSmallFrames has small frames of a command go while a large one of another command waits for its turn; those that wait themselves go together, and in
// their order.
func TestSmallFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{room: 1 << 20, closed: make(chan struct{}), small: true}
		l, e := harness(t, g)
		const other command.ID = "0123456789abcdef0123456789abcde1"
		credit(t, l, command.Credit{Bytes: 1 << 20})
		if err := l.Credit(other, protocol.Marshal(&command.Credit{V: 1, Bytes: 1 << 20})); err != nil {
			t.Fatal(err)
		}
		large := command.Frame{V: 1, Seq: 1, Items: 1, Data: protocol.Marshal(make([]byte, 4000))}
		if err := l.Frame("n2", other, protocol.Marshal(&large)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it waits now
		for n := range 10 {
			send(t, l, "n1", n, 1, false)
			synctest.Wait()
		}
		if got, lost, _ := e.sums(t, "n1"); got != 10 || lost != 0 {
			t.Errorf("%d small frames arrived beside a large one that waits, %d lost", got, lost)
		}
		small := command.Frame{V: 1, Seq: 2, Items: 1, Data: line(1)}
		for range 20 { // behind the large one of the same command
			if err := l.Frame("n2", other, protocol.Marshal(&small)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got, _, _ := e.sums(t, "n2"); got != 0 {
			t.Error("a frame overtakes another one of its command")
		}
		close(g.closed)
		synctest.Wait()
		got, lost, _ := e.sums(t, "n2")
		e.mu.Lock()
		defer e.mu.Unlock()
		if got != 21 || lost != 0 || len(e.frames) > 10+4 {
			t.Errorf("%d frames of n2 arrived in %d messages, %d lost", got, len(e.frames)-10, lost)
		}
	})
}

// TestInput hands segments on to the node that they name, in their order and as they are, as long as a reader has a lease; and gives a node that begins the
// credit that there is.
func TestInput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, e := harness(t, &gate{room: 100})
		input := func(node protocol.NodeID, offset uint64, size int) error {
			return l.Input(followed, protocol.Marshal(&command.Segment{V: 1, Node: node, Offset: offset, Data: make([]byte, size), Signature: []byte{1}}))
		}
		if err := input("n1", 0, 10); err != nil { // it has no reader
			t.Fatal(err)
		}
		credit(t, l, command.Credit{Bytes: 5000})
		synctest.Wait()
		before, _ := e.state()
		l.Began(followed)
		l.Began("0123456789abcdef0123456789abcde0")
		for i := range 50 {
			if err := input("n1", uint64(i), command.MaxSegment); err != nil {
				t.Fatal(err)
			}
		}
		if err := input("n3", 0, 1); err != nil { // it does not carry the command out
			t.Fatal(err)
		}
		for name, err := range map[string]error{"no node": input("", 0, 1), "a long one": input("n1", 0, command.MaxSegment+1), "no segment": l.Input(followed, []byte("x"))} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		synctest.Wait()
		if given, credit := e.state(); given != before+2 || credit.Bytes != 5000 {
			t.Errorf("%d messages of credit for two nodes, and %+v", given-before, credit)
		}
		if len(e.arrived("n1")) != 50 || len(e.arrived("n3")) != 0 {
			t.Errorf("%d segments arrived, and %d at a node that does not carry the command out", len(e.arrived("n1")), len(e.arrived("n3")))
		}
		for i, m := range e.arrived("n1") {
			if m.Offset != uint64(i) || len(m.Signature) != 1 {
				t.Errorf("segment %d: %+v", i, m)
			}
		}
		for i := range 2 * maxInputs { // more than waits
			if err := input("n2", uint64(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(lease + time.Second) // of virtual time
		synctest.Wait()
		if n := len(e.arrived("n2")); n == 0 || n > 2*maxInputs {
			t.Errorf("%d of %d small segments arrived", n, 2*maxInputs)
		}
		had := len(e.arrived("n1"))
		if err := input("n1", 50, 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(e.arrived("n1")) != had {
			t.Error("a segment arrives after the lease has ended")
		}
	})
}

// TestBounded has nodes send more than a link that is closed, and then cut, can take: memory is bounded, what is left out is counted, and the end
// arrives.
func TestBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{room: 1000, closed: make(chan struct{})}
		l, e := harness(t, g)
		credit(t, l, command.Credit{Bytes: 1 << 40})
		const frames, each = 300, 400
		for n := range frames {
			send(t, l, "n1", n*each, each, false)
			send(t, l, "n2", n*each, each, n == 0)
		}
		l.mu.Lock()
		if l.bytes > maxBuffer+(64<<10) {
			t.Errorf("%d bytes wait", l.bytes)
		}
		l.mu.Unlock()
		close(g.closed)
		synctest.Wait()
		e.mu.Lock()
		e.down = true
		e.mu.Unlock()
		send(t, l, "n1", frames*each, 3, false)
		time.Sleep(5 * time.Second) // of virtual time: the link is tried again meanwhile
		e.mu.Lock()
		e.down = false
		e.mu.Unlock()
		send(t, l, "n1", frames*each+3, 1, true)
		time.Sleep(5 * time.Second)
		for node, total := range map[protocol.NodeID]uint64{"n1": frames*each + 4, "n2": frames * each} {
			got, lost, ended := e.sums(t, node)
			if got+lost != total || lost == 0 || !ended {
				t.Errorf("%s: %d arrived and %d were counted of %d, ended %t", node, got, lost, total, ended)
			}
		}
	})
}

// TestCutCounts cuts a frame: each piece has the totals up to its own end.
func TestCutCounts(t *testing.T) {
	t.Parallel()
	one := uint64(len(line(1)))
	f := frame{"a", command.Frame{Items: 3, Data: append(append(line(1), line(2)...), line(3)...), TotalItems: 10, TotalBytes: 10 * one}}
	piece, rest := cut(f, int(one)+1)
	if rest == nil || piece.Items != 1 || piece.TotalItems != 8 || piece.TotalBytes != 8*one || rest.TotalItems != 10 || rest.TotalBytes != 10*one {
		t.Errorf("piece %+v, rest %+v", piece, rest)
	}
}
