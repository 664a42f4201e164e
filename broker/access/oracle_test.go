package access

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	mqtt "github.com/colonyfleet/colony/protocol/topic"
)

// control is what both tables are.
type control interface {
	Connect(info ConnectInfo) (Identity, error)
	MayPublish(id Identity, name string) bool
	MaySubscribe(id Identity, want string) bool
}

// An oracle is access control written down as the lists of filters whose topics
// an identity may use, and where topics are the site's own.
type oracle struct {
	publish, subscribe []string
	local              bool
}

func (o oracle) has(allowed []string, topic string) bool {
	first, _, _ := strings.Cut(topic, "/")
	if o.local && topic != "" && first != "colony" && !strings.HasPrefix(first, "$") {
		return true
	}
	return slices.ContainsFunc(allowed, func(f string) bool {
		// Machine data has at least one level below its prefix, which data/# matches too.
		return mqtt.Matches(f, topic) && (!strings.HasSuffix(f, "/#") || strings.Count(topic, "/") >= strings.Count(f, "/"))
	})
}

// coversAll asks for every topic of a filter, with each wildcard replaced by each
// of some words. As zz is in no rule, it stands for all other words.
func (o oracle) coversAll(want string) bool {
	if strings.ContainsAny(want[:1], "+#") { // refused even where the rest of it leaves nothing of Colony's to match
		return false
	}
	words := []string{"zz", "colony", "plant1", "data", "n1", "desired", "$x"}
	open := []string{""}
	for i, level := range strings.Split(want, "/") {
		var next []string
		for _, head := range open {
			for _, tail := range map[string][]string{"+": words, "#": append(words, "zz/zz", "desired/zz")}[level] {
				next = append(next, join(i, head, tail))
			}
			if level != "+" && level != "#" {
				next = append(next, join(i, head, level))
			}
		}
		open = next
	}
	for _, topic := range open {
		if !o.has(o.subscribe, topic) {
			return false
		}
	}
	return true
}

func join(level int, head, tail string) string {
	if level == 0 {
		return tail
	}
	return head + "/" + tail
}

// The tables are held against the oracle on 100,000 random pairs of identity and
// topic, and as many of identity and filter.
func TestAccessAgainstOracle(t *testing.T) {
	t.Parallel()
	const p1 = "colony/v1/plant1/"
	site, co := Site("plant1"), CO{}
	cases := []struct {
		access control
		user   string
		oracle oracle
	}{
		{site, "n1.plant1", oracle{[]string{
			p1 + "node/n1/online", p1 + "node/n1/heartbeat", p1 + "node/n1/inventory", p1 + "node/n1/status/+", p1 + "data/#",
		}, []string{p1 + "node/n1/desired", p1 + "data/#"}, true}},
		{site, "mes@plant1", oracle{[]string{p1 + "data/#"}, []string{p1 + "data/#"}, true}},
		{co, "plant1", oracle{[]string{p1 + "online", p1 + "up", p1 + "down-ack"}, []string{p1 + "desired", p1 + "ack", p1 + "down"}, false}},
		{co, "mes@plant1", oracle{[]string{p1 + "in/#"}, []string{p1 + "data/#"}, false}},
		{co, "bi@*", oracle{[]string{"colony/v1/+/in/#"}, []string{"colony/v1/+/data/#"}, false}},
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	// Levels lean to those of the protocol, or hardly a random topic would be allowed.
	usual := [][]string{{"colony"}, {"v1"}, {"plant1"}, {"data", "in", "node", "up", "ack", "online", "desired", "down"}, {"n1"}, {"desired", "online", "status"}}
	words := []string{"colony", "v1", "v2", "plant1", "plant2", "data", "in", "node", "n1", "n2", "desired", "online", "up", "ack", "down-ack", "status", "zz", "line", "$SYS"}
	random := func(wild bool) string {
		var levels []string
		for n := 1 + rnd.IntN(7); len(levels) < n; {
			w := words[rnd.IntN(len(words))]
			if i := len(levels); i < len(usual) && rnd.IntN(8) > 0 {
				w = usual[i][rnd.IntN(len(usual[i]))]
			}
			if wild && strings.Count(strings.Join(levels, "/"), "+") < 2 && rnd.IntN(6) == 0 {
				w = "+"
			}
			if wild && rnd.IntN(6) == 0 {
				return strings.Join(append(levels, "#"), "/")
			}
			levels = append(levels, w)
		}
		return strings.Join(levels, "/")
	}
	allowed := map[string]int{}
	known := map[string]bool{}
	for range 100_000 {
		c := cases[rnd.IntN(len(cases))]
		id, err := c.access.Connect(ConnectInfo{Username: c.user, ClientID: c.user})
		if err != nil {
			t.Fatal(err)
		}
		topic := random(false)
		want := c.oracle.has(c.oracle.publish, topic)
		if got := c.access.MayPublish(id, topic); got != want && wellFormed(topic) {
			t.Fatalf("%s publishes %q: got %v, want %v", c.user, topic, got, want)
		}
		filter := random(true)
		key := fmt.Sprint(c.user, c.oracle.local, filter)
		covered, ok := known[key]
		if !ok {
			covered = c.oracle.coversAll(filter)
			known[key] = covered
		}
		if got := c.access.MaySubscribe(id, filter); got != covered {
			t.Fatalf("%s subscribes %q: got %v, want %v", c.user, filter, got, covered)
		}
		if want {
			allowed["publish"]++
		}
		if covered {
			allowed["subscribe"]++
		}
	}
	if allowed["publish"] < 1000 || allowed["subscribe"] < 1000 {
		t.Errorf("too few of the pairs are allowed to show anything: %v", allowed)
	}
}

// wellFormed reports whether a topic of the protocol names its parts by labels; the
// oracle does not look at them.
func wellFormed(topic string) bool { return !strings.Contains(topic, "$") }
