package access

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestSite(t *testing.T) {
	t.Parallel()
	a := Site("plant1")
	id := connects(t, a, "n1.plant1", "n1.plant1", Identity{Name: "n1.plant1", Site: "plant1", Node: "n1"})
	w := connects(t, a, "mes@plant1", "", Identity{Name: "mes@plant1", Site: "plant1", Client: "mes"})
	connects(t, a, "mes@plant1", "mes@plant1", w)
	connects(t, a, "mes@plant1", "mes@plant1/7/b", w)
	for user, want := range map[string]protocol.Kind{
		"plant1": protocol.Denied, "n1.plant2": protocol.Denied, "": protocol.Denied, "N1.plant1": protocol.Denied,
		"n1.plant1.x": protocol.Denied, "+.plant1": protocol.Denied, ".plant1": protocol.Denied, "n1.": protocol.Denied,
		"mes@plant2": protocol.Denied, "mes@*": protocol.Denied, "@plant1": protocol.Denied, "mes@": protocol.Denied,
		"m/x@plant1": protocol.Denied, "mes@plant1@plant1": protocol.Denied, "#@plant1": protocol.Denied, "n1.plant1@plant1": protocol.Denied,
	} {
		if _, err := a.Connect(ConnectInfo{Username: user, ClientID: user}); protocol.KindOf(err) != want {
			t.Errorf("connect as %q: got %v, want an error of kind %s", user, err, want)
		}
	}
	for _, c := range [][2]string{ // no client takes the client id of another
		{"n1.plant1", "n2.plant1"},
		{"n1.plant1", ""},
		{"n1.plant1", "n1.plant1/2"},
		{"n1.plant1", "mes@plant1"},
		{"mes@plant1", "n1.plant1"},
		{"mes@plant1", "plant1"},
		{"mes@plant1", "erp@plant1/1"},
		{"mes@plant1", "mes@plant12"},
		{"mes@plant1", "x"},
	} {
		if _, err := a.Connect(ConnectInfo{Username: c[0], ClientID: c[1]}); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("user %q, client id %q: got %v, want an error of kind invalid", c[0], c[1], err)
		}
	}
	const own = "colony/v1/plant1/node/n1/"
	publish := map[string]bool{
		own + "online": true, own + "heartbeat": true, own + "inventory": true, own + "status/web": true,
		"colony/v1/plant1/data/line/1": true, "line/1": true, "/x": true, "Colony/x": true,
		own + "desired": false, own + "status": false, own + "status/a/b": false, own + "online/x": false,
		"colony/v1/plant1/node/n2/online": false, "colony/v1/plant2/node/n1/online": false,
		"colony/v1/plant1/online": false, "colony/v1/plant1/up": false, "colony/v1/plant2/data/x": false,
		"colony/v1/plant1/data": false, "colony/v1/plant1/data/": false, "colony/v1/plant1/data/+": false, "colony/v1/plant1/in/x": false,
		"": false, "#": false, "$SYS/x": false, "colony/v2/plant1/node/n1/online": false, "colony": false, "colony/x": false, "line/+": false,
	}
	subscribe := map[string]bool{
		own + "desired": true, "colony/v1/plant1/data/#": true, "colony/v1/plant1/data/line/+": true, "colony/v1/plant1/data/x": true,
		"line/#": true, "line/+/x": true, "line": true, "/+": true,
		own + "#": false, own + "+": false, own + "online": false, "colony/v1/plant1/node/n2/desired": false,
		"colony/v1/plant1/node/+/desired": false, "colony/v1/+/data/#": false, "colony/v1/plant2/data/#": false,
		"colony/v1/plant1/#": false, "#": false, "+/+/+/data/#": false, "colony/v1/plant1/data": false, "colony/v1/plant1/+": false,
		"+/x": false, "+": false, "$SYS/#": false, "colony/#": false, "": false,
	}
	check(t, "publish", func(s string) bool { return a.MayPublish(id, s) }, publish)
	check(t, "subscribe", func(s string) bool { return a.MaySubscribe(id, s) }, subscribe)
	for topic := range publish { // a workload may what a node may, without the node's own topics
		if strings.HasPrefix(topic, own) {
			publish[topic] = false
		}
	}
	subscribe[own+"desired"] = false
	check(t, "workload publish", func(s string) bool { return a.MayPublish(w, s) }, publish)
	check(t, "workload subscribe", func(s string) bool { return a.MaySubscribe(w, s) }, subscribe)
}

func connects(t *testing.T, a control, user, client string, want Identity) Identity {
	t.Helper()
	id, err := a.Connect(ConnectInfo{Username: user, ClientID: client})
	if err != nil || id != want {
		t.Fatalf("connect as %q with client id %q: got %+v, %v", user, client, id, err)
	}
	return id
}

func TestCO(t *testing.T) {
	t.Parallel()
	a := CO{}
	id := connects(t, a, "plant1", "plant1", Identity{Name: "plant1", Site: "plant1"})
	app := connects(t, a, "mes@plant1", "mes@plant1/x", Identity{Name: "mes@plant1", Site: "plant1", Client: "mes"})
	all := connects(t, a, "bi@*", "", Identity{Name: "bi@*", Client: "bi"})
	if _, err := a.Connect(ConnectInfo{Username: "n1.plant1", ClientID: "n1.plant1"}); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("a node at the CO: got %v, want an error of kind denied", err)
	}
	if _, err := a.Connect(ConnectInfo{Username: "*", ClientID: "*"}); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("a site *: got %v, want an error of kind denied", err)
	}
	check(t, "publish", func(s string) bool { return a.MayPublish(id, s) }, map[string]bool{
		"colony/v1/plant1/online": true, "colony/v1/plant1/up": true, "colony/v1/plant1/down-ack": true,
		"colony/v1/plant1/desired": false, "colony/v1/plant1/ack": false, "colony/v1/plant1/down": false, "colony/v1/plant2/up": false,
		"colony/v1/plant1/node/n1/online": false, "colony/v1/plant1/up/x": false, "colony/v1/plant1/data/x": false, "colony/v1/plant1/in/x": false, "x": false,
	})
	check(t, "subscribe", func(s string) bool { return a.MaySubscribe(id, s) }, map[string]bool{
		"colony/v1/plant1/desired": true, "colony/v1/plant1/ack": true, "colony/v1/plant1/down": true,
		"colony/v1/plant1/up": false, "colony/v1/+/desired": false, "colony/v1/plant2/ack": false, "colony/v1/plant1/#": false,
		"colony/v1/plant1/+": false, "colony/v1/plant1/data/#": false, "x": false,
	})
	for _, who := range []Identity{app, all} {
		every := who.Site == ""
		check(t, who.Name+" publish", func(s string) bool { return a.MayPublish(who, s) }, map[string]bool{
			"colony/v1/plant1/in/x": true, "colony/v1/plant2/in/x/y": every, "colony/v1/plant1/in/": false, "colony/v1/plant1/in/+": false,
			"colony/v1/plant1/data/x": false, "colony/v1/plant1/up": false, "colony/v1/plant1/online": false, "x": false, "$SYS/x": false,
		})
		check(t, who.Name+" subscribe", func(s string) bool { return a.MaySubscribe(who, s) }, map[string]bool{
			"colony/v1/plant1/data/#": true, "colony/v1/plant1/data/+/x": true, "colony/v1/plant2/data/x": every, "colony/v1/+/data/#": every,
			"colony/v1/+/data/+/x": every, "#": false, "+/v1/plant1/data/#": false, "colony/v1/plant1/#": false, "colony/v1/+/+/x": false,
			"colony/v1/plant1/in/#": false, "colony/v1/plant1/ack": false, "colony/v1/plant1/desired": false, "x": false,
		})
	}
}

func check(t *testing.T, what string, may func(string) bool, want map[string]bool) {
	t.Helper()
	for name, ok := range want {
		if may(name) != ok {
			t.Errorf("%s %q: got %v, want %v", what, name, !ok, ok)
		}
	}
}
