package lo

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestIrregularFiles puts something else in the place of each file that an LO has stored: it starts, waits for nothing, and
// says which it is.
func TestIrregularFiles(t *testing.T) {
	t.Parallel()
	c, from := newFakeCO(t), t.TempDir()
	c.want(site1(1, "1", protocol.Policy{}))
	l := startLO(t, localOptions(t, c, from, "127.0.0.1:0"))
	a := startAgent(t, "gw-1", l.MQTTAddr())
	a.next("with the deployment", func(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 })
	a.stop()
	stopLO(t, l)
	var files []string
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(path, from+"/"))
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of the LO: %q, %v", files, err)
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
				l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
				defer stopLO(t, l)
				if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) != 1 {
					t.Errorf("aside are %q, %v", aside, err)
				}
				if named := kinds(t, l)[protocol.StateDamaged] > 0; named == (strings.HasPrefix(name, "journal/") && name != "journal/trim") { // the journal says what it has lost
					t.Errorf("an event of damage: %v", named)
				}
			})
		}
	}
}
