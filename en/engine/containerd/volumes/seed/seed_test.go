package seed

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

// content returns the files of a volume.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestVersionsBringTheirFiles(t *testing.T) {
	t.Parallel()
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "record")
	if err := os.Chown(dir, 1000, 1001); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name   string
		files  []protocol.File
		change func()
		want   map[string]string
	}{
		{"first", []protocol.File{{Path: "a", Content: []byte("a1")}, {Path: "x/y/b", Content: []byte("b1")}, {Path: "c", Content: []byte("c1")}}, func() {}, map[string]string{"a": "a1", "x/y/b": "b1", "c": "c1"}},
		{"a file is changed, one removed, one added", []protocol.File{{Path: "a", Content: []byte("a2")}, {Path: "x/y/b", Content: []byte("b2")}, {Path: "c", Content: []byte("c2")}}, func() {
			write("a", "mine")
			write("own", "own")
			if err := os.Remove(filepath.Join(dir, "c")); err != nil {
				t.Fatal(err)
			}
		}, map[string]string{"a": "mine", "x/y/b": "b2", "own": "own"}},
		{"the same again", []protocol.File{{Path: "a", Content: []byte("a2")}, {Path: "x/y/b", Content: []byte("b2")}, {Path: "c", Content: []byte("c2")}}, func() {}, map[string]string{"a": "mine", "x/y/b": "b2", "own": "own"}},
		{"two are retired, one comes", []protocol.File{{Path: "c", Content: []byte("c2")}, {Path: "own", Content: []byte("theirs")}, {Path: "d", Content: nil}}, func() {}, map[string]string{"a": "mine", "own": "own", "d": ""}},
		{"the record is damaged", []protocol.File{{Path: "d", Content: []byte("d2")}, {Path: "e", Content: []byte("e")}}, func() {
			if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, map[string]string{"a": "mine", "own": "own", "d": "d2", "e": "e"}},
		{"a file is emptied", []protocol.File{{Path: "d", Content: []byte("d3")}, {Path: "e", Content: []byte("e")}}, func() {
			write("d", "")
		}, map[string]string{"a": "mine", "own": "own", "d": "", "e": "e"}},
	} {
		step.change()
		if err := Apply(dir, record, step.files); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, content(t, dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	for _, name := range []string{"x", "x/y/b"} {
		if uid, gid, err := owner(filepath.Join(dir, name)); fmt.Sprint(uid, gid, err) != "1000 1001 <nil>" && name == "x" {
			t.Errorf("%s belongs to %d:%d (%v)", name, uid, gid, err)
		}
	}
}

// A link that a container put into its volume leads to no file of the node.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "etc")); err != nil {
		t.Fatal(err)
	}
	if err := Apply(dir, filepath.Join(t.TempDir(), "record"), []protocol.File{{Path: "etc/passwd", Content: []byte("x")}}); err == nil {
		t.Log("the file was left out")
	}
	if left := content(t, outside); len(left) != 0 {
		t.Errorf("written outside of the volume: %v", left)
	}
}

// A volume of an earlier agent has empty files where others were mounted onto it. They do not count
// as content.
func TestMountPointsAreFilled(t *testing.T) {
	t.Parallel()
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "record")
	if err := os.Mkdir(filepath.Join(dir, "conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"conf/a", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Apply(dir, record, []protocol.File{{Path: "conf/a", Content: []byte("a1")}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"conf/a": "a1", "other": ""}, content(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A version says which of its files can be executed. One that an earlier agent delivered
// without that gets it; a mode that was changed in the volume stays.
func TestFilesKeepTheirExecuteBit(t *testing.T) {
	t.Parallel()
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "record")
	run := filepath.Join(dir, "run.sh")
	for _, step := range []struct {
		name   string
		file   protocol.File
		change fs.FileMode // 0: none
		want   fs.FileMode
	}{
		{"first", protocol.File{Content: []byte("1")}, 0, 0o644},
		{"it can be executed", protocol.File{Content: []byte("1"), Exec: true}, 0, 0o755},
		{"its mode is changed", protocol.File{Content: []byte("1"), Exec: true}, 0o640, 0o640},
		{"its content is replaced", protocol.File{Content: []byte("2"), Exec: true}, 0, 0o755},
		{"it cannot any more", protocol.File{Content: []byte("2")}, 0, 0o644},
		{"it can again", protocol.File{Content: []byte("3"), Exec: true}, 0, 0o755},
	} {
		if step.change != 0 {
			if err := os.Chmod(run, step.change); err != nil {
				t.Fatal(err)
			}
		}
		step.file.Path = "run.sh"
		if err := Apply(dir, record, []protocol.File{step.file}); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if info, err := os.Stat(run); err != nil || info.Mode().Perm() != step.want {
			t.Errorf("%s: %v, %v; want %v", step.name, info.Mode(), err, step.want)
		}
	}
	if err := Apply(dir, record, nil); err != nil {
		t.Fatal(err)
	}
	if left := content(t, dir); len(left) != 0 {
		t.Errorf("not retired: %v", left)
	}
}

// Whatever a container made of the files of its volume, Apply neither blocks nor reads
// without bound. What it finds changed stays.
func TestApplyWithstandsWhatAContainerMade(t *testing.T) {
	t.Parallel()
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "record")
	version := func(text string, names ...string) (files []protocol.File) {
		for _, name := range names {
			files = append(files, protocol.File{Path: name, Content: []byte(text)})
		}
		return files
	}
	if err := Apply(dir, record, version("1", "pipe", "huge", "link", "own", "old")); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"pipe", "link", "old"} {
		if err := os.Remove(in(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pipe", "old", temporary} {
		if err := syscall.Mkfifo(in(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(in("huge"), 1<<40); err != nil { // sparse
		t.Fatal(err)
	}
	if err := os.Symlink("own", in("link")); err != nil {
		t.Fatal(err)
	}
	if err := Apply(dir, record, version("2", "pipe", "huge", "link", "own")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"pipe": fs.ModeNamedPipe, "old": fs.ModeNamedPipe, "link": fs.ModeSymlink, "huge": 0} {
		if info, err := os.Lstat(in(name)); err != nil || info.Mode().Type() != want || name == "huge" && info.Size() != 1<<40 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if b, err := os.ReadFile(in("own")); err != nil || string(b) != "2" {
		t.Errorf("own: %q, %v", b, err)
	}
	if _, err := os.Lstat(in(temporary)); err == nil {
		t.Error("the temporary file is left")
	}
}
