package cli

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/registry"
)

// A vendor's file becomes a package that the lint accepts, and that is pushed once.
func TestAppInitLintPush(t *testing.T) {
	t.Parallel()
	h, err := registry.NewHandler(t.TempDir(), registry.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	vendor := filepath.Join(t.TempDir(), "Meter Reader")
	file := filepath.Join(vendor, "docker-compose.yml")
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder := filepath.Join(t.TempDir(), "meter")
	auth := filepath.Join(t.TempDir(), "auth.json")
	write(auth, "{}")
	colony := func(want int, says string, args ...string) string {
		t.Helper()
		stdout, stderr, code := run(t, s.URL, args...)
		if code != want || !strings.Contains(stdout+stderr, says) {
			t.Errorf("colony %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, want, says, stdout, stderr)
		}
		return stdout
	}

	colony(exitUsage, `required flag(s) "from"`, "app", "init")
	colony(exitUsage, "no such file", "app", "init", "--from", file)
	colony(exitUsage, "download the vendor's folder", "app", "init", "--from", "https://r.example/docker-compose.yml")
	colony(exitUsage, "want the Compose file in it", "app", "init", "--from", t.TempDir())
	write(file, "services:\n  web:\n    image: r.example/web:1\n    build: .\n    ports: ['${PORT:-8080}:80']\n")
	colony(exitOK, "(1 to change before it can be deployed)", "app", "init", "--from", file, folder)
	colony(exitConflict, "nothing is overwritten", "app", "init", "--from", file, folder)
	colony(exitUsage, "compose.yaml:4: services.web.build", "app", "lint", folder)
	colony(exitUsage, "nothing was pushed, because a CO would refuse it", "app", "push", "registry.colony/meter", folder, "--auth-file", auth)

	compose := filepath.Join(folder, "components/meter-reader/compose.yaml")
	write(compose, "services:\n  web:\n    image: r.example/web:1\n    ports: ['${PORT:-8080}:80']\n")
	colony(exitOK, "", "app", "lint", folder)
	first := colony(exitOK, "package    meter-reader", "app", "push", "registry.colony/meter", folder, "--auth-file", auth)
	if again := colony(exitOK, "", "app", "push", "registry.colony/meter:1.0.0", folder, "--auth-file", auth); again != first {
		t.Errorf("the same again:\n%s\nwant\n%s", again, first)
	}
	write(compose, "services:\n  web:\n    image: r.example/web:2\n    ports: ['${PORT:-8080}:80']\n")
	colony(exitConflict, "give this one another number", "app", "push", "registry.colony/meter", folder, "--auth-file", auth)
	colony(exitOK, "package", "app", "push", "--replace-tags", "registry.colony/meter", folder, "--auth-file", auth)
	colony(exitUsage, "the tag must be the same", "app", "push", "registry.colony/meter:2.0.0", folder, "--auth-file", auth)
	colony(exitUsage, "no margo.yaml (colony app init makes one)", "app", "push", "registry.colony/meter", vendor)
	colony(exitUsage, "want a folder", "app", "push", "registry.colony/meter", file)
	colony(exitUsage, "no such file", "app", "push", "registry.colony/meter", folder, "--auth-file", auth+"x")

	// A link out of the folder would publish a file of this machine.
	secret := filepath.Join(t.TempDir(), "id_ed25519")
	write(secret, "secret")
	description := filepath.Join(folder, "resources/description.md")
	if err := errors.Join(os.Remove(description), os.Symlink(secret, description)); err != nil {
		t.Fatal(err)
	}
	colony(exitUsage, "description.md", "app", "push", "--replace-tags", "registry.colony/meter", folder, "--auth-file", auth)
	if err := os.Remove(description); err != nil {
		t.Fatal(err)
	}
	write(description, "A meter\n")
	s.Close()
	colony(exitUnavailable, "push ", "app", "push", "registry.colony/meter", folder, "--auth-file", auth)
}

// A program gets the parameters and the findings.
func TestAppInitForPrograms(t *testing.T) {
	t.Parallel()
	vendor := t.TempDir()
	if err := os.WriteFile(filepath.Join(vendor, "compose.yaml"), []byte("name: web\nservices: {web: {image: 'i:1', build: ., user: '${U:?who}'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "web")
	stdout, stderr, code := run(t, "", "app", "init", "--from", filepath.Join(vendor, "compose.yaml"), folder, "-o", "json", "--organization", "o")
	var answer struct {
		App        string
		Files      []string
		Parameters []struct {
			Name     string
			Required bool
		}
		Findings []struct {
			File    string
			Line    int
			Warning bool
		}
	}
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if answer.App != "web" || len(answer.Files) != 3 || len(answer.Parameters) != 1 || !answer.Parameters[0].Required ||
		len(answer.Findings) != 1 || answer.Findings[0].File != "components/web/compose.yaml" || answer.Findings[0].Line != 2 || answer.Findings[0].Warning {
		t.Errorf("answer: %+v", answer)
	}
}
