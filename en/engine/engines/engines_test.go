package engines_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDefaultIsValid(t *testing.T) {
	t.Parallel()
	if err := engines.Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestFaultsAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*engines.Options)
		want   string
	}{
		"unknown engine": {func(o *engines.Options) { o.Name = "podman" }, `name "podman": want containerd`},
		"no engine":      {func(o *engines.Options) { o.Name = "" }, `name "": want containerd`},
		"no address":     {func(o *engines.Options) { o.Address = "" }, "containerd address: want the path of its socket"},
		"namespace":      {func(o *engines.Options) { o.Namespace = "a b" }, `containerd namespace "a b"`},
		"state":          {func(o *engines.Options) { o.StateDir = "x" }, `engine state directory "x": want an absolute path`},
		"pool":           {func(o *engines.Options) { o.Pool = "10.0.0.0/28" }, "10.0.0.0/28"},
		"mirror":         {func(o *engines.Options) { o.Mirror = "ftp://x" }, "ftp://x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := engines.Default()
			c.change(&o)
			err := o.Validate()
			if err == nil || protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate: %v, want a fault of kind invalid with %s", err, c.want)
			}
			if e, err := engines.Open(o, slog.New(slog.DiscardHandler)); err == nil || e != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v, %v; want no engine and %s", e, err, c.want)
			}
		})
	}
}

// The key of before is the address of the daemon.
func TestFormerKeyOfTheAddress(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "en.yaml")
	if err := os.WriteFile(path, []byte("containerd: /nowhere/of-before.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := engines.Default()
	if err := configfile.Load(path, &o); err != nil {
		t.Fatal(err)
	}
	o.StateDir = t.TempDir()
	e, err := engines.Open(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Info(t.Context()); err == nil || !strings.Contains(err.Error(), "/nowhere/of-before.sock") {
		t.Errorf("info: %v, want it to ask the daemon of the former key", err)
	}
}

// TestOpenNeedsNoDaemon opens an engine while its daemon is away.
func TestOpenNeedsNoDaemon(t *testing.T) {
	t.Parallel()
	o := engines.Default()
	o.StateDir = t.TempDir()
	o.Address = filepath.Join(o.StateDir, "no.sock")
	e, err := engines.Open(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
