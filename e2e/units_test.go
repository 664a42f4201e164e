package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnits has systemd check the units, with the built programs in the place of the
// installed ones, and each start its own role.
func TestUnits(t *testing.T) {
	paths, err := filepath.Glob("../packaging/systemd/*.service")
	if err != nil || len(paths) != 4 {
		t.Fatalf("units %q, %v; want those of up, co, lo and en", paths, err)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("%v: install systemd, which checks its units: scripts/setup --with-test-peers", err)
	}
	starts := map[string]string{
		"up": "/usr/bin/colony up --state-dir /var/lib/colony $COLONY_UP_ARGS",
		"co": "/usr/bin/colony co --config /etc/colony/co.yaml", "lo": "/usr/bin/colony lo --config /etc/colony/lo.yaml", "en": "/usr/bin/colony-en -config /etc/colony/en.yaml",
	}
	dir := t.TempDir()
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		role := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "colony-"), ".service")
		if want := "\nExecStart=" + starts[role] + "\n"; !strings.Contains(string(b), want) {
			t.Errorf("%s does not have %q", path, want)
		}
		for _, line := range []string{"\nRestart=always\n", "\nStartLimitIntervalSec=0\n"} {
			if !strings.Contains(string(b), line) {
				t.Errorf("%s does not have %q: a unit that is given up heals nothing", path, line)
			}
		}
		if container := role == "up" || role == "en"; container != strings.Contains(string(b), "\nKillMode=process\n") {
			t.Errorf("%s: KillMode=process is %t; it keeps containers over a kill", path, !container)
		}
		copied := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(b), "/usr/bin/", bin("")+"/")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", copied).CombinedOutput(); err != nil || strings.Contains(string(out), copied) {
			t.Errorf("systemd-analyze verify %s: %v\n%s", path, err, out)
		}
	}
}
