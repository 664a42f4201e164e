package plan

import (
	"time"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// firstProbe is the wait between the first probes of a container that is not yet
// healthy; it doubles up to the start interval. It makes the way to INSTALLED short.
const firstProbe = 100 * time.Millisecond

// health follows the probes of one container. As in Compose, failures do not
// count while a container starts up: it has its start period, and the time of
// its retries after it, to become healthy once.
type health struct {
	interval, timeout, startPeriod, startInterval time.Duration
	retries                                       uint32

	healthy bool
	asked   bool   // a probe is under way
	tries   uint32 // that failed before it was healthy once
	misses  uint32 // probes that could not be made, in a row
	fails   uint32 // in a row, once it was healthy
	last    time.Time
	message string // of the last probe that failed
}

func healthOf(h *protocol.Health) health {
	if h == nil {
		return health{}
	}
	out := health{
		interval:      orDefault(h.IntervalMillis, 30*time.Second),
		timeout:       orDefault(h.TimeoutMillis, 30*time.Second),
		startPeriod:   orDefault(h.StartPeriodMillis, 0),
		startInterval: orDefault(h.StartIntervalMillis, time.Second),
		retries:       h.Retries,
	}
	if out.retries == 0 {
		out.retries = 3
	}
	out.startInterval = min(out.startInterval, out.interval)
	return out
}

// reset forgets all about an earlier life of the container.
func (h *health) reset() {
	h.healthy, h.tries, h.misses, h.fails, h.last, h.message = false, 0, 0, 0, time.Time{}, ""
}

func (h *health) observe(ok bool, message string, now time.Time) {
	h.asked, h.last, h.misses = false, now, 0
	switch {
	case ok:
		h.healthy, h.fails, h.message = true, 0, ""
	case h.healthy:
		h.fails++
		h.message = message
	default:
		h.tries++
		h.message = message
	}
}

func (h *health) missed(now time.Time) {
	h.asked, h.last = false, now
	h.misses++
}

// due returns when to probe next a container that runs since then.
func (h *health) due(since time.Time) time.Time {
	switch {
	case h.last.IsZero():
		return since
	case h.healthy:
		return h.last.Add(h.interval)
	case h.last.Sub(since) >= h.patience():
		return h.last.Add(h.interval) // it is late already
	case h.tries+h.misses < 10:
		return h.last.Add(retry.Policy{Min: firstProbe, Max: h.startInterval}.Delay(int(h.tries+h.misses), nil))
	default:
		return h.last.Add(h.startInterval)
	}
}

func (h *health) unhealthy(since, now time.Time) bool {
	if h.healthy {
		return h.fails >= h.retries
	}
	// A probe that takes long has to answer first, and as often as there are retries: each that hangs is one failure.
	return h.tries >= h.retries && !h.asked && now.Sub(since) >= h.patience()
}

// patience is how long a container may take to become healthy for the first time.
func (h *health) patience() time.Duration {
	return h.startPeriod + time.Duration(h.retries)*h.interval
}

func (h *health) String() string {
	switch {
	case h.healthy && h.fails == 0:
		return "healthy"
	case h.tries == 0 && h.fails == 0:
		return "running"
	default:
		return "unhealthy"
	}
}
