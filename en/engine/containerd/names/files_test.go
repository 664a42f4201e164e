package names

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/protocol"
)

// Several containers of a component may have one name, of which DNS gives all addresses; on
// networks that are apart a container sees those that it shares one with, at the address
// there.
func TestView(t *testing.T) {
	t.Parallel()
	one, two := "main.one", "main.two"
	at := func(name, group, ip string, aliases []string, links ...bridgenet.Link) *bridgenet.Attachment {
		return &bridgenet.Attachment{Network: "shop", Name: name, Hostname: name, Group: group, IP: ip, Aliases: aliases, Links: links}
	}
	attached := map[string]*bridgenet.Attachment{
		"a":    at("web", "main", "10.0.0.1", []string{"all"}),
		"b":    at("web-2", "main", "10.0.0.2", []string{"web", "all"}),
		"c":    at("asker", "main", "10.0.0.3", nil),
		"d":    at("web", "side", "10.0.0.4", []string{"all", "other"}),
		"mid":  at("mid", "apart", "10.0.1.1", nil, bridgenet.Link{Name: one, IP: "10.0.1.1"}, bridgenet.Link{Name: two, IP: "10.0.2.1"}),
		"back": at("back", "apart", "10.0.2.2", nil, bridgenet.Link{Name: two, IP: "10.0.2.2"}),
		"edge": at("edge", "apart", "10.0.1.3", nil, bridgenet.Link{Name: one, IP: "10.0.1.3"}),
	}
	list := members("shop", attached)
	ip := netip.MustParseAddr
	for key, want := range map[string]map[string][]netip.Addr{
		"c": {
			"web": {ip("10.0.0.1"), ip("10.0.0.2")}, "all": {ip("10.0.0.1"), ip("10.0.0.2")}, "web-2": {ip("10.0.0.2")}, "asker": {ip("10.0.0.3")},
			"web.main": {ip("10.0.0.1")}, "web-2.main": {ip("10.0.0.2")}, "web.side": {ip("10.0.0.4")}, "other": {ip("10.0.0.4")},
		},
		"back": {"back": {ip("10.0.2.2")}, "mid": {ip("10.0.2.1")}, "mid.apart": {ip("10.0.2.1")}},
		"mid": {
			"mid": {ip("10.0.1.1")}, "back": {ip("10.0.2.2")}, "back.apart": {ip("10.0.2.2")}, "edge": {ip("10.0.1.3")}, "edge.apart": {ip("10.0.1.3")},
		},
	} {
		if diff := cmp.Diff(want, zoneOf(view(key, list), settings{}).Names, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("names of %s (-want +got):\n%s", key, diff)
		}
	}
}

// Nothing is written for a container with a name or an address that would be several.
func TestWriteRefusesNamesThatAreSeveral(t *testing.T) {
	t.Parallel()
	for _, spec := range []protocol.Container{
		{Hostname: "a b"},
		{Aliases: []string{"ok", "x\n1.2.3.4 evil"}},
		{ExtraHosts: []string{"x y=10.0.0.1"}},
		{ExtraHosts: []string{"x=10.0.0.1\n1.2.3.4 evil"}},
		{ExtraHosts: []string{"x=fe80::1%x\n1.2.3.4 evil"}},
		{DNS: []string{"fe80::1%x\nsearch evil"}},
		{DNSSearch: []string{"a\nnameserver 1.2.3.4"}},
		{DNSOptions: []string{"a b"}},
	} {
		n := &Names{o: Options{Dir: t.TempDir()}}
		err := n.Write("web", engine.Container{ID: engine.ID{Name: "web"}, Spec: spec})
		if engine.CodeOf(err) != protocol.CreateFailed {
			t.Errorf("%+v: %v, want it refused", spec, err)
		}
		if _, err := os.Stat(filepath.Join(n.o.Dir, "web")); err == nil {
			t.Errorf("%+v: files were written", spec)
		}
	}
	good := protocol.Container{Hostname: "a.b", Aliases: []string{"x_1"}, ExtraHosts: []string{"h=host-gateway", "six=::1"}, DNS: []string{"10.0.0.1"}, DNSSearch: []string{"."}}
	if err := check(engine.Container{ID: engine.ID{Name: "web"}, Spec: good}); err != nil {
		t.Error(err)
	}
}
