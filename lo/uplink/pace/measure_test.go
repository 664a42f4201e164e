package pace

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

// TestFirstPassages sends a stream over a link of 64 kbit/s with a way of 600 ms. It
// varies what the first passages say of the link: the gate comes to fill it in each case.
func TestFirstPassages(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(l *modem){
		"one after the other": func(l *modem) {
			l.send(l.urgent, l.urgent.Wait(84, l.now), true)
			l.send(l.data, l.data.Begin(l.grant(150), 54, l.now), true)
		},
		"a grant before the first begins": func(l *modem) {
			granted := l.grant(150)
			l.send(l.urgent, l.urgent.Wait(84, l.now), true)
			l.send(l.data, l.data.Begin(granted, 54, l.now), true)
		},
		"the first is sent again": func(l *modem) {
			l.send(l.urgent, l.urgent.Wait(84, l.now), false)
			l.send(l.data, l.data.Begin(l.grant(150), 54, l.now), true)
		},
		"both are sent again": func(l *modem) {
			l.send(l.urgent, l.urgent.Wait(84, l.now), false)
			l.send(l.data, l.data.Begin(l.grant(150), 54, l.now), false)
		},
		"the first waits behind others": func(l *modem) {
			l.free = l.now.Add(400 * time.Millisecond)
			l.send(l.urgent, l.urgent.Wait(84, l.now), true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newModem(t)
			first(l)
			l.run(10 * time.Second)
			before := l.carried
			l.longest = 0 // until here the gate looked for what the link carries
			l.run(60 * time.Second)
			if used := float64(l.carried-before) / 60 / l.rate; used < 0.85 {
				t.Errorf("the link was used to %.0f %%, want 85 %%: best rate %.0f B/s, path %v", used*100, l.gate.measure.rate(), l.gate.measure.path)
			}
			if l.longest > 1500*time.Millisecond {
				t.Errorf("urgent news would arrive after %v, want at most 1.5 s", l.longest)
			}
		})
	}
}

// modem is a link of 64 kbit/s without an Uplink: it sends batches as the gate admits them.
type modem struct {
	t            *testing.T
	gate         *Gate
	urgent, data *Ticket
	rate         float64 // bytes per second
	way          time.Duration
	now, free    time.Time // free is when it has sent what it was given
	sent         []onLink
	carried      int
	longest      time.Duration // that urgent news would have taken
}

// onLink is a passage and when its Ack is there.
type onLink struct {
	of    *Ticket
	route Passage
	fresh bool // its Ack is its own
	at    time.Time
}

func newModem(t *testing.T) *modem {
	l := &modem{t: t, gate: New(Options{}), rate: 8e3, way: 600 * time.Millisecond, now: time.Unix(1e9, 0)}
	l.urgent, l.data = l.gate.Join(0, notify.New()), l.gate.Join(2, notify.New())
	l.free = l.now
	return l
}

// grant asks for n bytes of data, which the gate must grant.
func (l *modem) grant(n int) int {
	if ok, wait := l.data.Ask(n, l.now); !ok {
		l.t.Fatalf("the gate does not grant %d bytes, and says to wait %v", n, wait)
	}
	return n
}

func (l *modem) send(of *Ticket, p Passage, fresh bool) {
	if l.free.Before(l.now) {
		l.free = l.now
	}
	l.free = l.free.Add(time.Duration(float64(p.bytes+60) / l.rate * float64(time.Second)))
	l.longest = max(l.longest, l.free.Add(l.way/2).Sub(l.now))
	l.sent = append(l.sent, onLink{of, p, fresh, l.free.Add(l.way)})
}

// run sends as much data as the gate admits, for d.
func (l *modem) run(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		for {
			n := l.gate.BatchBytes(0)
			ok, _ := l.data.Ask(n, l.now)
			if !ok {
				break
			}
			l.send(l.data, l.data.Begin(n, n, l.now), true)
		}
		if len(l.sent) == 0 {
			l.t.Fatal("nothing is under way, and the gate admits nothing")
		}
		s := l.sent[0]
		l.sent, l.now = l.sent[1:], s.at
		l.carried += s.route.bytes
		s.of.End(s.route, s.fresh, l.now)
	}
}
