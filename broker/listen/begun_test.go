package listen

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/peers"
)

// A connection counts until its Close, or until its owner takes the count over.
func TestEntered(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		table := peers.New(peers.Limits{All: 1})
		entry, _ := table.Enter("a", time.Now(), near)
		c := &begun{Conn: near, entry: entry}
		if taken {
			if p, ok := Entered(tls.Server(c, &tls.Config{ServerName: "broker"})); !ok || p != entry {
				t.Errorf("entry %p, %v, want %p", p, ok, entry)
			}
		}
		_, _ = c.Close(), c.Close()
		next, _ := table.Enter("a", time.Now(), near)
		if want := map[bool]peers.Verdict{false: peers.Welcome, true: peers.Full}[taken]; next.Verdict() != want {
			t.Errorf("taken over %v: the next gets verdict %d, want %d", taken, next.Verdict(), want)
		}
		if _, ok := Entered(c); ok {
			t.Errorf("taken over %v: it counts after its end", taken)
		}
	}
	if _, ok := Entered(&net.TCPConn{}); ok {
		t.Error("a connection of another listener counts")
	}
}
