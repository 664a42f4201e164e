// Package clients reports to the CO which devices, workloads and applications connect to the site's broker and leave it.
package clients

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// settle is how long a change waits for others of the same client: one that reconnects at once is one report.
	settle = 5 * time.Second
	// most is how many clients are reported by name at a time. Of more, as after a restart of the broker, there is one
	// report with their number.
	most = 100
)

// A Report appends an event to the site's journal.
type Report func(ctx context.Context, kind protocol.EventKind, m protocol.ClientReport) error

// A Watch collects what clients do. Note may be called concurrently.
type Watch struct {
	report Report
	log    *slog.Logger
	news   notify.Signal

	mu      sync.Mutex // guards what follows
	present map[string]bool
	changed map[string]*change
}

// A change is what a client did since its last report.
type change struct {
	last  access.Change
	times uint32
}

// New returns a Watch that knows of no client. Call Run.
func New(report Report, log *slog.Logger) *Watch {
	return &Watch{report: report, log: log, news: notify.New(), present: map[string]bool{}, changed: map[string]*change{}}
}

// Note takes what a client did. Nodes and LOs are reported by other means.
func (w *Watch) Note(c access.Change) {
	if c.Identity.Client == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.changed[c.ClientID]
	if e == nil {
		e = &change{}
		w.changed[c.ClientID] = e
	}
	e.last = c
	e.times++
	w.news.Notify()
}

// Run reports what changed, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for w.news.Wait(ctx) == nil && retry.Sleep(ctx, settle) == nil {
		w.flush(ctx)
	}
}

// flush reports what changed since the flush before.
func (w *Watch) flush(ctx context.Context) {
	w.mu.Lock()
	changed := w.changed
	w.changed = map[string]*change{}
	var came, left uint32
	for client, e := range changed {
		was := w.present[client]
		if e.last.Connected {
			w.present[client] = true
		} else {
			delete(w.present, client)
		}
		if e.last.Connected != was {
			if was {
				left++
			} else {
				came++
			}
		}
	}
	w.mu.Unlock()
	if len(changed) > most {
		w.send(ctx, protocol.ClientsChanged, protocol.ClientReport{Changes: uint32(len(changed)), Connected: came, Disconnected: left})
		return
	}
	for _, client := range slices.Sorted(maps.Keys(changed)) {
		e, kind := changed[client], protocol.ClientDisconnected
		if e.last.Connected {
			kind = protocol.ClientConnected
		}
		m := protocol.ClientReport{Client: client, User: e.last.Identity.Name, From: e.last.Remote + ", " + e.last.Listener}
		if e.last.Ended != nil && !e.last.Clean {
			m.Reason = e.last.Ended.Error()
		}
		if e.times > 1 {
			m.Changes = e.times
		}
		w.send(ctx, kind, m)
	}
}

func (w *Watch) send(ctx context.Context, kind protocol.EventKind, m protocol.ClientReport) {
	m.V = protocol.Version
	if err := w.report(ctx, kind, m); err != nil && ctx.Err() == nil {
		w.log.WarnContext(ctx, "change of clients not reported to the co", "client", m.Client, "kind", string(kind), "err", err)
	}
}
