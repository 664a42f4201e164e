package command

import (
	"context"
	"sync"

	"github.com/colonyfleet/colony/internal/notify"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/session"
)

// mostInputs bounds the segments that wait, beside their bytes: small ones have a size, too.
const mostInputs = 4096

// inputs are segments that came down and were not read yet. What has no room is left out: it is sent again.
type inputs struct {
	news notify.Signal

	mu    sync.Mutex // protects what follows
	list  []wire.Segment
	bytes int
}

func (i *inputs) add(m wire.Segment) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.bytes+len(m.Data) > session.Window || len(i.list) >= mostInputs {
		return
	}
	i.list, i.bytes = append(i.list, m), i.bytes+len(m.Data)
	i.news.Notify()
}

// Input returns the next segment that was sent to the command. It waits for one, until ctx ends. It is for one goroutine, which may be
// another one than that of the other methods.
func (l *Live) Input(ctx context.Context) (wire.Segment, error) {
	for {
		if m, ok := l.inputs.next(); ok {
			return m, nil
		}
		if err := l.inputs.news.Wait(ctx); err != nil {
			return wire.Segment{}, err
		}
	}
}

func (i *inputs) next() (m wire.Segment, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.list) == 0 {
		return m, false
	}
	m = i.list[0]
	i.list, i.bytes = i.list[1:], i.bytes-len(m.Data)
	return m, true
}
