package ondisk

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

var flashTime = flag.Duration("flash", 20*time.Second, "how long BenchmarkFlash writes")

// BenchmarkFlash writes lines at a pace to a file system of its own each, and reports how many bytes the disk got for each that was
// logged: with a file that only grows, as the shim alone keeps it; with one that is copied and emptied
// when it is too long, as agents before 0.3.0 did; and with a Store. It needs root.
func BenchmarkFlash(b *testing.B) {
	if b.N > 1 {
		return // the time is in -flash
	}
	ways := map[string]func(*testing.B, string) (file string, each func()){"grows": grows, "copied": copied, "holes": holes}
	var wait sync.WaitGroup
	var mu sync.Mutex
	for name, way := range ways {
		for _, rate := range []int{1_000, 10_000, 100_000, 1_000_000} {
			d := newDevice(b)
			file, each := way(b, d.dir)
			wait.Go(func() {
				before := d.written(b)
				logged := pace(b, file, rate, each)
				written := d.written(b) - before
				mu.Lock()
				defer mu.Unlock()
				b.ReportMetric(float64(written)/float64(logged), fmt.Sprintf("%s/%d-B/s", name, rate))
			})
		}
	}
	wait.Wait()
}

// pace appends lines of 100 bytes at a rate, in bytes in a second, and returns how many bytes it wrote.
func pace(b *testing.B, file string, rate int, each func()) (logged int) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.Error(err)
		return 1
	}
	defer f.Close()
	line := strings.Repeat("x", 99) + "\n"
	began, looked := time.Now(), time.Now()
	for time.Since(began) < *flashTime {
		for float64(logged) < time.Since(began).Seconds()*float64(rate) {
			n, err := f.WriteString(line)
			if err != nil {
				b.Error(err)
				return 1
			}
			logged += n
		}
		if time.Since(looked) > time.Second {
			each()
			looked = time.Now()
		}
		_ = retry.Sleep(b.Context(), 10*time.Millisecond)
	}
	return logged
}

func grows(_ *testing.B, dir string) (string, func()) { return filepath.Join(dir, "log"), func() {} }

func copied(b *testing.B, dir string) (string, func()) {
	file := filepath.Join(dir, "log")
	return file, func() {
		text, err := os.ReadFile(file)
		if err != nil || len(text) <= 1<<20 {
			return
		}
		if err := os.WriteFile(file+".1", text[len(text)-1<<20:], 0o600); err != nil {
			b.Error(err)
		}
		if err := os.Truncate(file, 0); err != nil {
			b.Error(err)
		}
	}
}

func holes(b *testing.B, dir string) (string, func()) {
	s, err := Open(Options{Dir: dir, Limits: DefaultLimits()})
	if err != nil {
		b.Fatal(err)
	}
	out, _, err := s.Begin(webKey, web)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return out, func() {}
}

// A device is a disk with a file system.
type device struct{ dir, loop string }

func newDevice(b *testing.B) *device {
	b.Helper()
	image := filepath.Join(b.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(image, 512<<20); err != nil {
		b.Fatal(err)
	}
	d := &device{dir: b.TempDir()}
	run(b, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
	d.loop = run(b, "losetup", "--find", "--show", image)
	b.Cleanup(func() { run(b, "losetup", "--detach", d.loop) })
	run(b, "mount", d.loop, d.dir)
	b.Cleanup(func() { run(b, "umount", "--lazy", d.dir) })
	return d
}

// written returns how many bytes the disk got so far.
func (d *device) written(b *testing.B) int64 {
	run(b, "sync", "--file-system", d.dir)
	stat, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.loop), "stat"))
	if err != nil {
		b.Error(err)
		return 0
	}
	sectors, err := strconv.ParseInt(strings.Fields(string(stat))[6], 10, 64)
	if err != nil {
		b.Error(err)
	}
	return sectors * 512
}

func run(b *testing.B, program string, args ...string) string {
	b.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		b.Errorf("%s %q: %v: %s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}
