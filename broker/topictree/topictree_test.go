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
	held := map[string]map[string]Options{}
	for i := range clients {
		clients[i] = string(rune('a' + i))
		held[clients[i]] = map[string]Options{}
	}
	hits := 0
	for range 6000 {
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

// A share is what one client, or one group, gets of a message.
type share struct {
	QoS     byte
	NoLocal bool
	IDs     []int
	Members []string // of a group
}

func expect(held map[string]map[string]Options, topic string) map[string]share {
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

// Who leaves with many subscriptions waits for a few of those that look for subscribers, and not for one for
// each of its filters: with many filters that match, each takes long.
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
