package containerd

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/logfile"
)

const (
	// tendEvery is the time between two looks at the files of the containers.
	tendEvery = time.Second
	// keepLogs is how many log files of removed containers are kept.
	keepLogs = 32
)

// tend looks after the files of all containers until ctx ends: their logs, which the
// shims append to, stay within the limit, and their name servers follow the node's.
func (e *Engine) tend(ctx context.Context) {
	defer close(e.stopped)
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		e.boundLogs(ctx)
		if err := e.leases.SweepLeft(e.in(ctx)); err != nil {
			e.log.DebugContext(ctx, "leases not dropped yet", "err", err)
		}
		e.forward.Retry()
		if err := e.names.Follow(); err != nil {
			e.log.WarnContext(ctx, "name servers of containers not brought up to date", "err", err)
		}
		if err := e.names.Retry(ctx); err != nil && ctx.Err() == nil {
			e.log.WarnContext(ctx, "names of containers not brought up to date", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *Engine) boundLogs(ctx context.Context) {
	paths, err := filepath.Glob(e.logFile("*"))
	if err != nil {
		e.log.ErrorContext(ctx, "logs not bounded", "err", err)
	}
	for _, path := range paths {
		if err := logfile.Bound(path, e.opts.LogBytes); err != nil {
			e.log.WarnContext(ctx, "log not bounded", "path", path, "err", err)
		}
	}
}

// logFile is what the shim of a container appends to.
func (e *Engine) logFile(key string) string { return filepath.Join(e.dir(key), "log") }

// lastLine returns the last line that a container wrote that is not empty.
func (e *Engine) lastLine(key string) string {
	return logfile.LastLine(e.logFile(key), engine.MaxMessage)
}

// keepLog keeps the log of a container that is removed among those of the latest
// few, in the directory logs.
func (e *Engine) keepLog(key string) error {
	name := key + "-" + strconv.FormatInt(time.Now().UnixMilli(), 10) + ".log"
	return logfile.Keep(e.logFile(key), filepath.Join(e.opts.StateDir, "logs"), name, keepLogs)
}
