package filelock

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// two returns two locks of one file, as two processes have them: flock(2) is of an open file.
func two(t *testing.T) (path string, a, b *RW) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lock")
	locks := [2]*RW{}
	for i := range locks {
		l, err := OpenRW(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		locks[i] = l
	}
	return path, locks[0], locks[1]
}

// TestRWCounts has writers of two processes count in a file, and readers that must find no half count.
func TestRWCounts(t *testing.T) {
	t.Parallel()
	path, a, b := two(t)
	file := filepath.Join(filepath.Dir(path), "count")
	const rounds = 200
	var wg sync.WaitGroup
	for _, l := range []*RW{a, a, b, b} {
		wg.Go(func() {
			for range rounds {
				if err := l.Lock(); err != nil {
					t.Error(err)
					return
				}
				text, _ := os.ReadFile(file)
				n, _ := strconv.Atoi(string(text))
				if err := os.WriteFile(file, nil, 0o600); err != nil { // a reader may not see this
					t.Error(err)
				}
				if err := os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
					t.Error(err)
				}
				l.Unlock()
			}
		})
		wg.Go(func() {
			for range rounds {
				if err := l.RLock(); err != nil {
					t.Error(err)
					return
				}
				if text, err := os.ReadFile(file); err == nil && len(text) == 0 {
					t.Error("a reader sees a half count")
				}
				l.RUnlock()
			}
		})
	}
	wg.Wait()
	if text, err := os.ReadFile(file); err != nil || string(text) != strconv.Itoa(4*rounds) {
		t.Errorf("counted %s: %v; want %d", text, err, 4*rounds)
	}
}

// TestRWReadersShare has readers of both processes hold it at once, and a writer wait for all of them.
func TestRWReadersShare(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	for _, l := range []*RW{a, a, b} {
		if err := l.RLock(); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan error)
	go func() { got <- b.Lock() }()
	for _, l := range []*RW{b, a, a} {
		select {
		case err := <-got:
			t.Fatalf("a writer got it while readers hold it: %v", err)
		default:
		}
		l.RUnlock()
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	b.Unlock()
}

// TestRWReadersThatFollowEachOther do not keep a writer of another process waiting for ever.
func TestRWReadersThatFollowEachOther(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 { // at each moment one of them holds it
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := a.RLock(); err != nil {
					t.Error(err)
					return
				}
				<-time.After(time.Millisecond)
				a.RUnlock()
			}
		})
	}
	err := b.Lock()
	if err == nil {
		b.Unlock()
	}
	close(done)
	wg.Wait()
	if err != nil {
		t.Error(err)
	}
}
