package lo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/lo/cache"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Status is what /status shows.
type Status struct {
	Site    protocol.SiteID `json:"site"`
	Version string          `json:"version"`
	// Generation and Commit are of the desired state in force; 0 where there is none.
	Generation uint64        `json:"generation"`
	Commit     string        `json:"commit,omitempty"`
	Uplink     uplink.Status `json:"uplink"`
	Journal    journal.Stats `json:"journal"`
	Nodes      []NodeStatus  `json:"nodes"`
	// Data are the queues of machine data, and Retained what the site's broker keeps.
	Data     []data.StreamStatus `json:"data"`
	Retained retained.Stats      `json:"retained"`
	// DataFault says why the data rules in force are not those that are wanted.
	DataFault string `json:"dataFault,omitempty"`
}

// A NodeStatus is one node in a Status.
type NodeStatus struct {
	Node       protocol.NodeID `json:"node"`
	Online     bool            `json:"online"`
	Changed    time.Time       `json:"changed,omitzero"`
	Version    string          `json:"version,omitempty"`
	Generation uint64          `json:"generation"`
	// Heartbeat is when the last one came, in this run of the LO.
	Heartbeat   time.Time          `json:"heartbeat,omitzero"`
	Deployments []DeploymentStatus `json:"deployments"`
}

// A DeploymentStatus is one deployment of a NodeStatus.
type DeploymentStatus struct {
	Deployment protocol.DeploymentName `json:"deployment"`
	State      lifecycle.State         `json:"state"`
	Digest     protocol.Digest         `json:"digest,omitempty"`
	Attempt    uint32                  `json:"attempt,omitempty"`
	Refused    protocol.Digest         `json:"refused,omitempty"`
	Code       protocol.Code           `json:"code,omitempty"`
	Message    string                  `json:"message,omitempty"`
	RetryAt    time.Time               `json:"retryAt,omitzero"`
}

func (l *LO) startHTTP(context.Context) error {
	if err := registerAll(l.opts.Registerer, l.site.counts.reports, &gauges{lo: l}); err != nil {
		return err
	}
	if l.listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	if l.opts.CO.HTTP != "" {
		var err error
		l.cache, err = cache.New(cache.Options{
			Dir: filepath.Join(l.opts.StateDir, "images"), Default: l.opts.CO.HTTP, MaxBytes: l.opts.CacheBytes, Logger: l.log,
		})
		if err != nil {
			return fmt.Errorf("open image cache: %w", err)
		}
		l.parts.OnStop("image cache", func(context.Context) error { return l.cache.Close() })
		mux.Handle("/v2/", l.cache)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(l.opts.Registerer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { l.answer(w, map[string]string{"status": "ok"}) })
	// The LO is ready without the CO: that is what it is for.
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { l.answer(w, map[string]string{"status": "ready"}) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { l.answer(w, l.status()) })
	server := httpserver.New(mux, httpserver.Limits{}, l.log)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
			l.parts.Fail(fmt.Errorf("serve http: %w", err))
		}
	}()
	l.parts.OnStop("http", func(ctx context.Context) error {
		// A node that pulls through a slow link would hold up the end.
		short, cancel := context.WithTimeout(ctx, farewell)
		defer cancel()
		err := server.Shutdown(short)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
		<-served
		return err
	})
	return nil
}

func (l *LO) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		l.log.Debug("answer not written", "err", err)
	}
}

func (l *LO) status() Status {
	s := Status{
		Site: l.opts.Site, Version: l.opts.Version,
		Uplink: l.link.uplink.Status(), Journal: l.journal.Stats(), Nodes: []NodeStatus{},
		Data: l.data.Status(), Retained: l.data.Retained().Stats(), DataFault: l.data.Fault(),
	}
	if m, ok := l.desired.Current(); ok {
		s.Generation, s.Commit = m.Generation, m.Commit
	}
	for _, n := range l.site.sorted() {
		s.Nodes = append(s.Nodes, nodeStatus(n.shown.Load(), n.beat.Load().at))
	}
	return s
}

func nodeStatus(rec *nodes.Record, beatAt time.Time) NodeStatus {
	s := NodeStatus{
		Node: rec.Node, Online: rec.Online(), Version: rec.Presence.Version, Generation: rec.Generation,
		Heartbeat: beatAt, Deployments: []DeploymentStatus{},
	}
	if rec.ChangedMillis != 0 {
		s.Changed = time.UnixMilli(rec.ChangedMillis).UTC()
	}
	for _, name := range rec.Names() {
		d := rec.Deployments[name]
		ds := DeploymentStatus{
			Deployment: name, State: d.Status.State, Digest: d.Status.Digest, Attempt: d.Status.Attempt,
			Refused: d.Refused.Digest, Code: d.Status.Code, Message: d.Status.Message,
		}
		if d.RetryMillis != 0 {
			ds.RetryAt = time.UnixMilli(d.RetryMillis).UTC()
		}
		s.Deployments = append(s.Deployments, ds)
	}
	return s
}
