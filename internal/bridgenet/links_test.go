package bridgenet

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// reaches opens a connection from one container to an address of another.
func (w *network) reaches(from, to, address string) error {
	var l net.Listener
	err := netns.Do(w.n.NetNS(to), func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	return netns.Do(w.n.NetNS(from), func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 3*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Containers reach each other on the bridges that both are on, and no others; what is left
// of the bridges after Forget is nothing.
func TestBridgesThatAreApart(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.229.0.0/16")
	one, two, inner := Link{Name: "main.one"}, Link{Name: "main.two"}, Link{Name: "main.inner", Internal: true}
	keys := map[string][]Link{"a": {one}, "b": {one, two}, "c": {two}, "d": {inner}, "e": {inner}}
	at := map[string]*Attachment{}
	t.Cleanup(func() {
		for name := range keys {
			if err := w.n.Detach(context.Background(), w.key+name); err != nil {
				t.Error(err)
			}
		}
		names, err := w.n.Names()
		if err != nil || len(names) != 3 {
			t.Errorf("networks %q %v, want three", names, err)
		}
		for _, name := range names {
			if err := w.n.Forget(name); err != nil || NetworkOf(name) != "shop" {
				t.Errorf("forget %s: %v", name, err)
			}
			rules, err := exec.Command("iptables", "--wait", "-S").Output()
			if err != nil || strings.Contains(string(rules), w.n.Bridge(name)) {
				t.Errorf("rules left of %s (%v):\n%s", name, err, rules)
			}
		}
	})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if err := w.n.Attach(t.Context(), w.key+name, Attachment{Network: "shop", Name: name, Links: keys[name]}); err != nil {
			t.Fatal(err)
		}
		var err error
		if at[name], err = w.n.Get(w.key + name); err != nil {
			t.Fatal(err)
		}
	}
	if len(at["b"].Links) != 2 || at["b"].IP != at["b"].Links[0].IP || at["b"].Links[1].IP == "" {
		t.Errorf("attachment %+v", at["b"])
	}
	for _, c := range []struct {
		from, to string
		link     int
		want     bool
	}{
		{"a", "b", 0, true},
		{"b", "c", 0, true},
		{"c", "b", 1, true},
		{"d", "e", 0, true},
		{"a", "c", 0, false},
		{"c", "a", 0, false},
		{"a", "d", 0, false},
		{"d", "a", 0, false},
	} {
		if err := w.reaches(w.key+c.from, w.key+c.to, at[c.to].Links[c.link].IP); (err == nil) != c.want {
			t.Errorf("%s to %s: %v, want %t", c.from, c.to, err, c.want)
		}
	}
}

// A port that the spec does not name is a free one. It stays over reboots while it is free.
func TestPortThatIsChosen(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.230.0.0/16")
	w.want.Ports = []protocol.Port{{Container: 80}, {Container: 53, Protocol: "udp", HostIP: "127.0.0.1"}}
	attach := func() []protocol.Port {
		if err := w.n.Attach(t.Context(), w.key, w.want); err != nil {
			t.Fatal(err)
		}
		a, err := w.n.Get(w.key)
		if err != nil || len(a.Ports) != 2 || a.Ports[0].Host == 0 || a.Ports[1].Host == 0 {
			t.Fatalf("ports %+v %v", a, err)
		}
		return a.Ports
	}
	first := attach()
	reboot := func() {
		if err := netns.Remove(w.n.NetNS(w.key)); err != nil {
			t.Fatal(err)
		}
	}
	reboot()
	if again := attach(); again[0] != first[0] || again[1] != first[1] {
		t.Errorf("ports %+v after a reboot, want %+v", again, first)
	}
	reboot()
	l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", first[0].Host))
	if err != nil {
		t.Fatal(err)
	}
	again := attach()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if again[0].Host == first[0].Host || again[1] != first[1] {
		t.Errorf("ports %+v, want another than %d, which a program has", again, first[0].Host)
	}
}
