package members

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const t0 = int64(1_900_000_000_000)

func id(n int) command.ID { return command.ID(fmt.Sprintf("%032x", n)) }

func record(n int, life time.Duration, nodes ...protocol.NodeID) Record {
	return Record{ID: id(n), Kind: command.Restart, IssuedMillis: t0, DeadlineMillis: t0 + life.Milliseconds(), Envelope: []byte{1}, Nodes: nodes}
}

func learn(s *Site, at int64, now time.Duration) {
	ask := s.Clock.Ask(uint64(now)+1, now)
	s.Clock.Learn(command.Time{Nonce: ask.Nonce, UnixMillis: at})
}

func from(n int, node protocol.NodeID, state command.State) *command.Result {
	return &command.Result{V: 1, ID: id(n), Node: node, State: state}
}

// TestTimeOfASiteWithWindows is asked for without a command, and again before it is old.
func TestTimeOfASiteWithWindows(t *testing.T) {
	t.Parallel()
	s := New()
	if s.Decide(time.Second).Ask {
		t.Error("it is asked for, and nobody needs it")
	}
	s.Timed = true
	if !s.Decide(time.Second).Ask {
		t.Error("it is not asked for")
	}
	learn(s, t0, time.Second)
	if d := s.Decide(time.Minute); d.Ask || d.Next != timed-59*time.Second {
		t.Errorf("once it is known: %+v", d)
	}
	if !s.Decide(timed + time.Second).Ask {
		t.Error("it is not asked for again")
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	s := New()
	s.Add(record(1, time.Hour, "a", "b"), 0)
	if d := s.Decide(time.Second); !d.Ask || len(d.Publish) != 0 || len(d.End) != 0 {
		t.Errorf("without the time of the CO: %+v", d)
	}
	learn(s, t0+1000, time.Second)
	d := s.Decide(time.Second)
	if d.Ask || len(d.Publish) != 2 || d.Publish[0].Node != "a" || len(d.Publish[0].Envelope) == 0 {
		t.Errorf("with it: %+v", d)
	}
	if d := s.Decide(time.Second); len(d.Publish) != 0 {
		t.Errorf("published twice: %+v", d)
	}
	s.Unpublished(Publication{ID: id(1), Node: "b", Envelope: []byte{1}})
	if d := s.Decide(time.Second); len(d.Publish) != 1 {
		t.Errorf("what the broker did not take: %+v", d)
	}
	s.Apply(from(1, "a", command.Done), Where{})
	if d := s.Decide(time.Second); len(d.Publish) != 1 || d.Publish[0].Node != "a" || d.Publish[0].Envelope != nil {
		t.Errorf("after the end at a: %+v", d)
	}
	if held, ended := s.Holds(id(1)); !held || ended {
		t.Error("it has ended, or is not held")
	}
	if open := s.Open(id(1), 5); len(open) != 1 || open[0] != "b" {
		t.Errorf("open at %v", open)
	}
	d = s.Decide(2 * time.Hour)
	if len(d.End) != 1 || d.End[0].Node != "b" || d.End[0].State != command.Expired || d.End[0].Code != command.NodeAway || !d.End[0].ByLO {
		t.Errorf("after the deadline: %+v", d.End)
	}
	s.Apply(&d.End[0], Where{At: 7})
	if !s.News(from(1, "b", command.Done)) {
		t.Error("what the node says itself does not count after what the LO said")
	}
	s.Apply(from(1, "b", command.Done), Where{At: 8})
	if s.News(from(1, "b", command.Failed)) || s.News(from(1, "c", command.Done)) || s.News(from(2, "b", command.Done)) {
		t.Error("a second end, of a stranger, or of no command is news")
	}
	s.Resend(id(1))
	if d := s.Decide(0); len(d.Again) != 2 || d.Again[1].Where.At != 8 {
		t.Errorf("reported again: %+v", d.Again)
	}
	if d := s.Decide(0); len(d.Again) != 0 {
		t.Errorf("reported a third time: %+v", d.Again)
	}
	learn(s, t0+3*command.MaxLifeMillis, 3*time.Hour)
	if d := s.Decide(3 * time.Hour); len(d.Forget) != 1 {
		t.Errorf("twice the longest life later: %+v", d)
	}
}

func TestEndsOfTheLO(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(s *Site)
		at      time.Duration
		state   command.State
		code    command.Code
	}{
		"cancelled":                 {func(s *Site) { s.Cancel(id(1)) }, 0, command.Expired, command.Cancelled},
		"the time was never learnt": {func(*Site) {}, 62 * time.Minute, command.Expired, command.DeadlineUnverifiable},
		"it came too late":          {func(s *Site) { learn(s, t0+2*time.Hour.Milliseconds(), 0) }, 0, command.Expired, ""},
		"it began, and never ended": {func(s *Site) {
			learn(s, t0, 0)
			s.Apply(from(1, "a", command.Running), Where{})
		}, 4 * time.Hour, command.Unknown, command.NodeAway},
	} {
		s := New()
		s.Add(record(1, time.Hour, "a"), 0)
		tt.prepare(s)
		d := s.Decide(tt.at)
		if len(d.End) != 1 || d.End[0].State != tt.state || d.End[0].Code != tt.code || d.End[0].Message == "" || len(d.Publish) > 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestFollowed has a node send live for as long as its kind allows: the LO does not end that, and credit goes on to the node.
func TestFollowed(t *testing.T) {
	t.Parallel()
	s := New()
	r := record(1, 30*time.Second, "a")
	r.Kind = command.Logs
	s.Add(r, 0)
	learn(s, t0, 0)
	s.Apply(from(1, "a", command.Running), Where{})
	for _, at := range []time.Duration{3 * time.Hour, command.LimitOf(command.Logs) + 30*time.Second} {
		if d := s.Decide(at); len(d.End) != 0 || len(s.Open(id(1), 5)) != 1 {
			t.Errorf("after %s: %+v", at, d.End)
		}
	}
	if d := s.Decide(command.LimitOf(command.Logs) + 3*time.Hour); len(d.End) != 1 || d.End[0].State != command.Unknown {
		t.Errorf("long after the longest time: %+v", d.End)
	}
	for _, d := range command.Definitions() {
		if d.Limit <= 0 || d.Limit > forgetAfter/2 {
			t.Errorf("kind %s: limit of %s, want one that ends before the LO forgets the command", d.Kind, d.Limit)
		}
	}
}

// TestCrowdedNode has one node, which is away, with as many open commands as it may have: others are free, and it is once some have ended.
func TestCrowdedNode(t *testing.T) {
	t.Parallel()
	s := New()
	for n := range command.MaxPerNode {
		s.Add(record(n, time.Hour, "a"), 0)
	}
	if got := s.Crowded([]protocol.NodeID{"a", "b"}); len(got) != 1 || got[0] != "a" {
		t.Errorf("%v have no room", got)
	}
	s.Apply(from(3, "a", command.Done), Where{})
	if got := s.Crowded([]protocol.NodeID{"a", "b"}); len(got) != 0 {
		t.Errorf("%v have no room, after an end", got)
	}
	s.Apply(&command.Result{V: 1, ID: id(4), Node: "a", State: command.Expired, ByLO: true}, Where{})
	s.Apply(from(4, "a", command.Running), Where{}) // it does it after all
	s.Add(record(1000, time.Hour, "a"), 0)
	if got := s.Crowded([]protocol.NodeID{"a"}); len(got) != 1 {
		t.Error("what the node opened again is not counted")
	}
	s.Forget(id(1000))
	if got := s.Crowded([]protocol.NodeID{"a"}); len(got) != 0 {
		t.Error("what was forgotten is counted")
	}
}

// TestMany takes a command for ten thousand nodes: it is published at a bounded pace, and its end is found in as many results.
func TestMany(t *testing.T) {
	t.Parallel()
	s := New()
	nodes := map[protocol.NodeID]map[string]string{}
	for n := range 10_000 {
		nodes[protocol.NodeID(fmt.Sprintf("n%05d", n))] = map[string]string{"line": fmt.Sprint(n % 2)}
	}
	c := &command.Command{ID: id(1), Kind: command.Restart, Selector: map[string]string{"line": "1"}, IssuedMillis: t0, DeadlineMillis: t0 + 1000}
	r, unknown := Resolve(c, nil, nodes)
	if len(r.Nodes) != 5000 || len(unknown) != 0 || r.Received().Nodes != 5000 {
		t.Fatalf("%d nodes are meant", len(r.Nodes))
	}
	s.Add(r, 0)
	learn(s, t0, 0)
	published := 0
	for turns := 0; published < 5000; turns++ {
		d := s.Decide(0)
		if len(d.Publish) > perTurn || d.Next > tick || turns > 100 {
			t.Fatalf("%d at a time, then after %s", len(d.Publish), d.Next)
		}
		published += len(d.Publish)
	}
	for _, n := range r.Nodes {
		s.Apply(from(1, n, command.Done), Where{})
	}
	if _, ended := s.Holds(id(1)); !ended {
		t.Error("it has not ended")
	}
}

// TestEachEnds has nodes answer in any way, or not at all, and the LO learn the time or not: each node ends each command, and what it said
// itself is never replaced.
func TestEachEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s, now := New(), time.Duration(0)
		nodes := []protocol.NodeID{"a", "b", "c"}
		s.Add(record(1, time.Duration(rapid.IntRange(1, 86_400).Draw(r, "life"))*time.Second, nodes...), 0)
		own := map[protocol.NodeID]command.State{}
		apply := func(m *command.Result) {
			if m.ByLO && own[m.Node] != "" && own[m.Node].Ended() {
				r.Fatalf("the LO ends what node %s has ended as %s", m.Node, own[m.Node])
			}
			if !m.ByLO {
				own[m.Node] = m.State
			}
			s.Apply(m, Where{})
		}
		for range rapid.IntRange(0, 30).Draw(r, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(r, "passes"))
			switch rapid.IntRange(0, 3).Draw(r, "step") {
			case 0:
				learn(s, t0+now.Milliseconds(), now)
			case 1:
				states := command.States()
				m := from(1, nodes[rapid.IntRange(0, 2).Draw(r, "node")], states[rapid.IntRange(0, len(states)-1).Draw(r, "state")])
				if s.News(m) {
					apply(m)
				}
			case 2:
				if rapid.Bool().Draw(r, "cancelled") {
					s.Cancel(id(1))
				}
			default:
				d := s.Decide(now)
				for i := range d.End {
					apply(&d.End[i])
				}
			}
		}
		for range 3 {
			now += 40 * time.Hour
			d := s.Decide(now)
			for i := range d.End {
				apply(&d.End[i])
			}
		}
		if held, ended := s.Holds(id(1)); held && !ended {
			r.Fatalf("command not ended at %v", s.Open(id(1), 3))
		}
	})
}

func TestCrowded(t *testing.T) {
	t.Parallel()
	s := New()
	for n := range MaxHeld + 5 {
		s.Add(record(n, time.Hour, "a"), 0)
		if n != 2 {
			s.Apply(from(n, "a", command.Done), Where{})
		}
	}
	d := s.Decide(0)
	if len(d.Forget) != 5 || d.Forget[0] != id(0) || d.Forget[2] != id(3) {
		t.Errorf("forgets %v, want those that ended first", d.Forget)
	}
}
