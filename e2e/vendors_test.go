package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/freeport"
)

// copied is the beginning of the images that skopeo copies, in the place of Docker Hub.
const copied = "hub/"

// pushStandIns gives the images of the vendors stand-ins in the CO's registry: programs that
// wait, and for PostgreSQL one whose pg_isready says yes.
func pushStandIns(t *testing.T, c *colony) {
	t.Helper()
	program := archive.File{Mode: 0o755, Content: containerdtest.Toolbox(t)}
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": c.http}})
	defer reg.Close()
	for _, name := range []string{copied + "nodered/node-red:4.0", "influxdb:1.8-alpine", "telegraf:1.29-alpine", "grafana/grafana:10.4.1", "postgres:16", "n8nio/n8n:1.80"} {
		_, err := reg.PushImage(context.Background(), "registry.colony/"+name, image.Image{
			Architecture: runtime.GOARCH, Files: map[string]archive.File{"/toolbox": program, "/bin/sh": program},
			Entrypoint: []string{"/toolbox"}, Command: []string{"wait"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A step is a command of the documentation, and the lines that it shows.
type step struct {
	line string
	want []string
}

// steps returns the commands of the section of a document that begins with title.
func steps(t *testing.T, doc, title string) []step {
	t.Helper()
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), title)
	if !ok {
		t.Fatalf("%s has no section %q", doc, title)
	}
	var list []step
	for i, block := range strings.Split(section, "```") {
		if i%2 == 0 {
			continue
		}
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				list = append(list, step{line: command})
			} else if line != "" && line != "..." && len(list) > 0 {
				last := &list[len(list)-1]
				last.want = append(last.want, line)
			}
		}
	}
	return list
}

var (
	spaces   = regexp.MustCompile(`\s+`)
	changing = regexp.MustCompile(`sha256:[0-9a-f]+…?|\b\d+/\d+\b|\b\d+[smh]\b`)
)

// pattern matches a line that the documentation shows, whatever digests, times, counts and
// widths of columns are.
func pattern(line string) *regexp.Regexp {
	var out strings.Builder
	at := 0
	line = strings.TrimSpace(spaces.ReplaceAllString(line, " "))
	for _, m := range changing.FindAllStringIndex(line, -1) {
		out.WriteString(regexp.QuoteMeta(line[at:m[0]]) + `\S+`)
		at = m[1]
	}
	return regexp.MustCompile("^" + out.String() + regexp.QuoteMeta(line[at:]) + "$")
}

// Three vendors' files come from download to healthy by the commands that the documentation
// shows, and these show what it says.
func TestVendorsFiles(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Fatal("skopeo is missing: install it with scripts/setup --with-test-peers")
	}
	c := newColony(t)
	c.up()
	pushStandIns(t, c)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/vendors")); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("--site local", "--site "+site, "local/", site+"/", "local ", site+" ")
	var pairs []string
	for i, port := range freeport.Ports(t, 3) { // in the place of those that may be taken here
		pairs = append(pairs, []string{"21880", "23000", "25678"}[i], fmt.Sprint(port))
	}
	ports := strings.NewReplacer(pairs...)
	ran := 0
	for _, s := range steps(t, "../docs/packaging.md", "## Three vendors' files") {
		if strings.HasPrefix(s.line, "skopeo ") {
			s.line = strings.NewReplacer("docker://docker.io/", "docker://"+c.http+"/"+copied, "docker://127.0.0.1:8080/", "docker://"+c.http+"/").Replace(s.line) + " --src-tls-verify=false"
		}
		ran++
		out, err := vendorCommand(t, c, dir, ports.Replace(here.Replace(s.line)))
		refused := len(s.want) > 0 && strings.HasPrefix(s.want[0], "colony: ")
		if (err != nil) != refused {
			t.Fatalf("$ %s\n%s%v", s.line, out, err)
		}
		lines := strings.Split(out, "\n")
		for _, want := range s.want {
			p := pattern(ports.Replace(here.Replace(want)))
			found := false
			for i, line := range lines {
				if p.MatchString(strings.TrimSpace(spaces.ReplaceAllString(line, " "))) {
					lines, found = lines[i+1:], true
					break
				}
			}
			if !found {
				t.Errorf("$ %s\nthe documentation shows\n%s\nand it says\n%s", s.line, want, out)
			}
		}
	}
	if ran < 16 {
		t.Errorf("%d commands, want those of three vendors", ran)
	}
}

// vendorCommand runs a command line in dir as its user would.
func vendorCommand(t *testing.T, c *colony, dir, line string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "COLONY_URL=http://"+c.http, "PATH="+filepath.Dir(bin("colony"))+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
