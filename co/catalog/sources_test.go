package catalog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// TestNothingIsAllowedByDefault tries all kinds of sources on a CO that names none.
func TestNothingIsAllowedByDefault(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.opts.Sources = Sources{}
	dir := write(t, map[string]string{"margo.yaml": description})
	for _, source := range []string{
		"/etc/shadow", "/etc/no-such-file", "/", dir, dir + "/margo.yaml", dir + "#main", "https://host/apps.git", "http://127.0.0.1:5432/x", "git@host:apps.git",
		"ssh://127.0.0.1:22/x", "git://host/x", "oci://127.0.0.1:5432/x:1", "oci://registry.colony/x",
	} {
		_, err := s.Import(t.Context(), source)
		if protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), "import.") && !strings.Contains(err.Error(), "import.roots") {
			t.Errorf("Import(%s) = %v, want Denied with the key that allows it", source, err)
		}
	}
	for _, source := range []string{"ext::sh -c id", "file:///etc", "ftp://host/x", "etc/passwd", "../x", "", "-x", "fd::3", "https:///x", "https://host/a/../b"} {
		if _, err := s.Import(t.Context(), source); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("Import(%s) = %v, want Invalid", source, err)
		}
	}
	if len(s.exported) != 0 || len(s.registry.asked) != 0 {
		t.Errorf("git was asked for %v, registries for %v", s.exported, s.registry.asked)
	}
}

// TestSameAnswerOutsideOfRoots checks that an answer does not show what there is on the
// machine.
func TestSameAnswerOutsideOfRoots(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	said := map[string]bool{}
	for _, source := range []string{"/etc/passwd", "/etc/no-such-file", "/etc", "/root/.ssh", s.opts.Sources.Roots[1] + "/../../etc/passwd"} {
		_, err := s.Import(t.Context(), source)
		if err == nil {
			t.Fatalf("%s was imported", source)
		}
		said[strings.Replace(err.Error(), source, "SOURCE", 1)] = true
	}
	if len(said) != 1 {
		t.Errorf("the answers differ: %v", said)
	}
}

const secret = "root:$6$secret:19000:0:99999:7:::\nkey: hunter2\n"

// TestLinksOutOfARoot attacks an import root from inside.
func TestLinksOutOfARoot(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	outside, dir := filepath.Join(t.TempDir(), "outside"), t.TempDir()
	s.opts.Sources.Roots = []string{dir}
	for _, p := range []string{outside, filepath.Join(dir, "a"), filepath.Join(dir, "fifo"), filepath.Join(dir, "repo")} {
		if err := os.Mkdir(p, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "margo.yaml"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"folder": outside, "a/margo.yaml": filepath.Join(outside, "margo.yaml"), "up": "..", "file.yaml": filepath.Join(outside, "margo.yaml"),
		"repo/.git": outside, "device.yaml": "/dev/zero",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "fifo", "margo.yaml"), 0o600), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"folder", "folder/margo.yaml", "a", "up", "file.yaml", "fifo", "pipe", "device.yaml", "repo#main", "plain", "."} {
		done := make(chan string, 1)
		go func() {
			results, err := s.Import(context.WithoutCancel(t.Context()), dir+"/"+source)
			said := ""
			if err != nil {
				said = err.Error()
			}
			for _, r := range results {
				if r.Outcome != Refused {
					said += " secret: it was " + string(r.Outcome)
				}
				said += problems(r)
			}
			done <- said
		}()
		select {
		case said := <-done:
			if said == "" || strings.Contains(said, "secret") || strings.Contains(said, "hunter2") || strings.Contains(said, outside) {
				t.Errorf("%s: %q", source, said)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the import hangs", source)
		}
	}
	if len(s.exported) != 0 {
		t.Errorf("git was led to %v", s.exported)
	}
}

// TestRepositoryOfAnother attacks by a repository in a root that refers to one outside.
func TestRepositoryOfAnother(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"commondir", "objects/info/alternates"} {
		s := newCatalog(t)
		dir := write(t, map[string]string{"HEAD": "ref: refs/heads/main\n", "config": "", "refs/x": "", "objects/info/packs": "", name: "/private.git\n"})
		if _, err := s.Import(t.Context(), dir); protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want Denied", name, err)
		}
	}
}

func TestRemotes(t *testing.T) {
	t.Parallel()
	s := Sources{Remotes: []Remote{
		{URL: "https://git.example/apps"},
		{URL: "ssh://git@git.example/plant/", SSHCommand: "ssh -i plant"},
		{URL: "https://other.example:8443", CredentialFile: "/c"},
	}}
	for remote, want := range map[string]Remote{
		"https://git.example/apps":              {},
		"https://git.example/apps.git":          {},
		"https://GIT.example/apps/deep/one.git": {},
		"https://ann:pw@git.example/apps/x":     {},
		"git@git.example:plant/web.git":         {SSHCommand: "ssh -i plant"},
		"ssh://git.example/plant/web":           {SSHCommand: "ssh -i plant"},
		"https://other.example:8443/any/where":  {CredentialFile: "/c"},
	} {
		want.URL = remote
		if got, err := s.remote(remote); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", remote, got, err, want)
		}
	}
	for _, remote := range []string{
		"http://git.example/apps", "https://git.example/application", "https://git.example/", "https://git.example/apps/../secret", "https://git.example/apps/%2e%2e/secret",
		"https://git.example:444/apps", "https://git.example.evil/apps", "https://git.example@evil/apps", "https://evil/git.example/apps", "https://other.example/x",
		"git@git.example:other/web.git", "git@git.example:plant/../other", "ssh://git.example:2222/plant/web",
	} {
		if _, err := s.remote(remote); err == nil {
			t.Errorf("%s is allowed", remote)
		}
	}
}

// TestRegistriesOfComponents checks that a package can make the CO ask no registry but
// those that are named, neither now nor when it is deployed.
func TestRegistriesOfComponents(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	doc := strings.Replace(description, "oci://registry.colony/hello", "oci://127.0.0.1:5432/hello", 1)
	r := s.do(t, write(t, map[string]string{"margo.yaml": doc, "resources/description.md": "x"}))[0]
	if len(s.registry.asked) != 0 || r.Outcome != Refused || !strings.Contains(problems(r), "deploymentProfiles[0].components[0].properties.repository: registry 127.0.0.1:5432 may not be read: name it in import.registries") {
		t.Errorf("asked for %v, outcome %s, problems %q", s.registry.asked, r.Outcome, problems(r))
	}
	digest := "@" + string(protocol.DigestOf(nil))
	for image, host := range map[string]string{
		"registry.colony/web:1": "", "": "", "169.254.169.254/web" + digest: "",
		"169.254.169.254/web:1": "169.254.169.254", "localhost/web": "localhost", "web:1": "docker.io", "user/web": "docker.io",
		"Evil/web": "Evil", "r.example:5000/a/b:c": "r.example:5000",
	} {
		s := newCatalog(t)
		s.registry.archives["oci://registry.colony/hello:1.0.0"] = []byte("image " + image)
		r := s.do(t, write(t, map[string]string{"margo.yaml": description, "resources/description.md": "x"}))[0]
		if got := problems(r); (got == "") != (host == "") || host != "" && !strings.Contains(got, "services.app.image: "+image+": registry "+host+" may not be read") {
			t.Errorf("image %q: problems %q, want host %q", image, got, host)
		}
	}
	for image, want := range map[string]string{
		"of a parameter registry.colony/web:1": "", "of a parameter ghcr.io/web:1": "line 3: services.app.image: ghcr.io/web:1: registry ghcr.io may not be read: name it in import.registries of the CO's configuration, or use one that is named there; so it is with the defaults",
		"registry.colony/absent:1": "line 3: services.app.image: find image registry.colony/absent:1: the registry does not have it: it must be there before the application is deployed", "registry.colony/absent" + digest: "find image registry.colony/absent@",
		"northstarida.azurecr.io/absent:1": "",
	} {
		s := newCatalog(t)
		s.registry.archives["oci://registry.colony/hello:1.0.0"] = []byte("image " + image)
		r := s.do(t, write(t, map[string]string{"margo.yaml": description, "resources/description.md": "x"}))[0]
		if got := strings.Join(r.Warnings, "\n"); r.Outcome != Imported || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("image %q: %s, problems %q, warnings %q, want %q", image, r.Outcome, problems(r), got, want)
		}
	}
	s.opts.Sources.Registries = []string{"docker.io"}
	if err := s.opts.Sources.Registry("index.docker.io"); err != nil {
		t.Errorf("Docker Hub by its other name: %v", err)
	}
}

func TestImportsAreBounded(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	dir := t.TempDir()
	deep := dir
	for range maxDepth + 1 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), dir); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "deeper") {
		t.Errorf("deep folders: %v", err)
	}
	large := write(t, map[string]string{"margo.yaml": description + strings.Repeat("#", maxDescription)})
	if got := problems(s.do(t, large)[0]); !strings.Contains(got, "larger than") {
		t.Errorf("large description: %q", got)
	}
	// An import that does not end is given up, and does not hold up the others for ever.
	s.opts.Timeout = 50 * time.Millisecond
	s.opts.Export = func(ctx context.Context, _ Remote, _, _ string) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	if _, err := s.Import(t.Context(), "https://host/apps"); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("a hanging import: %v", err)
	}
	s.turns <- struct{}{}
	s.turns <- struct{}{}
	if _, err := s.Import(t.Context(), "https://host/apps"); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("an import past the limit: %v", err)
	}
}
