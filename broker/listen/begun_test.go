package listen

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/colonyfleet/colony/broker/peers"
)

// A connection counts until its Close, or until somebody takes the count over.
func TestEntered(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		left := 0
		c := &begun{Conn: near, verdict: peers.TooFast, leave: func(_ net.Addr, v peers.Verdict) {
			if left++; v != peers.TooFast {
				t.Errorf("verdict %d, want %d", v, peers.TooFast)
			}
		}}
		if taken {
			if v, ok := Entered(tls.Server(c, &tls.Config{ServerName: "broker"})); !ok || v != peers.TooFast {
				t.Errorf("verdict %d, %v, want %d", v, ok, peers.TooFast)
			}
		}
		_, _ = c.Close(), c.Close()
		if want := map[bool]int{false: 1, true: 0}[taken]; left != want {
			t.Errorf("taken over %v: left %d times, want %d", taken, left, want)
		}
		if _, ok := Entered(c); ok {
			t.Errorf("taken over %v: it counts after its end", taken)
		}
	}
	if _, ok := Entered(&net.TCPConn{}); ok {
		t.Error("a connection of another listener counts")
	}
}
