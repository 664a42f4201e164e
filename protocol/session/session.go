// Package session carries two byte streams over messages that may get lost, complete and in order: what a person types to a program in a container,
// and what the program answers. The messages are command.Segments, the bytes command.Records.
//
// It decides like TCP (RFC 9293, RFC 6298), with two differences: a message arrives whole or not at all, so that no checksum is needed; and
// messages do not overtake each other, so that a receiver drops data that does not follow what it has. The package is pure.
package session

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// Window bounds what a Sender takes that was not acknowledged, in bytes. A receiver has room for as much.
	Window = 64 << 10
	// firstWait is how long an acknowledgement is waited for where nothing is known of the way, leastWait and mostWait bound that wait.
	firstWait = 3 * time.Second
	leastWait = 500 * time.Millisecond
	mostWait  = 8 * time.Second
)

// A Sender is a direction where it begins. The zero Sender is ready. It is for one goroutine at a time.
type Sender struct {
	data   []byte // from base on
	base   uint64 // up to where it was acknowledged
	next   uint64 // what is to be sent next
	high   uint64 // up to where it was sent
	window int    // how much may be under way; 0: Window
	way    estimate
	timed  uint64 // end of the piece whose acknowledgement is timed; 0: none is
	at     time.Time
	due    time.Time // when what is under way counts as lost
	tries  int
}

// estimate is what is known of the time until an acknowledgement (RFC 6298, section 2).
type estimate struct{ mean, spread time.Duration }

func (e *estimate) learn(took time.Duration) {
	if e.mean == 0 {
		e.mean, e.spread = took, took/2
		return
	}
	e.spread = (3*e.spread + (e.mean - took).Abs()) / 4
	e.mean = (7*e.mean + took) / 8
}

// wait is how long an acknowledgement is waited for after so many vain tries.
func (e *estimate) wait(tries int) time.Duration {
	w := firstWait
	if e.mean > 0 {
		w = max(e.mean+4*e.spread, leastWait)
	}
	return min(w<<min(tries, 5), mostWait)
}

// Write takes as much of p as there is room for, and returns how much that was.
func (s *Sender) Write(p []byte) int {
	n := min(len(p), Window-len(s.data))
	s.data = append(s.data, p[:n]...)
	return n
}

// Room returns how many bytes Write takes.
func (s *Sender) Room() int { return Window - len(s.data) }

// Empty reports whether all that was written has arrived.
func (s *Sender) Empty() bool { return len(s.data) == 0 }

// End returns how many bytes were written.
func (s *Sender) End() uint64 { return s.base + uint64(len(s.data)) }

// Next returns the next piece to send, of at most so many bytes; none where there is none yet. It is valid until the next call of the Sender.
func (s *Sender) Next(now time.Time, most int) (offset uint64, data []byte) {
	if s.next > s.base && !now.Before(s.due) { // the window timed out: resend from base, one piece at a time
		s.next, s.window, s.timed = s.base, most, 0
		s.tries++
	}
	window := s.window
	if window == 0 {
		window = Window
	}
	began := int(s.next - s.base)
	n := min(len(s.data), window) - began
	if n <= 0 {
		return 0, nil
	}
	n = min(n, most)
	if began == 0 {
		s.due = now.Add(s.way.wait(s.tries))
	}
	offset = s.next
	s.next += uint64(n)
	if s.next > s.high {
		s.high = s.next
		if s.timed == 0 && s.tries == 0 {
			s.timed, s.at = s.next, now
		}
	}
	return offset, s.data[began : began+n]
}

// Acked takes up to where the direction has arrived, and reports whether that is news.
func (s *Sender) Acked(offset uint64, now time.Time) bool {
	if offset <= s.base || offset > s.high {
		return false
	}
	if s.timed > 0 && offset >= s.timed {
		s.way.learn(now.Sub(s.at))
		s.timed = 0
	}
	s.data = s.data[offset-s.base:]
	s.base = offset
	s.next = max(s.next, s.base)
	s.tries, s.due = 0, now.Add(s.way.wait(0))
	if s.window = min(2*s.window, Window); s.window == Window {
		s.window = 0
	}
	if len(s.data) == 0 {
		s.data = nil
	}
	return true
}

// Due returns when what is under way counts as lost; ok is false where nothing is.
func (s *Sender) Due() (at time.Time, ok bool) { return s.due, s.next > s.base }

// A Receiver is a direction where it ends. The zero Receiver is ready. It is for one goroutine at a time.
type Receiver struct{ next uint64 }

// Next returns up to where the direction has arrived.
func (r *Receiver) Next() uint64 { return r.next }

// Accept returns what is new in a piece; nothing where it came before, or where what precedes it is missing.
func (r *Receiver) Accept(offset uint64, data []byte) []byte {
	end := offset + uint64(len(data))
	if offset > r.next || end <= r.next || end < offset {
		return nil
	}
	fresh := data[r.next-offset:]
	r.next = end
	return fresh
}

// A Decoder makes Records of the bytes of a direction. The zero Decoder is ready.
type Decoder struct{ held []byte }

// mostHeld bounds an encoded Record.
const mostHeld = command.MaxRecord + 1024

// Add returns the records that are whole with so many more bytes. After an error the direction cannot be read any more.
func (d *Decoder) Add(data []byte) ([]command.Record, error) {
	d.held = append(d.held, data...)
	var list []command.Record
	at := 0
	for at < len(d.held) {
		n := command.FirstItem(d.held[at:])
		if n == 0 {
			break
		}
		var r command.Record
		if err := protocol.Unmarshal(d.held[at:at+n], &r); err != nil {
			return list, fmt.Errorf("read a record of a session: %w", err)
		}
		list = append(list, r)
		at += n
	}
	if d.held = append([]byte(nil), d.held[at:]...); len(d.held) > mostHeld {
		return list, protocol.Errorf(protocol.Invalid, "a record of a session has more than %d bytes, or is none", mostHeld)
	}
	return list, nil
}
