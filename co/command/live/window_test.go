package live_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// follow has a node send as much as it may for a time, over a way that carries so many bytes a second, to a reader that takes all
// at once. It returns how many bytes were read, and how old the oldest frame was on its arrival in the second half of that time.
func follow(t *testing.T, rate int, long time.Duration) (read uint64, oldest time.Duration) {
	t.Helper()
	const size = 8000
	l, h, r, stop := kept(t, 1)
	began := time.Now()
	var sent uint64
	var seq uint64
	var way []time.Time // when what is under way was sent
	for time.Since(began) < long {
		synctest.Wait()
		for c, _ := l.last(); sent+size+100 <= c.Bytes; sent += size { // the node has always more
			way = append(way, time.Now())
		}
		if len(way) == 0 {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		time.Sleep(time.Duration(size) * time.Second / time.Duration(rate))
		seq++
		accept(t, h, frame("gw-1", seq, size))
		if time.Since(began) > long/2 {
			oldest = max(oldest, time.Since(way[0]))
		}
		way = way[1:]
		for f, ok := r.Next(); ok; f, ok = r.Next() {
			read += uint64(len(f.Data))
		}
	}
	stop()
	r.Close(t.Context())
	return read, oldest
}

// TestWindow follows over slow and fast ways: what is under way is young, and the way is used.
func TestWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate   int
		oldest time.Duration
		used   float64
	}{
		"4 kB/s":   {4_000, 7 * time.Second, 0.9},
		"64 kB/s":  {64_000, 2 * time.Second, 0.9},
		"500 kB/s": {500_000, 2 * time.Second, 0.9},
		"10 MB/s":  {10_000_000, 2 * time.Second, 0.5}, // the largest window, for each 100 ms
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const long = time.Minute
				read, oldest := follow(t, c.rate, long)
				if oldest > c.oldest {
					t.Errorf("frames are up to %s old, want at most %s", oldest, c.oldest)
				}
				if used := float64(read) / (float64(c.rate) * long.Seconds()); used < c.used {
					t.Errorf("%.2f of the way is used, want %.2f", used, c.used)
				}
			})
		})
	}
}

// TestQuietWindow lets a node send a line of any size once it was quiet for a while, as it may wait with one.
func TestQuietWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h, r, stop := kept(t, 1)
		synctest.Wait()
		if c, _ := l.last(); c.Bytes < 4<<10 || c.Bytes > 10<<10 {
			t.Errorf("the first credit is %d bytes", c.Bytes)
		}
		accept(t, h, frame("gw-1", 1, 1000))
		r.Next()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if c, _ := l.last(); c.Bytes < 18<<10 || c.Bytes > 24<<10 {
			t.Errorf("after 20 s without a frame the credit is %d bytes", c.Bytes)
		}
		stop()
	})
}
