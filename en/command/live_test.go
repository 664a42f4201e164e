package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// TestCounts has a node send, lose a frame, and stand still for want of credit while its lease is renewed: each frame says how much there
// was up to it, and one without data says it where nothing else goes.
func TestCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var frames []wire.Frame
		down := false
		l := &Live{budget: 1 << 20, until: time.Now().Add(lease), news: notify.New(), send: func(_ context.Context, m wire.Frame) error {
			if down {
				return context.DeadlineExceeded
			}
			frames = append(frames, m)
			return nil
		}}
		l.ctx, l.end = context.WithCancelCause(t.Context())
		send := func() {
			if err := l.Send([]byte{1}); err != nil {
				t.Error(err)
			}
			if err := l.Flush(); err != nil {
				t.Error(err)
			}
		}
		l.renew(wire.Credit{Bytes: 2})
		send()
		down = true
		send()
		down = false
		done := make(chan struct{})
		go func() {
			defer close(done)
			send()
		}()
		synctest.Wait()
		l.renew(wire.Credit{Bytes: 2})
		synctest.Wait()
		l.renew(wire.Credit{Bytes: 3})
		<-done
		l.end(nil)
		last := frames[len(frames)-1]
		if len(frames) < 3 || last.Items != 1 || last.TotalItems != 3 || last.TotalBytes != 3 || last.LostItems != 1 {
			t.Errorf("frames %+v", frames)
		}
		for _, m := range frames[1 : len(frames)-1] {
			if m.Items != 0 || len(m.Data) != 0 || m.TotalItems != 2 || m.TotalBytes != 2 {
				t.Errorf("while it stood still: %+v", m)
			}
		}
	})
}
