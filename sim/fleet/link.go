package fleet

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// keepAlive is the keep-alive of all connections. Silence of 1.5 times that ends one.
const keepAlive = 30 * time.Second

// An end is what a link does to the two that it connects.
type end interface {
	// running reports whether the process is there to connect.
	running() bool
	// up says that a connection of this name is there.
	up(session string)
	// down says that it is not there any more.
	down(session string)
}

// A direction of a link.
type direction int

const (
	upward   direction = iota // from the client to the server
	downward                  // from the server to the client
)

// A link is the network between a client, which connects, and a server. What is sent
// on a connection arrives in order and once, or not at all where the connection ends
// before.
type link struct {
	w              *world
	name           string
	client, server end
	rng            *rand.Rand
	delay          time.Duration // one way; up to as much again is drawn
	loss           float64       // of the messages; each loss costs a retransmission

	cut     bool
	number  int              // of the connection
	there   bool             // there is one
	arrival [2]time.Duration // of the last message each way
	held    []func()         // what arrives after the cut, if the connection lives until then
	silence *event           // ends the connection
	retry   *event           // connects
	backoff retry.Backoff
}

// newLink returns a link that connects once reconnect was called.
func newLink(w *world, name string, client, server end) *link {
	l := &link{
		w: w, name: name, client: client, server: server, rng: w.draws("link/" + name),
		delay: 10 * time.Millisecond, loss: 0.01,
	}
	l.backoff = retry.Backoff{Policy: retry.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second, Jitter: 1}, Rand: l.rng}
	return l
}

// reconnect connects after the next wait.
func (l *link) reconnect() {
	l.retry.stop()
	l.retry = l.w.after(l.backoff.Next(), l.connect)
}

func (l *link) session() string { return fmt.Sprintf("%s#%d", l.name, l.number) }

func (l *link) connect() {
	if l.there { // the client came back before its silence was noticed
		l.drop()
	}
	if l.cut || !l.client.running() || !l.server.running() {
		l.reconnect()
		return
	}
	l.retry.stop()
	l.backoff.Reset()
	l.there = true
	l.number++
	l.w.logf(l.name, "connected as %s", l.session())
	l.server.up(l.session())
	l.client.up(l.session())
}

// send delivers a message on the present connection, if there is one. It arrives only
// while that connection lives.
func (l *link) send(way direction, deliver func()) {
	if !l.there {
		return
	}
	at := l.w.now + l.delay + between(l.rng, 0, l.delay)
	for rto := 200 * time.Millisecond; l.rng.Float64() < l.loss; rto *= 2 {
		at += rto
	}
	at = max(at, l.arrival[way])
	l.arrival[way] = at
	number := l.number
	l.w.after(at-l.w.now, func() {
		switch {
		case number != l.number || !l.there:
		case l.cut:
			l.held = append(l.held, deliver)
		default:
			deliver()
		}
	})
}

// sever cuts the link. Neither end notices before its patience ends.
func (l *link) sever() {
	if l.cut {
		return
	}
	l.w.logf(l.name, "cut")
	l.cut = true
	l.fallSilent()
}

// fallSilent ends the connection after the keep-alive's time.
func (l *link) fallSilent() {
	l.silence.stop()
	l.silence = l.w.after(keepAlive*3/2, l.drop)
}

// restore ends a cut.
func (l *link) restore() {
	if !l.cut {
		return
	}
	l.w.logf(l.name, "restored")
	l.cut = false
	l.silence.stop()
	held := l.held
	l.held = nil
	for _, deliver := range held {
		if l.there {
			deliver()
		}
	}
}

// drop ends the connection for both ends.
func (l *link) drop() {
	if !l.there {
		return
	}
	l.silence.stop()
	session := l.session()
	l.there, l.held, l.arrival = false, nil, [2]time.Duration{}
	l.w.logf(l.name, "connection %s ended", session)
	l.server.down(session)
	l.client.down(session)
	l.reconnect()
}
