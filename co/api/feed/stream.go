package feed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// page is how many events one query of a stream fetches.
	page = 500
	// Beat is how often an idle stream sends a comment, so that proxies keep it open and a
	// client that went away is noticed.
	Beat = 15 * time.Second
	// writeTimeout bounds one write to a client: a client that does not read is disconnected.
	writeTimeout = 10 * time.Second
	// chunk is how many bytes of events go into one write, at least, where there are more.
	chunk = 64 << 10
)

// ErrOver says that the Feed has ended.
var ErrOver = errors.New("the CO stops")

// A following is one stream of events on its way to a client.
type following struct {
	feed  *Feed
	to    *Stream
	fo    *follower
	after int64 // all up to it that the client wants was sent
}

// Serve sends the events that f wants and that come after f.After to a client, until ctx
// or the Feed ends, or the client does not read.
func (f *Feed) Serve(ctx context.Context, filter fleet.EventFilter, out *Stream) error {
	fo := f.follow(filter)
	defer f.leave(fo)
	s := &following{feed: f, to: out, fo: fo, after: filter.After}
	beat, retryTicker := time.NewTicker(Beat), time.NewTicker(retryDelay)
	defer beat.Stop()
	defer retryTicker.Stop()
	for {
		select { // a feed that has ended sends nothing more
		case <-f.over:
			return ErrOver
		default:
		}
		var retry <-chan time.Time
		if err := s.send(ctx); err != nil {
			if protocol.KindOf(err) != protocol.Unavailable {
				return err
			}
			f.lag(fo)
			retry = retryTicker.C
			select { // the notification of that; the wait is for the database
			case <-fo.wake.C():
			default:
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.over:
		case <-fo.wake.C():
		case <-retry:
		case <-beat.C:
			// With the id a client that comes again does not make the CO look through
			// what it did not want.
			if err := out.Write(fmt.Sprintf("id: %d\n: \n\n", s.after)); err != nil {
				return err
			}
		}
	}
}

// send sends what there is.
func (s *following) send(ctx context.Context) error {
	list, head, lagging := s.feed.next(s.fo)
	if lagging {
		if err := s.catchUp(ctx); err != nil {
			return err
		}
	} else if err := s.frames(list); err != nil {
		return err
	}
	s.after = max(s.after, head)
	return nil
}

// catchUp sends what the database has.
func (s *following) catchUp(ctx context.Context) error {
	f := s.fo.filter
	f.Limit = page
	for {
		f.After = s.after
		events, err := s.feed.read(ctx, f)
		if err != nil {
			return err
		}
		list := make([]*frame, len(events))
		for i := range events {
			if list[i], err = newFrame(&events[i]); err != nil {
				return err
			}
		}
		if err := s.frames(list); err != nil || len(events) < f.Limit {
			return err
		}
	}
}

// frames sends events but those that were sent before, many in one write.
func (s *following) frames(list []*frame) error {
	var text []byte
	for _, fr := range list {
		if fr.id <= s.after {
			continue
		}
		text = append(text, fr.text...)
		s.after = fr.id
		if len(text) >= chunk {
			if err := s.to.Write(string(text)); err != nil {
				return err
			}
			text = text[:0]
		}
	}
	if len(text) == 0 {
		return nil
	}
	return s.to.Write(string(text))
}

// A Stream writes server-sent events to one client.
type Stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// NewStream begins an answer of server-sent events.
func NewStream(w http.ResponseWriter) *Stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.Header().Set("Connection", "close") // it has a write deadline that no further request should meet
	return &Stream{w: w, c: http.NewResponseController(w)}
}

// Write sends text as it is. It gives up on a client that does not read for 10 s.
func (s *Stream) Write(text string) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	return s.c.Flush()
}
