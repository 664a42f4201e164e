package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A CI reads the exit code, and a person the lines.
func TestLint(t *testing.T) {
	t.Parallel()
	good, bad := t.TempDir(), t.TempDir()
	for dir, content := range map[string]string{
		good: "services: {web: {image: i, volumes: ['./data:/data']}}\n",
		bad:  "services:\n  web: {image: i, build: .}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]struct {
		code int
		says string
	}{
		good:              {exitOK, "compose.yaml:1: warning: services.web.volumes"},
		bad:               {exitUsage, "compose.yaml:2: services.web.build: images are not built on nodes"},
		good + " -o json": {exitOK, `"warning": true`},
		bad + " -o json":  {exitUsage, `"line": 2`},
		good + "/nothing": {exitUsage, ""},
		t.TempDir():       {exitUsage, ""},
	} {
		stdout, stderr, code := run(t, "", append([]string{"lint"}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(stdout, want.says) {
			t.Errorf("lint %s: exit code %d, want %d; %q, %s", args, code, want.code, stdout, stderr)
		}
	}
}
