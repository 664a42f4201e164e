package bridgenet

import (
	"context"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// Containers get the addresses that are given, the others get none of these; a network that a
// container is on keeps its addresses, and one without another container gets those that are wanted
// now.
func TestAddresses(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.230.0.0/16")
	const network = "addressed"
	given := func(address string) *protocol.Addressing {
		return &protocol.Addressing{Subnet: "10.231.7.0/24", Address: address, From: "10.231.7.4", To: "10.231.7.254"}
	}
	detach := func(name string) {
		if err := w.n.Detach(context.Background(), w.key+name); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		for _, name := range []string{"a", "b", "c"} {
			detach(name)
		}
		if err := w.n.Forget(network); err != nil {
			t.Error(err)
		}
	})
	attach := func(name string, wanted *protocol.Addressing) string {
		t.Helper()
		if err := w.n.Attach(t.Context(), w.key+name, Attachment{Network: network, Name: name, Addressing: wanted}); err != nil {
			t.Fatal(err)
		}
		a, err := w.n.Get(w.key + name)
		if err != nil {
			t.Fatal(err)
		}
		return a.IP
	}
	first, second := attach("a", nil), attach("b", nil)
	detach("b")
	if got := attach("b", given("10.231.7.3")); got == "10.231.7.3" || got == first {
		t.Errorf("b has %s, want one beside %s: a is on the network", got, first)
	}
	detach("a")
	detach("b")
	for _, c := range []struct{ name, address, want string }{{"a", "10.231.7.3", "10.231.7.3"}, {"b", "", "10.231.7.4"}, {"c", "10.231.7.2", "10.231.7.2"}} {
		if got := attach(c.name, given(c.address)); got != c.want {
			t.Errorf("%s has %s, want %s; they had %s and %s before", c.name, got, c.want, first, second)
		}
	}
	if a, err := w.n.Get(w.key + "a"); err != nil || a.Gateway != "10.231.7.1" {
		t.Errorf("the gateway is %s (%v)", a.Gateway, err)
	}
}
