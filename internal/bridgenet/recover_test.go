package bridgenet

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// TestRecover loses the record of a container that runs on the bridge of its network, on bridges
// that are apart, and on one with addresses of its own: what is made anew is what was lost,
// with the ports that were chosen, and nothing of the container changes.
func TestRecover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pool string
		want func(*Attachment)
	}{
		"one bridge": {"10.241.0.0/16", func(*Attachment) {}},
		"bridges that are apart": {"10.242.0.0/16", func(a *Attachment) {
			a.Links = []Link{{Name: "main.one"}, {Name: "main.inner", Internal: true}}
		}},
		"addresses of its own": {"10.243.0.0/16", func(a *Attachment) {
			a.Addressing = &protocol.Addressing{Subnet: "10.244.7.0/24", Address: "10.244.7.9"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, c.pool)
			w.want.Aliases = []string{"shop"}
			w.want.Ports = []protocol.Port{
				{Host: uint16(freeport.Everywhere(t)), Container: 80}, {Container: 80}, {Container: 80, HostIP: "127.0.0.1"}, {Container: 80, Protocol: "udp"},
			}
			c.want(&w.want)
			t.Cleanup(func() {
				for _, l := range w.want.Links {
					if err := w.n.Detach(t.Context(), w.key); err != nil {
						t.Error(err)
					}
					if err := w.n.Forget(bridgeID(w.want.Network, l)); err != nil {
						t.Error(err)
					}
				}
			})
			w.attach()
			was, err := w.n.Get(w.key)
			if err != nil {
				t.Fatal(err)
			}
			id := netns.ID(w.n.NetNS(w.key))
			links := w.run("nsenter", "--net="+w.n.NetNS(w.key), "ip", "address")
			for what, lose := range map[string]func() error{
				"damaged": func() error { return os.WriteFile(w.n.file(w.key).Path, []byte("rotten"), 0o600) },
				"missing": func() error { return os.Remove(w.n.file(w.key).Path) },
				"held":    func() error { return nil },
			} {
				if err := lose(); err != nil {
					t.Fatal(err)
				}
				made, err := w.n.Recover(t.Context(), w.key, w.want)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				is, err := w.n.Get(w.key)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(was, made) + cmp.Diff(was, is); diff != "" {
					t.Errorf("%s (-was +is):\n%s", what, diff)
				}
			}
			if now := w.run("nsenter", "--net="+w.n.NetNS(w.key), "ip", "address"); now != links || netns.ID(w.n.NetNS(w.key)) != id {
				t.Errorf("the container has now\n%s, had\n%s", now, links)
			}
			w.detach(t.Context())
		})
	}
}

// TestRecoverWithoutANamespace refuses to make up what is not there.
func TestRecoverWithoutANamespace(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.245.0.0/16")
	if a, err := w.n.Recover(t.Context(), w.key, w.want); a != nil || err == nil || !strings.Contains(err.Error(), "no network namespace") {
		t.Errorf("recovered %+v, %v", a, err)
	}
	if err := netns.Make(w.n.NetNS(w.key)); err != nil {
		t.Fatal(err)
	}
	if a, err := w.n.Recover(t.Context(), w.key, w.want); a != nil || err == nil || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("recovered %+v, %v", a, err)
	}
	if held, err := w.n.Held(); err != nil || !slices.Equal(held, []string{w.key}) {
		t.Errorf("held %q, %v", held, err)
	}
}
