package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asCommand has the test binary be the command.
const asCommand = "COLONY_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The log of the Compose loader stays out of the output: a file with what it logs has the
// warnings of Colony and nothing beside them.
func TestLintWritesNoForeignLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"compose.yaml": "services:\n  web:\n    image: i\n    privileged: yes\n    env_file: [app.env]\n    command: 'run ${A:-$B}'\n",
		"app.env":      "X=$Y\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "lint", dir)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, stdout.String(), stderr.String())
	}
	for _, want := range []string{"compose.yaml:6: warning: services.web.command: B is empty", "compose.yaml:5: warning: services.web.env_file: app.env: Y is empty"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("output %q, want %q", stdout.String(), want)
		}
	}
	if strings.Contains(stdout.String()+stderr.String(), "level=") {
		t.Errorf("the log of a library: %s%s", stdout.String(), stderr.String())
	}
}
