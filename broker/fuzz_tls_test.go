package broker_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/limits"
)

// overTLS is the transport that is attacked here.
var overTLS = way{name: "tls", network: "tls", tls: true}

// A mangler is the socket of a TLS client. It spoils one of the writes to it, leaves out what comes behind, and
// ends its direction, so that the broker does not wait for more.
type mangler struct {
	net.Conn
	d      *rand.Rand
	intact int // so many writes stay as they are
	spoil  func(d *rand.Rand, p []byte) []byte
	over   bool
}

func (m *mangler) Write(p []byte) (int, error) {
	if m.over {
		return len(p), nil // it has ended its direction
	}
	if m.intact--; m.intact >= 0 {
		return m.Conn.Write(p)
	}
	if _, err := m.Conn.Write(m.spoil(m.d, p)); err != nil {
		return 0, err
	}
	m.over = true
	return len(p), m.Conn.(*net.TCPConn).CloseWrite()
}

// In pieces of some bytes, as a slow link brings them: nothing of it is wrong.
type pieces struct {
	net.Conn
	d *rand.Rand
}

func (c pieces) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 1 + c.d.IntN(min(len(rest), 40))
		if _, err := c.Conn.Write(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// record is a record of TLS that says to have n bytes.
func record(kind byte, n int, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{kind, 3, 3}, uint16(n)), body...)
}

// spoilers are what is done to records of a client, at any moment of its handshake and after it.
var spoilers = []func(d *rand.Rand, p []byte) []byte{
	mutate,
	func(d *rand.Rand, p []byte) []byte { return p[:d.IntN(len(p))] },              // cut
	func(_ *rand.Rand, p []byte) []byte { return append(p[:len(p):len(p)], p...) }, // twice
	func(d *rand.Rand, p []byte) []byte { // its length is another one
		p = bytes.Clone(p)
		binary.BigEndian.PutUint16(p[3:], uint16(d.IntN(1<<16)))
		return p
	},
	func(_ *rand.Rand, p []byte) []byte { // a handshake of 16 MB is announced
		p = bytes.Clone(p)
		copy(p[6:], []byte{0xff, 0xff, 0xff})
		return p
	},
	func(d *rand.Rand, p []byte) []byte { // records of which nothing follows, before it
		kinds := []byte{20, 21, 22, 23, 24, byte(d.IntN(256))}
		var out []byte
		for range 1 + d.IntN(100) {
			switch kind := kinds[d.IntN(len(kinds))]; kind {
			case 20: // change of the cipher
				out = append(out, record(kind, 1, 1)...)
			case 21: // warnings
				out = append(out, record(kind, 2, 1, byte(d.IntN(256)))...)
			default:
				out = append(out, record(kind, 0)...)
			}
		}
		return append(out, p...)
	},
	func(d *rand.Rand, p []byte) []byte { // a handshake message of one byte in each record
		var out []byte
		for _, b := range p[5:] {
			out = append(out, record(22, 1, b)...)
		}
		return out[:d.IntN(len(out)+1)]
	},
}

// tlsRound makes one connection with a spoilt handshake, or with spoilt records behind it. False says that the broker
// neither answers nor closes it.
func (s *siege) tlsRound(d *rand.Rand, set [][]byte) bool {
	socket := s.socket()
	defer func() { _ = socket.Close() }()
	_ = socket.SetDeadline(time.Now().Add(patience)) // a connection that has ended says so at the read
	config := s.tls.Clone()
	if d.IntN(2) == 0 {
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	}
	config.ServerName = "127.0.0.1"
	under := &mangler{Conn: socket, d: d, intact: d.IntN(6), spoil: spoilers[d.IntN(len(spoilers))]}
	c := tls.Client(under, config)
	if d.IntN(8) == 0 {
		c = tls.Client(pieces{socket, d}, config)
	}
	for _, p := range [][]byte{set[0], set[1+d.IntN(len(set)-1)], mutate(d, set[1+d.IntN(len(set)-1)])} {
		if _, err := c.Write(p); err != nil { // the first one is behind the handshake
			break
		}
	}
	_ = c.CloseWrite()                     // where the handshake came to its end
	_ = socket.(*net.TCPConn).CloseWrite() // again, where it was spoilt
	_, err := io.Copy(io.Discard, socket)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// Handshakes and records that are spoilt, cut, repeated, or come in pieces end nothing but their connection: a client
// beside them is served throughout, beside handshakes that go no further, too, and memory and goroutines are back at the end.
func TestRawTLS(t *testing.T) {
	const halfway = 200
	connections := toSend(t, 30_000) / 10
	s := besiege(t, overTLS, limits.Limits{ConnectTimeout: patience})
	goroutines, before := runtime.NumGoroutine(), heap()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d := rand.New(rand.NewPCG(seed, 99))
	hello := clientHello(t, s.tls)
	var idle []net.Conn
	for range halfway {
		c := s.socket()
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write(hello[:1+d.IntN(len(hello)-1)]); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	sets := [][][]byte{seeds(t, 4, "fuzz", false), seeds(t, 5, "fuzz", false)}
	var begun atomic.Int64
	var wg sync.WaitGroup
	stuck := make(chan int64, 4)
	for i := range uint64(3) {
		d := rand.New(rand.NewPCG(seed, i))
		wg.Go(func() {
			for n := begun.Add(1); n <= connections; n = begun.Add(1) {
				if !s.tlsRound(d, sets[d.IntN(len(sets))]) {
					stuck <- n
					return
				}
			}
		})
	}
	s.serveUntil(&wg)
	select {
	case n := <-stuck:
		t.Fatalf("in round %d the broker neither answers nor closes", n)
	default:
	}
	for _, c := range idle { // TestAttacksBeforeConnect has the broker end such ones
		_ = c.Close()
	}
	s.over(goroutines, before)
}

// serveUntil serves the client beside the attackers until they have ended.
func (s *siege) serveUntil(wg *sync.WaitGroup) {
	s.t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
			s.serve()
		}
	}
}

// clientHello is what a client of TLS says first.
func clientHello(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	config = config.Clone()
	config.ServerName = "127.0.0.1"
	go func() { _ = tls.Client(near, config).Handshake() }() // it ends with the pipe
	b := make([]byte, 1<<14)
	n, err := far.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// A client that asks for another handshake on an open connection, or for new keys without end, loses that connection.
func TestRenegotiation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, command, says string }{
		{"-tls1_2", "R", "RENEGOTIATING"},
		{"-tls1_3", "K", "KEYUPDATE"},
	} {
		t.Run(c.version, func(t *testing.T) {
			t.Parallel()
			s := besiege(t, overTLS, limits.Limits{ConnectTimeout: patience})
			goroutines, before := runtime.NumGoroutine(), heap()
			cmd := exec.CommandContext(t.Context(), "openssl", "s_client", c.version, "-connect", s.b.Addr("attacked"), "-legacy_renegotiation")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, says := io.Pipe()
			cmd.Stdout, cmd.Stderr = says, says
			if err := cmd.Start(); err != nil {
				t.Fatalf("%v: scripts/setup --with-test-peers installs openssl", err)
			}
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait() // with an error, as it was cut off
				_ = says.Close()
				close(ended)
			}()
			asked := 0
			var seen strings.Builder
			for b := make([]byte, 4096); ; {
				n, err := out.Read(b)
				seen.Write(b[:n])
				if err != nil {
					break
				}
				if text := seen.String(); asked == 0 && strings.Contains(text, "Verify return code") || asked > 0 && strings.Count(text, c.says) >= asked {
					asked++
					_, _ = io.WriteString(in, c.command+"\n") // it may have ended
				}
			}
			<-ended
			if asked == 0 || strings.Count(seen.String(), c.says) == 0 {
				t.Errorf("asked %d times: %s", asked, seen.String())
			}
			s.over(goroutines, before)
		})
	}
}
