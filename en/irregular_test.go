package en_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestIrregularFiles puts something else in the place of each file that an agent has stored: it starts, waits for nothing, and
// sets it aside.
func TestIrregularFiles(t *testing.T) {
	t.Parallel()
	s, from, engine := newSite(t), t.TempDir(), memory.New(memory.Options{})
	s.want(t, 1, assignment())
	e := start(t, s.options(t, from, engine))
	wait(t, s, topic.Status, func(m protocol.DeploymentStatus) bool { return m.State == lifecycle.Installed })
	stop(t, e)
	var files []string
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(path, from+"/"))
		}
		return err
	})
	if err != nil || len(files) < 3 {
		t.Fatalf("the files of the agent: %q, %v", files, err)
	}
	for _, name := range files {
		for what, put := range map[string]func(path string) error{
			"a FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
			"a directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o700) },
		} {
			t.Run(what+" for "+name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, name)
				if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := put(path); err != nil {
					t.Fatal(err)
				}
				e := start(t, s.options(t, dir, engine))
				defer stop(t, e)
				if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) != 1 {
					t.Errorf("aside are %q, %v", aside, err)
				}
			})
		}
	}
}
