package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/archive"
	"github.com/colonyfleet/colony/en/command/archive/archivetest"
	"github.com/colonyfleet/colony/en/command/segments/segmentstest"
	wire "github.com/colonyfleet/colony/protocol/command"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// collected asks a node for paths below a folder that has some files.
func collected(t *testing.T, allowed, paths []string) (files map[string]string, output string, err error) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "log", "deep"), 0o700))
	for name, content := range map[string]string{"log/a.log": "of a", "log/b.log": "of b", "log/c.txt": "of c", "log/deep/d.log": "of d", "secret": "a secret"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	must(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "log", "link.log")))
	must(t, os.Symlink(filepath.Join(dir, "log"), filepath.Join(dir, "logs")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "log", "fifo.log"), 0o600))
	below := func(list []string) (all []string) {
		for _, p := range list {
			all = append(all, dir+p)
		}
		return all
	}
	kind := New(Options{Node: "gw-1", Allowed: below(allowed), Now: time.Now})
	b, output, err := segmentstest.Run(t, kind, func(key []byte) wire.Args { return &wire.FilesRequest{Key: key, Paths: below(paths)} })
	if len(b) == 0 {
		return nil, output, err
	}
	files = map[string]string{}
	for name, content := range archivetest.Read(t, b) {
		files[strings.TrimPrefix(name, "gw-1"+dir+"/")] = content
	}
	return files, output, err
}

func TestFiles(t *testing.T) {
	t.Parallel()
	got, output, err := collected(t, []string{"/log/*.log"}, []string{"/log/*", "/log/a.log"})
	if err != nil || output != "2 of 4 files" || got["log/a.log"] != "of a" || got["log/b.log"] != "of b" {
		t.Errorf("%q, %q, %v", got, output, err)
	}
	faults := got["gw-1/"+archive.Faults]
	if !strings.Contains(faults, "link.log: there is a symbolic link in its path") || !strings.Contains(faults, "fifo.log: it is no regular file") {
		t.Errorf("faults:\n%s", faults)
	}
	if len(got) != 3 {
		t.Errorf("%d files: %q", len(got), got)
	}
}

// What the configuration does not name is refused, whatever the way to it.
func TestOtherFilesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allowed, asked string
		code           wire.Code
		says           string
	}{
		{"/log/*.log", "/secret", wire.Forbidden, "does not name"},
		{"/log/*.log", "/log/deep/d.log", wire.Forbidden, "does not name"},
		{"/log/*.log", "/logs/a.log", wire.Forbidden, "does not name"},
		{"/logs/*.log", "/logs/a.log", wire.NoSuchSubject, "symbolic link"},
		{"/log/*.log", "/log/link.log", wire.NoSuchSubject, "symbolic link"},
		{"/log/*.log", "/log/absent.log", wire.NoSuchSubject, "no such file"},
		{"/log/*.log", "/*", wire.NoSuchSubject, "no file that may be collected is like"},
		{"/log", "/log", wire.NoSuchSubject, "no regular file"},
	} {
		got, _, err := collected(t, []string{c.allowed}, []string{c.asked})
		f, ok := errors.AsType[*command.Failure](err)
		if !ok || f.Code != c.code || !strings.Contains(f.Message, c.says) || len(got) > 0 {
			t.Errorf("%s of %s: %q, %v, want %s (%q)", c.asked, c.allowed, got, err, c.code, c.says)
		}
	}
	if _, _, err := collected(t, nil, []string{"/log/a.log"}); err == nil || !strings.Contains(err.Error(), "names no files") {
		t.Errorf("without files in the configuration: %v", err)
	}
}
