package live

import "time"

const (
	// firstWindow is what a node may send ahead of its reader before it is known how fast the way is, and on a slow one: more
	// would show the past there. It holds some frames of the size that a node then sends.
	firstWindow = 8 << 10
	// longest holds a line of the longest.
	longest = 20 << 10
	// ahead is how long what a node may send ahead takes on its way.
	ahead = 1500 * time.Millisecond
	// measure is the least time that a rate is measured for.
	measure = 500 * time.Millisecond
	// quiet is after how long without a frame a node may send a line of any size: it may wait with one, or what it sent got lost.
	quiet = 10 * time.Second
)

// A window is how many bytes a node may send ahead of its reader: what arrives in a time, as it was measured last.
type window struct {
	size  uint64    // by the rate that was measured; 0: none was
	since time.Time // the begin of the measurement, which is the arrival of a frame
	last  time.Time // the last arrival
	bytes uint64    // that arrived since
}

// arrived counts a frame that arrives.
func (w *window) arrived(now time.Time, bytes int, most uint64) {
	if w.last = now; w.since.IsZero() {
		w.since = now
		return // it is not known since when it was on its way
	}
	w.bytes += uint64(bytes)
	took := now.Sub(w.since)
	if took < measure {
		return
	}
	w.size = min(uint64(float64(w.bytes)*float64(ahead)/float64(took)), most)
	w.since, w.bytes = now, 0
}

// now returns the size of the window at a time; opened is when its reader was, and idle says that nothing waits for that.
func (w *window) now(at, opened time.Time, idle bool) uint64 {
	since := opened
	if !w.last.IsZero() {
		since = w.last
	}
	if idle && at.Sub(since) >= quiet {
		return max(w.size, longest)
	}
	return max(w.size, firstWindow)
}
