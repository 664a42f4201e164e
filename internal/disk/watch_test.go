package disk_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/smalldisk"
)

// TestWatchRealDisk fills and frees a real file system.
func TestWatchRealDisk(t *testing.T) {
	t.Parallel()
	small := smalldisk.New(t, 4<<20)
	w := disk.Watch(disk.OS, small.Path(""))
	w.Look()
	if p := w.Problem(); p != "" {
		t.Errorf("problem of an empty disk: %s", p)
	}
	small.Fill()
	w.Look()
	if p := w.Problem(); !strings.Contains(p, small.Path("")) || !strings.Contains(p, "free some space") {
		t.Errorf("problem of a full disk: %q, want its directory and what to do", p)
	}
	small.Free()
	w.Look()
	if p := w.Problem(); p != "" {
		t.Errorf("problem of a disk with room again: %s", p)
	}
	if left, err := os.ReadDir(small.Path("")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestWatch has operations fail for want of room, on a disk that says that much is free, as
// one with a quota does: the change is reported at once, again where that failed, and the end
// of it as well.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		if err := d.MkdirAll("/state", 0o700); err != nil {
			t.Fatal(err)
		}
		w := disk.Watch(d, "/state")
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex // protects all
		var all []string
		refuse := true
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, func(_ context.Context, problem string) error {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, problem)
				if refuse {
					refuse = false
					return os.ErrDeadlineExceeded
				}
				return nil
			})
		}()
		is := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(all, want) {
				t.Errorf("%s: reported %q, want %q", what, all, want)
			}
		}
		is("a disk with room")
		d.Fail(func(op, _ string) error {
			if op == "create" || op == "write" {
				return syscall.EDQUOT
			}
			return nil
		})
		if _, err := w.Open(filepath.Join("/state", "a"), os.O_CREATE|os.O_RDWR, 0o600); !disk.IsFull(err) {
			t.Errorf("open on a full disk: %v", err)
		}
		synctest.Wait()
		problem := w.Problem()
		if problem == "" {
			t.Error("a full disk has no problem")
		}
		is("a full disk", problem)
		<-time.After(time.Minute)
		is("a full disk, after a report that failed", problem, problem)
		d.Fail(nil)
		<-time.After(time.Minute)
		is("a disk with room again", problem, problem, "")
		cancel()
		<-done
	})
}
