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
	// boundEvery is the time between two looks at the sizes of log files.
	boundEvery = time.Second
	// keepLogs is how many log files of removed containers are kept.
	keepLogs = 32
)

// boundLogs keeps the log files of all containers, which the shims append to,
// within the limit until ctx ends.
func (e *Engine) boundLogs(ctx context.Context) {
	defer close(e.stopped)
	tick := time.NewTicker(boundEvery)
	defer tick.Stop()
	for {
		paths, err := filepath.Glob(e.logFile("*"))
		if err != nil {
			e.log.ErrorContext(ctx, "logs not bounded", "err", err)
			return
		}
		for _, path := range paths {
			if err := logfile.Bound(path, e.opts.LogBytes); err != nil {
				e.log.WarnContext(ctx, "log not bounded", "path", path, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// logFile is what the shim of a container appends to.
func (e *Engine) logFile(key string) string { return filepath.Join(e.dir(key), "log") }

// lastLine returns the last line that a container wrote that is not empty.
func (e *Engine) lastLine(key string) string { return logfile.LastLine(e.logFile(key), engine.MaxMessage) }

// keepLog keeps the log of a container that is removed among those of the latest
// few, in the directory logs.
func (e *Engine) keepLog(key string) error {
	name := key + "-" + strconv.FormatInt(time.Now().UnixMilli(), 10) + ".log"
	return logfile.Keep(e.logFile(key), filepath.Join(e.opts.StateDir, "logs"), name, keepLogs)
}
