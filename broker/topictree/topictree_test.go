package topictree

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/filter"
	mqtt "github.com/colonyfleet/colony/protocol/topic"
)

// The tree is held against MQTT's rule on random subscriptions, made and removed,
// and random topics; at the end nothing is left in it.
func TestTree(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	words := []string{"a", "b", "", "$x", "+", "#"}
	random := func(from int) string {
		var levels []string
		for n := 1 + rnd.IntN(4); len(levels) < n; {
			w := words[rnd.IntN(from)]
			levels = append(levels, w)
			if w == "#" {
				break
			}
		}
		return strings.Join(levels, "/")
	}
	var tr Tree[string]
	clients := make([]string, 3*few)
	held := subscriptions{}
	for i := range clients {
		clients[i] = string(rune('a' + i))
		held[clients[i]] = map[string]Options{}
	}
	hits := 0
	for i := range 6000 {
		s, to := clients[rnd.IntN(len(clients))], random(6)
		if to == "" {
			continue
		}
		if rnd.IntN(4) == 0 {
			to = filter.SharePrefix + string(rune('g'+rnd.IntN(2))) + "/" + to
		}
		if rnd.IntN(3) == 0 {
			tr.Remove(s, to) // held or not
			delete(held[s], to)
		} else {
			sub := Options{QoS: byte(rnd.IntN(3)), Identifier: rnd.IntN(4), NoLocal: rnd.IntN(9) == 0}
			tr.Add(s, to, sub)
			held[s][to] = sub
		}
		topic := random(4)
		if topic == "" {
			continue
		}
		want, got := expect(held, topic), actual(tr.Find(topic))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", topic, diff)
		}
		hits += len(got)
		if i%100 > 0 {
			continue
		}
		if nodes, most := tr.root.count(t), 2*held.filters(); nodes > most {
			t.Fatalf("%d nodes, want %d at most", nodes, most)
		}
	}
	if hits < 2000 {
		t.Errorf("only %d matches: the test shows nothing", hits)
	}
	for s, filters := range held {
		tr.RemoveAll(s, maps.Keys(filters))
	}
	if !tr.root.empty() {
		t.Errorf("levels are left: %+v", tr.root)
	}
}

// subscriptions are options by client and filter.
type subscriptions map[string]map[string]Options

func (s subscriptions) filters() (n int) {
	for _, filters := range s {
		n += len(filters)
	}
	return n
}

// count returns how many nodes there are below n. Each of them is where something ends or parts.
func (n *node[S]) count(t *testing.T) (nodes int) {
	t.Helper()
	children := slices.Collect(maps.Values(n.next.many))
	for _, one := range n.next.few {
		children = append(children, one.to)
	}
	if n.one != nil {
		children = append(children, n.one)
	}
	for _, child := range children {
		if _, only := child.only(); only != nil || child.empty() {
			t.Fatalf("the node %q stands for nothing", child.label)
		}
		nodes += 1 + child.count(t)
	}
	return nodes
}

// A share is what one client, or one group, gets of a message.
type share struct {
	QoS     byte
	NoLocal bool
	IDs     []int
	Members []string // of a group
}

func expect(held subscriptions, topic string) map[string]share {
	want := map[string]share{}
	for s, filters := range held {
		for to, sub := range filters {
			group, plain := filter.Split(to)
			if !mqtt.Matches(plain, topic) {
				continue
			}
			if group != "" {
				key := to
				sh := want[key]
				sh.Members = append(sh.Members, s)
				slices.Sort(sh.Members)
				want[key] = sh
				continue
			}
			sh := want[s]
			sh.QoS, sh.NoLocal = max(sh.QoS, sub.QoS), sh.NoLocal || sub.NoLocal
			if sub.Identifier > 0 && !slices.Contains(sh.IDs, sub.Identifier) {
				sh.IDs = append(sh.IDs, sub.Identifier)
				slices.Sort(sh.IDs)
			}
			want[s] = sh
		}
	}
	return byMembers(want)
}

func actual(found Found[string]) map[string]share {
	got := map[string]share{}
	for _, m := range found.Plain {
		got[m.To] = share{QoS: m.QoS, NoLocal: m.NoLocal, IDs: m.Identifiers()}
	}
	for i, group := range found.Shared {
		sh := share{}
		for _, m := range group {
			sh.Members = append(sh.Members, m.To)
		}
		slices.Sort(sh.Members)
		got[filter.SharePrefix+string(rune('0'+i))] = sh
	}
	return byMembers(got)
}

// byMembers names groups by their members, as the tree does not return their names.
func byMembers(in map[string]share) map[string]share {
	out := map[string]share{}
	for key, sh := range in {
		if strings.HasPrefix(key, filter.SharePrefix) {
			for key = "group " + strings.Join(sh.Members, ""); ; key += "'" {
				if _, added := out[key]; !added {
					break
				}
			}
		}
		out[key] = sh
	}
	return out
}

// The work to find that a topic has no subscribers depends on how many filters there are, and not from their levels, at each of which
// they part.
func TestStepsOfDeepFilters(t *testing.T) {
	t.Parallel()
	const filters, levels = 1000, 200
	tr, topic := deep(filters, levels)
	if found := tr.Find(topic); len(found.Plain) > 0 || found.Steps > 2*filters+filters*2*levels/bytesPerStep {
		t.Errorf("%d matches in %d steps, want none in 2 for each filter, and 1 for %d bytes", len(found.Plain), found.Steps, bytesPerStep)
	}
	if found := tr.Find("b"); found.Steps > 2 {
		t.Errorf("%d steps for a topic that no filter begins like", found.Steps)
	}
}

// A further subscription of a client that gets the message anyhow is a step; further clients are none.
func TestStepsOfMatches(t *testing.T) {
	t.Parallel()
	var tr Tree[int]
	for s := range 100 {
		tr.Add(s, "a/b", Options{})
	}
	if found := tr.Find("a/b"); len(found.Plain) != 100 || found.Steps != 2 {
		t.Errorf("%d matches in %d steps, want 100 in 2: the root, and a/b", len(found.Plain), found.Steps)
	}
	for s := range 100 {
		tr.Add(s, "a/+", Options{})
	}
	var found Found[int]
	if tr.FindInto(&found, "a/b"); len(found.Plain) != 100 || found.Steps != 4+100 {
		t.Errorf("%d matches in %d steps, want 100 in 104: four nodes, and each client again", len(found.Plain), found.Steps)
	}
	if found.Clear(); found.Steps != 0 {
		t.Errorf("%d steps of an empty answer", found.Steps)
	}
}

// Each member of a shared subscription that is put into its turn is a step, and each group some.
func TestStepsOfGroups(t *testing.T) {
	t.Parallel()
	const groups, members = 100, 3
	var tr Tree[int]
	for g := range groups {
		for s := range members {
			tr.Add(s, fmt.Sprintf("%s%d/a", filter.SharePrefix, g), Options{})
		}
	}
	if found := tr.Find("a"); len(found.Shared) != groups || found.Steps != 2+groups*(stepsPerGroup+members) {
		t.Errorf("%d matches in %d steps, want %d in %d", len(found.Shared), found.Steps, groups, 2+groups*(stepsPerGroup+members))
	}
}

// Exceeds says what Find takes, with fewer steps, and leaves the turns of shared subscriptions alone.
func TestExceeds(t *testing.T) {
	t.Parallel()
	tr, topic := deep(500, 100)
	for s := range 2 {
		tr.Add(s, filter.SharePrefix+"g/b", Options{})
	}
	for _, topic := range []string{topic, "b", "none"} {
		steps := tr.Find(topic).Steps
		if tr.Exceeds(topic, steps, 0) || !tr.Exceeds(topic, steps-1, 0) {
			t.Errorf("%.10s: it is said not to take %d steps", topic, steps)
		}
	}
	for s := range 2 {
		tr.Add(s, "c/#", Options{})
		tr.Add(s, "c/+", Options{})
	}
	if steps := tr.Find("c/d").Steps; tr.Exceeds("c/d", steps-2, 1) || !tr.Exceeds("c/d", steps-3, 1) {
		t.Errorf("%d steps for two subscribers are not %d, and one for each", steps, steps-2)
	}
	first := tr.Find("b").Shared[0][0].To
	tr.Exceeds("b", 100, 0)
	if next := tr.Find("b").Shared[0][0].To; next == first {
		t.Errorf("%d is first twice", first)
	}
	f := finder[int]{found: &Found[int]{}, most: 100, tries: true}
	if f.walk(&tr.root, topic, true, false); f.found.Steps > 100+2*100 { // on the way back each level looks at one more at most
		t.Errorf("%d steps to know that it takes more than 100", f.found.Steps)
	}
}

// TestOrder makes and removes the same subscriptions in two trees: what they find has
// one order.
func TestOrder(t *testing.T) {
	t.Parallel()
	var one, same Tree[int]
	for _, tr := range []*Tree[int]{&one, &same} {
		for i := range 100 {
			tr.Add(i, "a/b", Options{})
			tr.Add(i, filter.SharePrefix+string(rune('a'+i%9))+"/a/b", Options{})
		}
		for i := 0; i < 100; i += 3 {
			tr.Remove(i, "a/b")
		}
	}
	if diff := cmp.Diff(order(one.Find("a/b")), order(same.Find("a/b"))); diff != "" {
		t.Errorf("the same calls, two orders:\n%s", diff)
	}
}

func order(found Found[int]) (out []int) {
	for _, list := range append([][]Match[int]{found.Plain}, found.Shared...) {
		for _, m := range list {
			out = append(out, m.To)
		}
	}
	return out
}

// TestShareIsEven checks that each member of a group is the first to be asked in turn.
func TestShareIsEven(t *testing.T) {
	t.Parallel()
	const members = 5
	var tr Tree[int]
	for i := range members {
		tr.Add(i, filter.SharePrefix+"g/a", Options{})
	}
	first := map[int]int{}
	for range 4 * members {
		first[tr.Find("a").Shared[0][0].To]++
	}
	for i := range members {
		if first[i] != 4 {
			t.Errorf("member %d was the first %d times, want 4", i, first[i])
		}
	}
}

// A client that leaves with many subscriptions waits for a few of those that look for subscribers, and not
// for one for each of its filters: with many filters that match, each takes long.
func TestRemoveAllWaitsForFew(t *testing.T) {
	t.Parallel()
	const filters = 4 * removeAtOnce
	var tr Tree[int]
	var all []string
	for i := range filters {
		all = append(all, fmt.Sprintf("a/%d/+", i))
		tr.Add(1, all[i], Options{})
	}
	done := make(chan struct{})
	ended := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	tr.mu.RLock()
	go func() {
		defer close(done)
		tr.RemoveAll(1, slices.Values(all))
	}()
	waits := 0
	for ; !ended(); waits++ { // each time a reader has the tree, and RemoveAll waits for it
		for !ended() && tr.mu.TryRLock() {
			tr.mu.RUnlock()
			runtime.Gosched()
		}
		tr.mu.RUnlock()
		tr.mu.RLock()
	}
	tr.mu.RUnlock()
	if want := filters/removeAtOnce + 3; waits > want {
		t.Errorf("RemoveAll of %d filters waited for %d readers, want %d at most", filters, waits, want)
	}
	if !tr.root.empty() {
		t.Error("subscriptions are left")
	}
}

// An answer in the memory of an earlier one is as a new one, and needs no other where the subscribers are no more.
func TestFindInto(t *testing.T) { // not parallel: allocations are counted
	var tr Tree[int]
	for s := range 5 {
		tr.Add(s, "a/b", Options{Identifier: 1 + s, QoS: 1})
		tr.Add(s, "a/#", Options{Identifier: 10 + s})
		tr.Add(s, "c/+", Options{QoS: 2})
	}
	var found Found[int]
	for _, topic := range []string{"a/b", "c/d", "nobody", "a/b", "a/c", "a/b"} {
		tr.FindInto(&found, topic)
		want := tr.Find(topic)
		if len(found.Plain) != len(want.Plain) || len(found.Shared) != 0 {
			t.Fatalf("%s: %d matches, want %d", topic, len(found.Plain), len(want.Plain))
		}
		for i, m := range want.Plain {
			if got := found.Plain[i]; got.To != m.To || got.Options != m.Options || !slices.Equal(got.Identifiers(), m.Identifiers()) {
				t.Errorf("%s: match %d is %v, want %v", topic, i, got, m)
			}
		}
		found.Clear()
		if len(found.Plain) != 0 {
			t.Fatal("the answer is not empty")
		}
	}
	if n := testing.AllocsPerRun(100, func() { tr.FindInto(&found, "c/d"); found.Clear() }); n > 0 {
		t.Errorf("%v allocations for an answer that has room", n)
	}
}

// One filter may have many subscribers and many shared subscriptions. Where each takes a look at all of the
// others, this takes hours.
func TestManyOfOneFilter(t *testing.T) {
	t.Parallel()
	const many = 300_000
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	var tr Tree[int]
	for _, change := range []func(s int, f string){
		func(s int, f string) { tr.Add(s, f, Options{}) },
		tr.Remove,
	} {
		for i := range many {
			select {
			case <-late.C:
				t.Fatalf("two minutes are over after %d of %d", i, many)
			default:
			}
			change(i, "a/b")
			change(0, fmt.Sprintf("%s%d/a/b", filter.SharePrefix, i))
		}
	}
	if !tr.root.empty() {
		t.Error("subscriptions are left")
	}
}

// BenchmarkOverlap looks for the subscribers of a topic that 30 clients match with 10,000 filters each: the same
// filters, and each its own.
func BenchmarkOverlap(b *testing.B) {
	const clients, filters, levels = 30, 10_000, 19
	topic := strings.Repeat("x/", levels-1) + "x"
	for name, own := range map[string]int{"same": 0, "own": 1} {
		var tr Tree[int]
		for c := range clients {
			for i := range filters {
				f := make([]string, levels)
				for l, bits := 0, i+own*c*filters; l < levels; l, bits = l+1, bits>>1 {
					f[levels-1-l] = string("x+"[bits&1])
				}
				tr.Add(c, strings.Join(f, "/"), Options{Identifier: 1 + i})
			}
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := tr.Find(topic); len(got.Plain) != clients {
					b.Fatalf("%d matches, want %d", len(got.Plain), clients)
				}
			}
		})
	}
}
