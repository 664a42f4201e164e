package ondisk

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"time"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// A Node reads the logs of containers, and that of the agent itself.
type Node struct {
	logs.Reader // of the containers
	// AgentLog is the file that the log of the agent goes to, one JSON object in each line. When it is too long, its
	// writer moves it to the same name with .1. Empty: there is none.
	AgentLog string
}

// Read yields what a request asks for.
func (n Node) Read(ctx context.Context, r logs.Request) iter.Seq2[logs.Entry, error] {
	if !r.Agent {
		return n.Reader.Read(ctx, r)
	}
	return func(yield func(logs.Entry, error) bool) {
		rd := reading{request: r, yield: yield, opened: map[*log]*[streams]bool{}}
		err := n.read(ctx, &rd)
		for _, src := range rd.sources {
			err = errors.Join(err, src.file.Close())
		}
		if err != nil && !rd.stopped {
			yield(logs.Entry{}, err)
		}
	}
}

func (n Node) read(ctx context.Context, rd *reading) (err error) {
	if rd.filter, err = rd.request.Filter(); err != nil {
		return err
	}
	if n.AgentLog == "" {
		return protocol.Errorf(protocol.NotFound, "no file with the log of the agent: it goes to its standard error, with systemd to the journal (journalctl -u colony-en); "+
			"logFile in its configuration names a file")
	}
	now, err := n.open(rd, 0)
	if err != nil {
		return protocol.Errorf(protocol.NotFound, "log of the agent: %w", err)
	}
	if rd.request.Tail != 0 {
		if err := rd.skip(ctx); err != nil {
			return err
		}
	}
	for {
		if rd.request.Follow {
			for _, src := range rd.sources {
				src.to = -1
			}
			// Looked at before it is read, so that nothing is written to it after the last read.
			info, err := os.Stat(n.AgentLog)
			if err == nil && !os.SameFile(info, now) {
				for _, src := range rd.sources {
					src.final = true
				}
			}
		}
		if err := rd.give(ctx); err != nil || rd.stopped || !rd.request.Follow {
			return err
		}
		if len(rd.sources) > 0 && rd.sources[0].final {
			for _, src := range rd.sources {
				if err := src.file.Close(); err != nil {
					return err
				}
			}
			rd.sources = nil
			if now, err = n.open(rd, mixed); err != nil {
				return err
			}
			continue
		}
		if err := retry.Sleep(ctx, lookFollowing); err != nil {
			return err
		}
	}
}

// open opens the file of the agent's log, and the one before it unless only one is named. It returns what the first
// one is.
func (n Node) open(rd *reading, only int) (os.FileInfo, error) {
	l := &log{single: true, timed: jsonTime}
	l.paths[mixed], l.paths[earlier] = n.AgentLog, n.AgentLog+".1"
	l.look()
	w := window{log: l}
	for i, e := range l.extents {
		w.to[i] = e.end
	}
	info, err := os.Stat(n.AgentLog)
	if err != nil {
		return nil, err
	}
	if only != 0 {
		l.extents[earlier].end = 0 // read already
	}
	l.extents[mixed].end = max(l.extents[mixed].end, 1) // to be opened, though nothing is in it yet
	return info, rd.open(w)
}

// jsonTime returns the time of a line of the agent's log.
func jsonTime(text string) (time.Time, bool) {
	var line struct{ Time time.Time }
	err := json.Unmarshal([]byte(text), &line)
	return line.Time, err == nil && !line.Time.IsZero()
}
