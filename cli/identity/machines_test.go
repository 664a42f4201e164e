package identity_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/cli/command"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
)

// run runs "colony ca" for a CO in dir, and returns what it prints.
func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	config := filepath.Join(dir, "co.yaml")
	if err := os.WriteFile(config, []byte("stateDir: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := identitycmd.CA(&command.Env{Format: "json", Out: &out, Err: &out})
	cmd.SetArgs(append(args, "--config", config))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// fingerprint is that of the root in an answer.
func fingerprint(t *testing.T, out string, err error) string {
	t.Helper()
	var answer struct{ Fingerprint string }
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil || len(answer.Fingerprint) != 64 {
		t.Fatalf("answer %q: %v", out, err)
	}
	return answer.Fingerprint
}

// TestRoot makes a root, saves it, brings it to another CO, and does not bring it over that of
// a third.
func TestRoot(t *testing.T) {
	t.Parallel()
	first, second, third := t.TempDir(), t.TempDir(), t.TempDir()
	saved := filepath.Join(t.TempDir(), "root.pem")
	if _, err := run(t, first, "export", saved); err == nil || !strings.Contains(err.Error(), "colony ca init") {
		t.Errorf("export of nothing: %v", err)
	}
	out, err := run(t, first, "init")
	root := fingerprint(t, out, err)
	if out, err = run(t, first, "init"); fingerprint(t, out, err) != root {
		t.Error("a second init made another root")
	}
	if _, err := run(t, first, "export", saved); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(saved); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the saved root has mode %v, %v", info.Mode(), err)
	}
	if _, err := run(t, first, "export", saved); err == nil {
		t.Error("export replaced a file")
	}
	if out, err = run(t, second, "import", saved); fingerprint(t, out, err) != root {
		t.Error("the second CO has another root")
	}
	if _, err := run(t, third, "init"); err != nil {
		t.Fatal(err)
	}
	for _, bring := range []string{"import", "adopt"} {
		if _, err := run(t, third, bring, saved); err == nil || !strings.Contains(err.Error(), "locked out") {
			t.Errorf("%s over another root: %v", bring, err)
		}
	}
	fourth := t.TempDir()
	for range 2 { // the same key has the same fingerprint
		if out, err = run(t, fourth, "adopt", saved); fingerprint(t, out, err) != root {
			t.Error("adopted is another root")
		}
	}
}
