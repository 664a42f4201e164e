package topic

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/topic/topictest"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0a", 16)
	for _, tt := range []struct {
		name string
		want Topic
	}{
		{ForSite(SiteDesired, "plant"), Topic{Kind: SiteDesired, Site: "plant"}},
		{ForSite(SiteTokens, "plant"), Topic{Kind: SiteTokens, Site: "plant"}},
		{ForSite(Revocations, "plant"), Topic{Kind: Revocations, Site: "plant"}},
		{ForSite(SiteOnline, "plant"), Topic{Kind: SiteOnline, Site: "plant"}},
		{ForSite(Up, "plant"), Topic{Kind: Up, Site: "plant"}},
		{ForSite(Ack, "plant"), Topic{Kind: Ack, Site: "plant"}},
		{ForNode(NodeDesired, "plant", "gw"), Topic{Kind: NodeDesired, Site: "plant", Node: "gw"}},
		{ForNode(NodeOnline, "plant", "gw"), Topic{Kind: NodeOnline, Site: "plant", Node: "gw"}},
		{ForNode(Heartbeat, "plant", "gw"), Topic{Kind: Heartbeat, Site: "plant", Node: "gw"}},
		{ForNode(NodeReport, "plant", "gw"), Topic{Kind: NodeReport, Site: "plant", Node: "gw"}},
		{ForNode(Inventory, "plant", "gw"), Topic{Kind: Inventory, Site: "plant", Node: "gw"}},
		{ForStatus("plant", "gw", "hello"), Topic{Kind: Status, Site: "plant", Node: "gw", Tail: "hello"}},
		{ForSite(Down, "plant"), Topic{Kind: Down, Site: "plant"}},
		{ForSite(DownAck, "plant"), Topic{Kind: DownAck, Site: "plant"}},
		{ForCommand(SiteCommand, "plant", id), Topic{Kind: SiteCommand, Site: "plant", Tail: id}},
		{ForCommand(SiteLive, "plant", id), Topic{Kind: SiteLive, Site: "plant", Tail: id}},
		{ForCommand(SiteCredit, "plant", id), Topic{Kind: SiteCredit, Site: "plant", Tail: id}},
		{ForNodeCommand(NodeCommand, "plant", "gw", id), Topic{Kind: NodeCommand, Site: "plant", Node: "gw", Tail: id}},
		{ForNodeCommand(NodeLive, "plant", "gw", id), Topic{Kind: NodeLive, Site: "plant", Node: "gw", Tail: id}},
		{ForNodeCommand(NodeCredit, "plant", "gw", id), Topic{Kind: NodeCredit, Site: "plant", Node: "gw", Tail: id}},
		{ForNode(CommandResult, "plant", "gw"), Topic{Kind: CommandResult, Site: "plant", Node: "gw"}},
		{ForSite(SiteTimeAsk, "plant"), Topic{Kind: SiteTimeAsk, Site: "plant"}},
		{ForSite(SiteTime, "plant"), Topic{Kind: SiteTime, Site: "plant"}},
		{ForNode(NodeTimeAsk, "plant", "gw"), Topic{Kind: NodeTimeAsk, Site: "plant", Node: "gw"}},
		{ForNode(NodeTime, "plant", "gw"), Topic{Kind: NodeTime, Site: "plant", Node: "gw"}},
		{"colony/v1/plant/data/line3/temp", Topic{Kind: Data, Site: "plant", Tail: "line3/temp"}},
		{ForTail(In, "plant", "line3/set"), Topic{Kind: In, Site: "plant", Tail: "line3/set"}},
	} {
		got, err := Parse(tt.name)
		if err != nil || got != tt.want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "colony/v2/plant/up", "colony/v1/", "colony/v1/plant", "colony/v1/plant/", "colony/v1/+/up", "colony/v1/plant/#",
		"colony/v1/Plant/up", "colony/v1/plant/up/", "colony/v1/plant/node/gw", "colony/v1/plant/node/+/online", "colony/v1/plant/node/gw/status",
		"colony/v1/plant/node/gw/status/a/b", "colony/v1/plant/data/", "colony/v1/plant/data/a/#", "colony/v1/plant/in/", "colony/v1/plant/in/+", "$SYS/broker/clients", "colony/v1/plant/cmd/+", "colony/v1/plant/cmd/0A", "colony/v1/plant/cmd", "colony/v1/plant/node/gw/cmd/0a", "colony/v1/plant/node/gw/live", "colony/v1/plant/node//online",
	} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ForStatus("plant", "gw", "hello"))
	f.Add("colony/v1/plant/data/a/b")
	f.Fuzz(func(t *testing.T, name string) {
		got, err := Parse(name)
		if err != nil {
			return
		}
		if strings.ContainsAny(name, "+#") || got.Site == "" {
			t.Errorf("Parse(%q) = %+v", name, got)
		}
	})
}

// Matches is held against topictest.Matches on random filters and names, empty levels and
// topics with $ among them. [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-4.7.3-4]
func TestMatches(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	words := []string{"a", "b", "", "$x", "+", "#"}
	hits := 0
	for range 100_000 {
		var filter, name []string
		for n := 1 + rnd.IntN(4); len(filter) < n; {
			w := words[rnd.IntN(6)]
			filter = append(filter, w)
			if w == "#" {
				break
			}
		}
		for n := 1 + rnd.IntN(4); len(name) < n; {
			name = append(name, words[rnd.IntN(4)])
		}
		f, n := strings.Join(filter, "/"), strings.Join(name, "/")
		if f == "" || n == "" {
			continue
		}
		want := topictest.Matches(f, n) && !(n[0] == '$' && strings.ContainsAny(f[:1], "+#"))
		if got := Matches(f, n); got != want {
			t.Fatalf("%q matches %q: got %v, want %v", f, n, got, want)
		}
		if want {
			hits++
		}
	}
	if hits < 1000 {
		t.Errorf("only %d of the pairs match: the test shows nothing", hits)
	}
}

func TestHasTail(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		ForTail(Data, "plant", "a/b"): true, ForTail(Data, "plant", ""): true, ForTail(In, "plant", "a"): false,
		ForTail(Data, "plant2", "a"): false, ForSite(Up, "plant"): false, "a/b": false,
	} {
		if got := HasTail(Data, "plant", name); got != want {
			t.Errorf("%s: HasTail is %t, want %t", name, got, want)
		}
	}
}

func TestReserved(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"colony": true, "colony/": true, "colony/v1/plant/up": true, "colony/v2/x": true,
		"": false, "colonyx": false, "colonyx/a": false, "/colony": false, "a/colony": false, "Colony/a": false, "+/a": false, "#": false,
	} {
		if got := Reserved(name); got != want {
			t.Errorf("Reserved(%q) is %v, want %v", name, got, want)
		}
	}
}
