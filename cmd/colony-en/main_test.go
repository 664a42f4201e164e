package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDependencies keeps the agent small: it has nothing of the other tiers.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("go list names %d packages only", len(deps))
	}
	for _, dep := range deps {
		for _, word := range []string{
			"jackc/pgx", "mochi-mqtt", "compose-spec", "go-containerregistry", "danielgtaylor/huma", "prometheus/client_golang", "spf13/",
			"colonyfleet/colony/co", "colonyfleet/colony/lo", "colonyfleet/colony/margo", "colonyfleet/colony/migrations",
		} {
			if strings.Contains(dep+"/", word+"/") || strings.HasSuffix(word, "/") && strings.Contains(dep, word) {
				t.Errorf("colony-en depends on %s", dep)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var out, diag bytes.Buffer
	if err := run(t.Context(), []string{"-version"}, &out, &diag); err != nil || out.String() != "colony-en dev\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestFaultyConfiguration(t *testing.T) {
	t.Parallel()
	good := "site: plant\nnode: n1\nstateDir: " + t.TempDir() + "\nlo:\n  mqtt: [\"tcp://127.0.0.1:1\"]\n"
	for _, c := range []struct{ name, content, want string }{
		{"unknown key", good + "hartbeat: 3s\n", "hartbeat"},
		{"unknown key inside", good + "engine:\n  sock: /x\n", "sock"},
		{"no names", "lo:\n  mqtt: [\"tcp://127.0.0.1:1\"]\n", "site name"},
		{"no lo", "site: plant\nnode: n1\n", "lo.mqtt"},
		{"bad node", strings.Replace(good, "n1", "N_1", 1), "node name"},
		{"bad url", strings.Replace(good, "tcp:", "gopher:", 1), "gopher"},
		{"bad pool", good + "engine:\n  pool: 10.0.0.0/30\n", "10.0.0.0/30"},
		{"bad duration", good + "heartbeat: -1s\n", "heartbeat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "en.yaml")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, diag bytes.Buffer
			err := run(t.Context(), []string{"-config", path}, &out, &diag)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error about %q", err, c.want)
			}
		})
	}
	if err := run(t.Context(), []string{"-config", "/does/not/exist"}, nil, nil); err == nil {
		t.Error("ran without a configuration")
	}
}

// TestDoctor runs the checks of a gateway, and refuses another command.
func TestDoctor(t *testing.T) {
	t.Parallel()
	var out, diag bytes.Buffer
	err := run(t.Context(), []string{"doctor", "-config", filepath.Join(t.TempDir(), "none.yaml"), "-json"}, &out, &diag)
	if err == nil || !strings.Contains(out.String(), `"status": "fail"`) {
		t.Errorf("doctor without a configuration: %v, %s; want an error and a report that says so", err, out.String())
	}
	if err := run(t.Context(), []string{"docter"}, &out, &diag); err == nil || !strings.Contains(err.Error(), "want doctor") {
		t.Errorf("a mistyped command: %v, want an error that names doctor", err)
	}
}
