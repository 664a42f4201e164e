package identity

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// reportInterval is how long a refusal is only counted before it is reported once more, and mostReported how many
// kinds of refusals are remembered: of more at a time none is reported.
const (
	reportInterval = time.Hour
	mostReported   = 256
)

// A Tally has refusals reported once an hour for each kind of them, with how many there were: a machine tries
// again each half minute, for ever, and its refusals must not fill records. The zero value is ready. Its methods may
// be called concurrently.
type Tally struct {
	mu    sync.Mutex // protects kinds
	kinds map[string]*refusals
}

// refusals are those of one kind.
type refusals struct {
	reported time.Time // the last one that was
	more     int       // since then
}

// Add counts a refusal of a kind, such as a machine with a code. Where it is to be reported now, text is the
// reason with how many there were since the last report; else ok is false.
func (t *Tally) Add(kind, reason string, now time.Time) (text string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.kinds[kind]
	if r != nil && now.Sub(r.reported) < reportInterval {
		r.more++
		return "", false
	}
	if r == nil {
		if len(t.kinds) >= mostReported {
			maps.DeleteFunc(t.kinds, func(_ string, r *refusals) bool { return now.Sub(r.reported) >= reportInterval })
		}
		if len(t.kinds) >= mostReported {
			return "", false
		}
		if t.kinds == nil {
			t.kinds = map[string]*refusals{}
		}
		r = &refusals{}
		t.kinds[kind] = r
	}
	if r.more > 0 {
		reason += fmt.Sprintf(" (and %d more since %s)", r.more, r.reported.UTC().Format(time.RFC3339))
	}
	*r = refusals{reported: now}
	return reason, true
}
