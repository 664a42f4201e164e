package cli

import "testing"

// TestVersion checks that the command and the flag print the same.
func TestVersion(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"version", "--version"} {
		stdout, stderr, code := run(t, "http://127.0.0.1:1", arg)
		if stdout != "colony version test\n" {
			t.Errorf("colony %s prints %q, want %q", arg, stdout, "colony version test\n")
		}
		if stderr != "" || code != exitOK {
			t.Errorf("colony %s: exit code %d, standard error %q, want 0 and none", arg, code, stderr)
		}
	}
}
