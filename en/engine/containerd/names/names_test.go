package names

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/nameserver"
	"github.com/colonyfleet/colony/protocol"
)

// A file that could not be written is written by the next call, though the node says the
// same or nothing by then; and it keeps no other container from starting.
func TestFollowRepeatsWhatFailed(t *testing.T) {
	t.Parallel()
	node, dir := filepath.Join(t.TempDir(), "resolv.conf"), t.TempDir()
	n := &Names{
		o:      Options{Dir: dir, ResolvConf: []string{node}, Logger: slog.New(slog.DiscardHandler)},
		server: nameserver.New(nameserver.Options{Logger: slog.New(slog.DiscardHandler)}),
		settings: map[string]settings{
			"web": {Network: protocol.NetworkHost},
		},
	}
	defer n.Close()
	at := func(key string) string { return filepath.Join(dir, key, "resolv.conf") }
	says := func(text string) {
		t.Helper()
		if err := os.WriteFile(node, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const servers = "nameserver 192.0.2.1\n"
	for _, later := range []string{servers, ""} {
		if err := os.MkdirAll(at("web"), 0o755); err != nil { // no file can be written there
			t.Fatal(err)
		}
		says(servers)
		n.node.raw = nil
		if err := n.Follow(); err == nil {
			t.Fatal("a directory was written")
		}
		if err := os.MkdirAll(filepath.Join(dir, "other"), 0o755); err != nil {
			t.Fatal(err)
		}
		other := engine.Container{ID: engine.ID{Name: "other"}, Spec: protocol.Container{Network: protocol.NetworkHost}}
		if err := n.Write("other", other); err != nil {
			t.Errorf("another container: %v", err)
		}
		says(later)
		if err := os.Remove(at("web")); err != nil {
			t.Fatal(err)
		}
		if err := n.Follow(); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"web", "other"} {
			if got, err := os.ReadFile(at(key)); err != nil || string(got) != servers {
				t.Errorf("resolv.conf of %s: %q, %v; want %q", key, got, err, servers)
			}
		}
		if err := os.Remove(at("web")); err != nil {
			t.Fatal(err)
		}
	}
}

// No flipped bit of the settings of a container becomes other settings; what an agent wrote
// without a header is read.
func TestDamagedSettings(t *testing.T) {
	t.Parallel()
	n := &Names{
		o:      Options{Dir: t.TempDir(), ResolvConf: []string{"/dev/null"}, Logger: slog.New(slog.DiscardHandler)},
		server: nameserver.New(nameserver.Options{Logger: slog.New(slog.DiscardHandler)}), settings: map[string]settings{},
	}
	defer n.Close()
	if err := os.Mkdir(filepath.Join(n.o.Dir, "web"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := []string{"192.0.2.1", "192.0.2.2"}
	if err := n.Write("web", engine.Container{ID: engine.ID{Name: "web"}, Spec: protocol.Container{Network: protocol.NetworkHost, DNS: want}}); err != nil {
		t.Fatal(err)
	}
	path := n.path("web", settingsFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s settings
	if err := n.load("web", &s); err != nil || !slices.Equal(s.Servers, want) {
		t.Errorf("what was written is read as %+v, %v", s, err)
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var s settings
		if err := n.load("web", &s); err == nil {
			t.Errorf("bit %d flipped: read as %+v", bit, s)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("bit %d flipped: the file was not set aside", bit)
		}
	}
	plain, err := json.Marshal(settings{Network: protocol.NetworkHost, Servers: want})
	if err == nil {
		err = os.WriteFile(path, plain, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s = settings{}
	if err := n.load("web", &s); err != nil || !slices.Equal(s.Servers, want) {
		t.Errorf("without a header it is read as %+v, %v", s, err)
	}
	// The file beside it has no header either, and is no settings.
	id, err := json.Marshal(engine.ID{Deployment: "web", Component: "web", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range [][]byte{id, append(plain, plain...), []byte("web\n")} {
		if err := os.WriteFile(path, other, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.load("web", &s); err == nil {
			t.Errorf("%q is read as %+v", other, s)
		}
	}
}
