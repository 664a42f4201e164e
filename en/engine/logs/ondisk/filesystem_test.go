package ondisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/testpart"
)

// mounted returns a directory on a file system of a kind.
func mounted(t *testing.T, kind string) string {
	t.Helper()
	dir, options := t.TempDir(), ""
	switch kind {
	case "ext4":
		image := filepath.Join(t.TempDir(), "disk")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20)); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
			t.Fatalf("mount: %v: %s", err, out)
		}
	case "overlay":
		below := mounted(t, "ext4")
		for _, sub := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(below, sub), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		options = fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", below)
		fallthrough
	default:
		if err := syscall.Mount("none", dir, kind, 0, options); err != nil {
			t.Fatalf("mount %s: %v", kind, err)
		}
	}
	t.Cleanup(func() {
		// A child of another test has copies of the open files between its fork and its exec, in which they are closed.
		testpart.Eventually(t, "unmount "+kind, func() bool {
			err := syscall.Unmount(dir, 0)
			if err != nil && !errors.Is(err, syscall.EBUSY) {
				t.Fatalf("unmount %s: %v", kind, err)
			}
			return err == nil
		})
	})
	return dir
}

// Each line is read or counted on each file system, and the log is within its limit on its disk.
func TestFileSystems(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ext4", "tmpfs", "overlay", "ramfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := mounted(t, kind)
			s := open(t, dir, same)
			sh := begin(t, s)
			n := 0
			for round := range 30 {
				var b strings.Builder
				for range 500 {
					n++
					fmt.Fprintf(&b, "%d %s\n", n, strings.Repeat("x", n%60))
				}
				sh.write(sh.out, b.String())
				l := s.all()[0]
				l.work.Lock()
				l.look()
				err := l.drop(stdout, 20_000)
				l.work.Unlock()
				if err != nil {
					t.Fatal(err)
				}
				if round == 10 {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = open(t, dir, same)
				}
				checkNumbers(t, s, n, kind == "ramfs")
			}
			files := []string{sh.out.Name()}
			if kind == "ramfs" { // it has no holes
				files = append(files, sh.out.Name()+tailName)
			}
			total := int64(0)
			for _, path := range files {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				total += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
			if total > 20_000+2*part.Block+part.LineWindow {
				t.Errorf("the files take up %d bytes after they were cut to 20,000", total)
			}
			if err := s.Keep(webKey); err != nil {
				t.Fatal(err)
			}
			last := fmt.Sprintf("stdout 0 %d %d %s", n, n, strings.Repeat("x", n%60))
			want(t, read(t, s, func(r *logs.Request) { r.Previous, r.Tail = true, 1 })[:1], last)
			if err := sh.out.Close(); err != nil {
				t.Fatal(err)
			}
			if err := sh.err.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// checkNumbers reads all: each line has its number in its text, or is counted in a gap. A copied log has gaps of nothing, where
// something may be missing.
func checkNumbers(t *testing.T, s *Store, n int, copied bool) {
	t.Helper()
	next := int64(1)
	for e, err := range s.Read(t.Context(), logs.Request{Deployment: "shop"}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Line != next || e.Gap != nil && e.Gap.LinesUnknown && (!copied || e.Gap.Bytes > 0):
			t.Fatalf("%s: want line %d", show(e), next)
		case e.Gap != nil:
			next += e.Gap.Lines
		case !strings.HasPrefix(e.Text, strconv.FormatInt(e.Line, 10)+" ") || e.Partial || e.Cut > 0:
			t.Fatalf("%s: it is another line", show(e))
		default:
			next++
		}
	}
	if next != int64(n)+1 {
		t.Fatalf("lines and gaps are %d, want the %d that were written", next-1, n)
	}
}

// A file that is too long for its file system has its front taken out, also where the agent is killed in the middle of it.
func TestCollapse(t *testing.T) {
	t.Parallel()
	for _, cut := range []string{"", "before", "after"} {
		t.Run(cut, func(t *testing.T) {
			t.Parallel()
			dir := mounted(t, "ext4")
			s := open(t, dir, unbounded)
			sh := begin(t, s)
			for n := range 10_000 {
				sh.write(sh.out, fmt.Sprintf("%d line\n", n+1))
			}
			l := s.all()[0]
			l.work.Lock()
			l.look()
			if cut == "" {
				l.collapseAt = 16 << 10
			}
			err := l.drop(stdout, 10_000)
			if n := l.extents[stdout].start / (16 << 10) * (16 << 10); cut != "" {
				l.note(collapseRecord(stdout, n))
				if cut == "after" {
					f, ferr := os.OpenFile(sh.out.Name(), os.O_RDWR, 0)
					if ferr != nil {
						t.Fatal(ferr)
					}
					err = errors.Join(err, part.Collapse(f, n), f.Close())
				}
			}
			l.work.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(sh.out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if size := info.Size(); size > 40_000 != (cut == "before") {
				t.Errorf("the file has %d bytes", size)
			}
			if cut != "" { // the agent is killed
				killed := s
				t.Cleanup(func() { _ = killed.Close() })
				s.cancel()
				<-s.stopped
				s = open(t, dir, unbounded)
			}
			sh.write(sh.out, "10001 after\n")
			checkNumbers(t, s, 10_001, false)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			checkNumbers(t, open(t, dir, unbounded), 10_001, false)
			if err := errors.Join(sh.out.Close(), sh.err.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
