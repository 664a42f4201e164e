package containerd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/en/engine"
)

// boundEvery is the time between two looks at the sizes of log files.
const boundEvery = time.Second

// boundLogs keeps the log files of all containers within the limit until ctx
// ends. The shims append to them without us, so a file that is too long is
// copied to one earlier file and emptied in place.
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
			if err := boundLog(path, e.opts.LogBytes); err != nil {
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

func boundLog(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	if err != nil {
		return err
	}
	end, err := readEnd(path, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".1", end, 0o600), os.Truncate(path, 0))
}

// readEnd returns the last n bytes of a file.
func readEnd(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
}

// lastLine returns the last line that a container wrote that is not empty.
func (e *Engine) lastLine(key string) string {
	for _, path := range []string{e.logFile(key), e.logFile(key) + ".1"} {
		b, err := readEnd(path, 4*engine.MaxMessage)
		b = bytes.TrimSpace(b)
		if err != nil || len(b) == 0 {
			continue
		}
		b = bytes.TrimSpace(b[bytes.LastIndexByte(b, '\n')+1:])
		return string(bytes.ToValidUTF8(b[:min(len(b), engine.MaxMessage)], nil))
	}
	return ""
}
