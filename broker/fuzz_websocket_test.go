package broker_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/limits"
)

// upgrade is the request that begins a WebSocket for MQTT.
const upgrade = "GET /mqtt HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"

// framed are packets in frames of a WebSocket, cut into several here and there, with control frames among them.
func framed(d *rand.Rand, packets [][]byte) (out []byte) {
	const last, ping, pong, end = 0x80, 9, 10, 8
	first := byte(2) // binary; then 0 until the last fragment
	for _, p := range packets {
		for len(p) > 0 {
			n := 1 + d.IntN(min(len(p), 125))
			part, more := p[:n], d.IntN(3) == 0
			p = p[n:]
			if more {
				out = append(out, frame(first, uint64(n), part...)...)
				first = 0
			} else {
				out = append(out, frame(last|first, uint64(n), part...)...)
				first = 2
			}
			switch d.IntN(12) {
			case 0:
				out = append(out, frame(last|ping, 2, 'h', 'i')...)
			case 1:
				out = append(out, frame(last|pong, 0)...)
			case 2:
				out = append(out, frame(last|end, 2, 0x03, 0xe8)...)
			}
		}
	}
	return out
}

// Mutated requests and frames end nothing but their connection: a client beside them is served throughout, and memory and
// goroutines are back at the end.
func TestRawWebSocket(t *testing.T) {
	connections := toSend(t, 15_000) / 10
	s := besiege(t, way{name: "ws", network: "ws", web: true}, limits.Limits{ConnectTimeout: patience})
	goroutines, before := runtime.NumGoroutine(), heap()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	sets := [][][]byte{seeds(t, 4, "fuzz", false), seeds(t, 5, "fuzz", false)}
	var begun atomic.Int64
	var wg sync.WaitGroup
	stuck := make(chan []byte, 4)
	for i := range uint64(3) {
		d := rand.New(rand.NewPCG(seed, i))
		wg.Go(func() {
			for begun.Add(1) <= connections {
				set := sets[d.IntN(len(sets))]
				request := []byte(upgrade)
				frames := framed(d, [][]byte{set[0], set[1+d.IntN(len(set)-1)], set[1+d.IntN(len(set)-1)]})
				if d.IntN(5) == 0 {
					request = mutate(d, request)
				} else {
					frames = mutate(d, frames)
				}
				if out := append(request, frames...); !ends(s, out) {
					stuck <- out
					return
				}
			}
		})
	}
	s.serveUntil(&wg)
	select {
	case out := <-stuck:
		t.Fatalf("after %q the broker neither answers nor closes", out)
	default:
	}
	s.over(goroutines, before)
}

// ends sends bytes and reports whether the broker ends the connection.
func ends(s *siege, out []byte) bool {
	c := s.socket()
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience)) // a connection that has ended says so at the read
	if _, err := io.Copy(c, bytes.NewReader(out)); err == nil {
		_ = c.(interface{ CloseWrite() error }).CloseWrite() // the same
	}
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
