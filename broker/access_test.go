package broker

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestSiteAccess(t *testing.T) {
	t.Parallel()
	a := SiteAccess("plant1")
	id, err := a.Connect(ConnectInfo{Username: "n1.plant1", ClientID: "n1.plant1"})
	if err != nil || id != (Identity{Name: "n1.plant1", Site: "plant1", Node: "n1"}) {
		t.Fatalf("got %+v, %v", id, err)
	}
	for user, want := range map[string]protocol.Kind{
		"plant1": protocol.Denied, "n1.plant2": protocol.Denied, "": protocol.Denied, "N1.plant1": protocol.Denied,
		"n1.plant1.x": protocol.Denied, "+.plant1": protocol.Denied, ".plant1": protocol.Denied, "n1.": protocol.Denied,
	} {
		if _, err := a.Connect(ConnectInfo{Username: user, ClientID: user}); protocol.KindOf(err) != want {
			t.Errorf("connect as %q: got %v, want an error of kind %s", user, err, want)
		}
	}
	if _, err := a.Connect(ConnectInfo{Username: "n1.plant1", ClientID: "n2.plant1"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("foreign client id: got %v, want an error of kind invalid", err)
	}
	const own = "colony/v1/plant1/node/n1/"
	check(t, "publish", func(s string) bool { return a.MayPublish(id, s) }, map[string]bool{
		own + "online": true, own + "heartbeat": true, own + "inventory": true, own + "status/web": true,
		"colony/v1/plant1/data/line/1": true,
		own + "desired":                false, own + "status": false, own + "status/a/b": false, own + "online/x": false,
		"colony/v1/plant1/node/n2/online": false, "colony/v1/plant2/node/n1/online": false,
		"colony/v1/plant1/online": false, "colony/v1/plant1/up": false, "colony/v1/plant2/data/x": false,
		"colony/v1/plant1/data": false, "colony/v1/plant1/data/": false, "colony/v1/plant1/data/+": false,
		"": false, "#": false, "$SYS/x": false, "colony/v2/plant1/node/n1/online": false,
	})
	check(t, "subscribe", func(s string) bool { return a.MaySubscribe(id, s) }, map[string]bool{
		own + "desired": true, "colony/v1/plant1/data/#": true, "colony/v1/plant1/data/line/+": true, "colony/v1/plant1/data/x": true,
		own + "#": false, own + "+": false, own + "online": false, "colony/v1/plant1/node/n2/desired": false,
		"colony/v1/plant1/node/+/desired": false, "colony/v1/+/data/#": false, "colony/v1/plant2/data/#": false,
		"colony/v1/plant1/#": false, "#": false, "+/+/+/data/#": false, "colony/v1/plant1/data": false, "colony/v1/plant1/+": false,
	})
}

func TestCentralAccess(t *testing.T) {
	t.Parallel()
	a := CentralAccess()
	id, err := a.Connect(ConnectInfo{Username: "plant1", ClientID: "plant1"})
	if err != nil || id != (Identity{Name: "plant1", Site: "plant1"}) {
		t.Fatalf("got %+v, %v", id, err)
	}
	if _, err := a.Connect(ConnectInfo{Username: "n1.plant1", ClientID: "n1.plant1"}); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("a node at the CO: got %v, want an error of kind denied", err)
	}
	check(t, "publish", func(s string) bool { return a.MayPublish(id, s) }, map[string]bool{
		"colony/v1/plant1/online": true, "colony/v1/plant1/up": true, "colony/v1/plant1/data/x": true,
		"colony/v1/plant1/desired": false, "colony/v1/plant1/ack": false, "colony/v1/plant2/up": false,
		"colony/v1/plant1/node/n1/online": false, "colony/v1/plant1/up/x": false,
	})
	check(t, "subscribe", func(s string) bool { return a.MaySubscribe(id, s) }, map[string]bool{
		"colony/v1/plant1/desired": true, "colony/v1/plant1/ack": true,
		"colony/v1/plant1/up": false, "colony/v1/+/desired": false, "colony/v1/plant2/ack": false, "colony/v1/plant1/#": false,
		"colony/v1/plant1/+": false,
	})
}

func check(t *testing.T, what string, may func(string) bool, want map[string]bool) {
	t.Helper()
	for name, ok := range want {
		if may(name) != ok {
			t.Errorf("%s %q: got %v, want %v", what, name, !ok, ok)
		}
	}
}

// covers is held against its definition, on every filter and topic of up to
// three levels of a small alphabet.
func TestCovers(t *testing.T) {
	t.Parallel()
	var filters, topics []string
	var grow func(prefix []string)
	grow = func(prefix []string) {
		for _, w := range []string{"a", "b", "+", "#"} {
			f := append(append([]string(nil), prefix...), w)
			s := strings.Join(f, "/")
			filters = append(filters, s)
			if !strings.ContainsAny(s, "+#") {
				topics = append(topics, s)
			}
			if w != "#" && len(f) < 3 {
				grow(f)
			}
		}
	}
	grow(nil)
	for _, allowed := range filters {
		for _, filter := range filters {
			if !covers(allowed, filter) {
				if allowed == filter || allowed == "#" {
					t.Errorf("%q does not cover %q", allowed, filter)
				}
				continue
			}
			for _, topic := range topics {
				if matches(filter, topic) && !matches(allowed, topic) {
					t.Errorf("%q covers %q, but does not match %q", allowed, filter, topic)
				}
			}
		}
	}
}

// matches is MQTT's own rule, written down apart from covers.
func matches(filter, topic string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(topic, "/")
	for i, w := range f {
		if w == "#" {
			return true
		}
		if i >= len(n) || w != "+" && w != n[i] {
			return false
		}
	}
	return len(f) == len(n)
}
