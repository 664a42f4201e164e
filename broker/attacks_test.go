package broker_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/listen"
)

// A way is a transport that a client may attack by.
type way struct {
	name    string
	network listen.Network
	tls     bool
	web     bool
}

var ways = []way{
	{"tcp", broker.TCP, false, false}, {"tls", broker.TLS, true, false}, {"ws", broker.WS, false, true}, {"wss", broker.WS, true, true},
}

// A siege is a broker with one listener that is attacked, and a client beside the attackers that is to be served throughout.
type siege struct {
	way
	t      *testing.T
	b      *broker.Broker
	reg    *prometheus.Registry
	tls    *tls.Config
	cert   tls.Certificate // for a client with a certificate
	canary *raw
}

// attacked starts a broker with limits and the listener that is attacked, without a client beside the attackers.
func attacked(t *testing.T, w way, l limits.Limits) *siege { return attackedAs(t, w, free{}, l) }

// attackedAs is attacked of a broker whose clients a decides on.
func attackedAs(t *testing.T, w way, a broker.Access, l limits.Limits, more ...func(*broker.Options)) *siege {
	t.Helper()
	server, own := testTLS(t)
	server.ClientAuth = tls.RequestClientCert
	s := &siege{way: w, t: t, tls: own, cert: server.Certificates[0]}
	s.b, s.reg = start(t, a, func(o *broker.Options) {
		o.Logger, o.Limits = slog.New(slog.DiscardHandler), l
		at := broker.Listener{Name: "attacked", Network: w.network, Address: "127.0.0.1:0"}
		if w.tls {
			at.TLS = server
		}
		o.Listeners = append(o.Listeners, at)
		for _, change := range more {
			change(o)
		}
	})
	return s
}

// besiege starts the broker of a siege, with the client beside the attackers.
func besiege(t *testing.T, w way, l limits.Limits) *siege {
	t.Helper()
	s := attacked(t, w, l)
	until(t, "the canary is in", func() bool { // where a connection must be quick, a busy machine may need several
		c, err := s.dial()
		if err != nil {
			return false
		}
		if s.canary = rawOver(t, c); s.greet(s.canary, "canary") != nil {
			_ = c.Close()
			return false
		}
		t.Cleanup(func() { _ = c.Close() })
		return true
	})
	s.canary.subscribe("canary", 1)
	s.serve()
	return s
}

// socket is a connection to the listener below TLS and WebSocket.
func (s *siege) socket() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.b.Addr("attacked"))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// dial is a connection for MQTT.
func (s *siege) dial() (net.Conn, error) {
	switch {
	case s.web:
		scheme := "ws"
		if s.way.tls {
			scheme = "wss"
		}
		d := websocket.Dialer{Subprotocols: []string{"mqtt"}, TLSClientConfig: s.tls, HandshakeTimeout: patience}
		c, answer, err := d.Dial(scheme+"://"+s.b.Addr("attacked")+"/mqtt", nil)
		if err != nil {
			return nil, err
		}
		_ = answer.Body.Close()
		return &web{Conn: c}, nil
	case s.way.tls:
		return tls.Dial("tcp", s.b.Addr("attacked"), s.tls)
	}
	return net.Dial("tcp", s.b.Addr("attacked"))
}

// greet connects by MQTT; an error is the end of the connection.
func (s *siege) greet(r *raw, id string) error {
	connect := append([]byte{0x10, byte(15 + len(id)), 0, 4, 'M', 'Q', 'T', 'T', 5, 0x82, 0, 60, 0, 0, byte(len(id))}, id...)
	connect = append(connect, 0, 0)
	if _, err := r.conn.Write(connect); err != nil {
		return err
	}
	p, err := r.next()
	if err == nil && (p.FixedHeader.Type != packets.Connack || p.ReasonCode != 0) {
		err = fmt.Errorf("%s with 0x%02x", packets.PacketNames[p.FixedHeader.Type], p.ReasonCode)
	}
	return err
}

// attacker is a client that is connected by MQTT, changed by edit.
func (s *siege) attacker(id string, edit func(*packets.Packet)) *raw {
	s.t.Helper()
	c, err := s.dial()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	r := rawOver(s.t, c)
	r.mustConnect(id, edit)
	return r
}

// serve has the canary send itself a message.
func (s *siege) serve() {
	s.t.Helper()
	s.canary.publish("canary", "x", 1, 1)
	for acknowledged, got := false, false; !acknowledged || !got; {
		switch p, err := s.canary.next(); {
		case err != nil:
			s.t.Fatalf("the canary is not served: %v", err)
		case p.FixedHeader.Type == packets.Puback:
			acknowledged = true
		case p.FixedHeader.Type == packets.Publish:
			s.canary.ack(packets.Puback, p.PacketID)
			got = true
		default:
			s.t.Fatalf("the canary gets %s with 0x%02x", packets.PacketNames[p.FixedHeader.Type], p.ReasonCode)
		}
	}
	s.canary.ping()
}

// ends serves the canary until the broker has closed all of the connections.
func (s *siege) ends(list ...net.Conn) {
	s.t.Helper()
	ended := make(chan error, len(list))
	for _, c := range list {
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(patience)) // a connection that has ended says so at the read
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				ended <- err
				return
			}
			ended <- c.Close()
		}()
	}
	for range list {
		for waits := true; waits; {
			select {
			case err := <-ended:
				if errors.Is(err, os.ErrDeadlineExceeded) {
					s.t.Error("a connection of the attack has not ended")
				}
				waits = false
			case <-time.After(time.Millisecond):
				s.serve()
			}
		}
	}
}

// over checks that only the canary is left, and memory and goroutines are back.
func (s *siege) over(goroutines int, before int64) {
	s.t.Helper()
	s.serve()
	until(s.t, "all connections of the attack have ended", func() bool {
		return metric(s.t, s.reg, "clients_connected") == 1 && metric(s.t, s.reg, "write_buffer_bytes") == 0 && runtime.NumGoroutine() <= goroutines
	})
	if grown := heap() - before; grown > 8<<20 {
		s.t.Errorf("the heap has grown by %d kB", grown>>10)
	}
	if n := metric(s.t, s.reg, "refused_total", "panic"); n != 0 {
		s.t.Errorf("%v panics", n)
	}
}

// A web is a WebSocket as a stream of bytes: each Write is a message.
type web struct {
	*websocket.Conn
	rest io.Reader
}

func (w *web) Write(p []byte) (int, error) { return len(p), w.WriteMessage(websocket.BinaryMessage, p) }

func (w *web) Read(p []byte) (int, error) {
	for {
		if w.rest == nil {
			var err error
			if _, w.rest, err = w.NextReader(); err != nil {
				return 0, err
			}
		}
		n, err := w.rest.Read(p)
		if err == nil || n > 0 {
			return n, nil
		}
		if w.rest = nil; !errors.Is(err, io.EOF) {
			return 0, err
		}
	}
}

func (w *web) SetDeadline(t time.Time) error {
	return errors.Join(w.SetReadDeadline(t), w.SetWriteDeadline(t))
}

// frame is a frame of a WebSocket that a client sends, of an announced length.
func frame(first byte, announced uint64, payload ...byte) []byte {
	head := []byte{first, 0x80 | byte(announced)}
	if announced > 125 {
		head = binary.BigEndian.AppendUint64([]byte{first, 0x80 | 127}, announced)
	}
	return append(append(head, 0, 0, 0, 0), payload...) // a mask of zeros
}

// What a client that is connected can do, by each transport: only its connection ends, and the canary is served throughout.
func TestAttacksByConnectedClients(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			s := besiege(t, w, limits.Limits{WriteBuffer: 1 << 20, PacketBytes: 1 << 20})
			for _, attack := range []struct {
				name string
				run  func(s *siege)
			}{
				{"30 that never read", (*siege).neverRead},
				{"Receive Maximum 1, never acknowledged", (*siege).neverAcknowledges},
				{"pings without reading", (*siege).pingsUnread},
				{"a flood of pings", (*siege).pings},
				{"byte by byte", (*siege).byteByByte},
				{"a huge packet", (*siege).hugePacket},
			} {
				t.Run(attack.name, func(t *testing.T) {
					goroutines, before := runtime.NumGoroutine(), heap()
					s.t, s.canary.t = t, t
					attack.run(s)
					s.over(goroutines, before)
				})
			}
		})
	}
}

// neverRead: subscribers that read nothing more.
func (s *siege) neverRead() {
	const readers = 30
	before := metric(s.t, s.reg, "dropped_total", "slow_client")
	var list []net.Conn
	for i := range readers {
		r := s.attacker(fmt.Sprint("slow", i), nil)
		r.subscribe("much", 0)
		list = append(list, r.conn)
	}
	until(s.t, "they are disconnected", func() bool {
		put(s.t, s.b, broker.Message{Topic: "much", Payload: make([]byte, 128<<10)})
		s.serve()
		return metric(s.t, s.reg, "dropped_total", "slow_client") == before+readers
	})
	s.ends(list...)
}

// neverAcknowledges: a subscriber that takes one message at a time, and never says that it has it.
func (s *siege) neverAcknowledges() {
	r := s.attacker("one", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 })
	r.subscribe("one", 1)
	until(s.t, "it is disconnected", func() bool {
		put(s.t, s.b, broker.Message{Topic: "one", Payload: make([]byte, 64<<10), QoS: 1})
		s.serve()
		return metric(s.t, s.reg, "dropped_total", "unacknowledged") == 1
	})
	r.want(packets.Publish)
	r.wantCode(packets.Disconnect, packets.ErrQuotaExceeded.Code)
	s.ends(r.conn)
}

// pingsUnread: a client that asks and asks, and reads no answer. Pings alone would be millions until what the systems of
// both ends keep is full, so there are questions with longer answers among them.
func (s *siege) pingsUnread() {
	const filters = 1000
	r := s.attacker("asks", nil)
	flood := bytes.Repeat([]byte{packets.Pingreq << 4, 0}, 200)
	length := 3 + 3*filters
	one := append([]byte{packets.Unsubscribe<<4 | 2, byte(length) | 0x80, byte(length >> 7), 0, 1, 0}, bytes.Repeat([]byte{0, 1, 't'}, filters)...)
	flood = append(flood, bytes.Repeat(one, 10)...)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			if _, err := r.conn.Write(flood); err != nil {
				return
			}
		}
	}()
	for ended := false; !ended; {
		select {
		case <-sent:
			ended = true
		case <-time.After(time.Millisecond):
			s.serve()
		}
	}
	if metric(s.t, s.reg, "dropped_total", "slow_client") == 0 {
		s.t.Error("it is not counted as a slow client")
	}
	s.ends(r.conn)
}

// pings: a client that reads the answers to as many pings as it can send is served like any other.
func (s *siege) pings() {
	const rounds, each = 50, 1000
	r := s.attacker("pings", nil)
	flood := make([]byte, 0, 2*each)
	for range each {
		flood = append(flood, packets.Pingreq<<4, 0)
	}
	for range rounds {
		if _, err := r.conn.Write(flood); err != nil {
			s.t.Fatal(err)
		}
		for range each {
			r.want(packets.Pingresp)
		}
		s.serve()
	}
	_ = r.conn.Close()
}

// byteByByte: each byte in a record, a message, or a fragment of its own. It is slow, and served.
func (s *siege) byteByByte() {
	r := s.attacker("bytes", nil)
	p := []byte{packets.Publish<<4 | 2, 8, 0, 1, 't', 0, 1, 0, 'x', 'y'}
	for round := range 50 {
		for i := range p {
			if _, err := r.conn.Write(p[i : i+1]); err != nil {
				s.t.Fatal(err)
			}
		}
		r.want(packets.Puback)
		if round%10 == 0 {
			s.serve()
		}
	}
	if w, ok := r.conn.(*web); ok {
		for i := range p {
			first := byte(0) // a fragment that is not the last
			if i == 0 {
				first = websocket.BinaryMessage
			}
			if i == len(p)-1 {
				first |= 0x80
			}
			if _, err := w.NetConn().Write(frame(first, 1, p[i])); err != nil {
				s.t.Fatal(err)
			}
		}
		r.want(packets.Puback)
	}
	_ = r.conn.Close()
}

// hugePacket: packets, and frames of WebSockets, that say they are very large.
func (s *siege) hugePacket() {
	var list []net.Conn
	for i := range 10 {
		r := s.attacker(fmt.Sprint("packet", i), nil)
		if _, err := r.conn.Write([]byte{packets.Publish << 4, 0xff, 0xff, 0xff, 0x7f, 0, 1, 't'}); err != nil {
			s.t.Fatal(err)
		}
		r.wantCode(packets.Disconnect, packets.ErrPacketTooLarge.Code)
		list = append(list, r.conn)
		if !s.web {
			continue
		}
		for _, announced := range []uint64{1 << 30, 1<<63 - 1, 1 << 63} {
			r := s.attacker(fmt.Sprint("frame", i, announced), nil)
			if _, err := r.conn.(*web).NetConn().Write(frame(0x80|websocket.BinaryMessage, announced, 0xc0)); err != nil {
				s.t.Fatal(err)
			}
			list = append(list, r.conn)
		}
	}
	s.ends(list...)
}

// What one can do before CONNECT, by each transport: it ends with limits.connectTimeout, however much comes meanwhile.
func TestAttacksBeforeConnect(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			s := besiege(t, w, limits.Limits{ConnectTimeout: time.Second})
			hello := []byte("GET /mqtt HTTP/1.1\r\nHost: broker\r\nX-Long: aaaaaaaa")
			if w.tls {
				hello = []byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9} // of 512 bytes
			} else if !w.web {
				hello = []byte{0x10, 100, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60}
			}
			goroutines, before := runtime.NumGoroutine(), heap()
			var list []net.Conn
			for i := range 40 {
				c := s.socket()
				t.Cleanup(func() { _ = c.Close() })
				switch i % 4 {
				case 0: // says nothing
				case 1:
					_, _ = c.Write(hello)
				case 2: // one byte after the other, for as long as it is taken
					go func() {
						next := time.NewTicker(20 * time.Millisecond)
						defer next.Stop()
						for i := 0; ; i = min(i+1, len(hello)-1) {
							if _, err := c.Write(hello[i : i+1]); err != nil {
								return
							}
							<-next.C
						}
					}()
				case 3: // a record, a request, a packet that is none or too large
					_, _ = c.Write([]byte{22, 3, 3, 0xff, 0xff, 0xff, 0xff, 0x7f})
				}
				list = append(list, c)
			}
			s.ends(list...)
			s.over(goroutines, before)
		})
	}
}
