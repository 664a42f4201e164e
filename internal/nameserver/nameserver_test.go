package nameserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testZone = &Zone{
	Names: map[string][]netip.Addr{
		"db":        {netip.MustParseAddr("10.1.0.2")},
		"db.shop":   {netip.MustParseAddr("10.1.0.2")},
		"six":       {netip.MustParseAddr("fd00::2"), netip.MustParseAddr("10.1.0.6")},
		"reserved-": nil,
	},
	Pointers: map[netip.Addr]string{netip.MustParseAddr("10.1.0.2"): "db.shop"},
}

// question packs a question, with or without EDNS.
func question(t testing.TB, name string, of dnsmessage.Type, edns bool) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: of, Class: dnsmessage.ClassINET}},
	}
	if edns {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(4096, dnsmessage.RCodeSuccess, false); err != nil {
			t.Fatal(err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unpack(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unpack %x: %v", b, err)
	}
	return m
}

// said writes the answers of a message in one line.
func said(m dnsmessage.Message) string {
	var all []string
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			all = append(all, netip.AddrFrom4(body.A).String())
		case *dnsmessage.AAAAResource:
			all = append(all, netip.AddrFrom16(body.AAAA).String())
		case *dnsmessage.PTRResource:
			all = append(all, body.PTR.String())
		}
	}
	return fmt.Sprintf("%s %s", m.RCode, strings.Join(all, " "))
}

func TestReply(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		of   dnsmessage.Type
		want string // empty: passed on
	}{
		{"db.", dnsmessage.TypeA, "RCodeSuccess 10.1.0.2"},
		{"DB.Shop.", dnsmessage.TypeA, "RCodeSuccess 10.1.0.2"},
		{"db.", dnsmessage.TypeAAAA, "RCodeSuccess "},
		{"db.", dnsmessage.TypeMX, "RCodeSuccess "},
		{"six.", dnsmessage.TypeAAAA, "RCodeSuccess fd00::2"},
		{"six.", dnsmessage.TypeALL, "RCodeSuccess fd00::2 10.1.0.6"},
		{"reserved-.", dnsmessage.TypeA, "RCodeSuccess "},
		{"db.elsewhere.", dnsmessage.TypeA, ""},
		{"2.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, "RCodeSuccess db.shop."},
		{"2.0.1.10.in-addr.arpa.", dnsmessage.TypeA, "RCodeSuccess "},
		{"3.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, ""},
		{"300.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, ""},
		{".", dnsmessage.TypeNS, ""},
	} {
		for _, edns := range []bool{false, true} {
			answer, forward := reply(question(t, c.name, c.of, edns), testZone)
			if forward != (c.want == "") {
				t.Errorf("%s %s: passed on: %v", c.name, c.of, forward)
				continue
			}
			if forward {
				continue
			}
			m := unpack(t, answer)
			if got := said(m); got != c.want {
				t.Errorf("%s %s: %q, want %q", c.name, c.of, got, c.want)
			}
			if m.ID != 4711 || !m.Response || !m.RecursionDesired || !m.RecursionAvailable || len(m.Questions) != 1 || m.Questions[0].Name.String() != c.name {
				t.Errorf("%s: header %+v and questions %v are not those of an answer", c.name, m.Header, m.Questions)
			}
			if has := len(m.Additionals) == 1; has != edns {
				t.Errorf("%s: EDNS in the answer: %v, in the question: %v", c.name, has, edns)
			}
		}
	}
}

func TestReplyToWhatIsNoQuestion(t *testing.T) {
	t.Parallel()
	query := question(t, "db.", dnsmessage.TypeA, false)
	change := func(f func(b []byte) []byte) []byte { return f(slices.Clone(query)) }
	for name, c := range map[string]struct {
		b    []byte
		want string // empty: silence
	}{
		"an answer":      {change(func(b []byte) []byte { b[2] |= 0x80; return b }), ""},
		"too short":      {query[:7], ""},
		"an update":      {change(func(b []byte) []byte { b[2] |= 5 << 3; return b }), "RCodeNotImplemented "},
		"no question":    {change(func(b []byte) []byte { b[5] = 0; return b }), "RCodeFormatError "},
		"cut off":        {query[:len(query)-3], "RCodeFormatError "},
		"two questions":  {change(func(b []byte) []byte { b[5] = 2; return append(b, b[headerSize:]...) }), "RCodeFormatError "},
		"another class":  {change(func(b []byte) []byte { b[len(b)-1] = 3; return b }), "passed on"},
		"a name unknown": {question(t, "x.", dnsmessage.TypeA, false), "passed on"},
	} {
		answer, forward := reply(c.b, testZone)
		got := ""
		switch {
		case forward:
			got = "passed on"
		case answer != nil:
			got = said(unpack(t, answer))
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add(question(f, "db.", dnsmessage.TypeA, true))
	f.Add(question(f, "2.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, forward := reply(b, testZone)
		if forward && answer != nil {
			t.Fatal("answered and passed on")
		}
		if answer != nil {
			if m := unpack(t, answer); !m.Response || binary.BigEndian.Uint16(b) != m.ID {
				t.Fatalf("%+v is no answer", m.Header)
			}
		}
		if forward {
			_ = answers(b, b)
			_ = serverFailure(b)
		}
	})
}

// An upstream is a name server of a test, by UDP and TCP on one port.
type upstream struct {
	addr  netip.AddrPort
	asked atomic.Int32
}

// newUpstream starts a server that answers with what f returns; nil is silence.
func newUpstream(t *testing.T, f func(network string, q dnsmessage.Message) *dnsmessage.Message) *upstream {
	t.Helper()
	l, p := bothSockets(t)
	u := &upstream{addr: netip.MustParseAddrPort(l.Addr().String())}
	answer := func(network string, b []byte) []byte {
		u.asked.Add(1)
		m := f(network, unpack(t, b))
		if m == nil {
			return nil
		}
		out, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return out
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 4096)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := answer("udp", buf[:n]); out != nil {
				_, _ = p.WriteTo(out, from)
			}
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if b, err := readTCP(c, 4096); err == nil {
				if out := answer("tcp", b); out != nil {
					_ = writeTCP(c, out)
				}
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _, _, _, _ = l.Close(), p.Close(), <-done, <-done })
	return u
}

// fixed answers every question with one address, or with a code.
func fixed(code dnsmessage.RCode, address string) func(string, dnsmessage.Message) *dnsmessage.Message {
	return func(_ string, q dnsmessage.Message) *dnsmessage.Message {
		q.Response, q.RCode = true, code
		if address != "" {
			q.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
			}}
		}
		return &q
	}
}

// serve starts an asker "a" and returns its address.
// bothSockets returns sockets for TCP and UDP with one port. Another test may have the port of TCP for UDP already.
func bothSockets(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, p
		}
		_ = l.Close()
	}
	t.Fatal("no port is free for TCP and UDP")
	return nil, nil
}

func serve(t *testing.T, s *Server, zone *Zone) string {
	t.Helper()
	l, p := bothSockets(t)
	s.Serve("a", Sockets{UDP: p, TCP: l}, zone)
	return l.Addr().String()
}

func newServer(t *testing.T, o Options, list ...*upstream) *Server {
	t.Helper()
	s := New(o)
	t.Cleanup(s.Close)
	var addrs []netip.AddrPort
	for _, u := range list {
		addrs = append(addrs, u.addr)
	}
	s.SetUpstreams(addrs)
	return s
}

// query asks a server and returns what it said, or an empty text for silence.
func query(t *testing.T, network, address, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return ""
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	q := question(t, name, dnsmessage.TypeA, true)
	var answer []byte
	if network == "tcp" {
		if err = writeTCP(c, q); err == nil {
			answer, err = readTCP(c, 1<<16)
		}
	} else if _, err = c.Write(q); err == nil {
		answer = make([]byte, 1<<16)
		var n int
		n, err = c.Read(answer)
		answer = answer[:n]
	}
	if err != nil {
		return ""
	}
	m := unpack(t, answer)
	if m.ID != 4711 {
		t.Errorf("the answer has the id %d", m.ID)
	}
	return said(m)
}

func TestForwards(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second func(string, dnsmessage.Message) *dnsmessage.Message
		want          string
	}{
		"the first answers":       {fixed(0, "1.1.1.1"), fixed(0, "2.2.2.2"), "RCodeSuccess 1.1.1.1"},
		"the first is silent":     {func(string, dnsmessage.Message) *dnsmessage.Message { return nil }, fixed(0, "2.2.2.2"), "RCodeSuccess 2.2.2.2"},
		"the first fails":         {fixed(dnsmessage.RCodeServerFailure, ""), fixed(0, "2.2.2.2"), "RCodeSuccess 2.2.2.2"},
		"the first refuses":       {fixed(dnsmessage.RCodeRefused, ""), fixed(0, "2.2.2.2"), "RCodeSuccess 2.2.2.2"},
		"there is no such name":   {fixed(dnsmessage.RCodeNameError, ""), fixed(0, "2.2.2.2"), "RCodeNameError "},
		"both fail":               {fixed(dnsmessage.RCodeServerFailure, ""), fixed(dnsmessage.RCodeServerFailure, ""), "RCodeServerFailure "},
		"another's answer first":  {misled, fixed(0, "2.2.2.2"), "RCodeSuccess 2.2.2.2"},
		"both are silent":         {func(string, dnsmessage.Message) *dnsmessage.Message { return nil }, func(string, dnsmessage.Message) *dnsmessage.Message { return nil }, "RCodeServerFailure "},
		"the answer has no error": {fixed(0, ""), fixed(0, "2.2.2.2"), "RCodeSuccess "},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+" by "+network, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, Options{Timeout: time.Second}, newUpstream(t, c.first), newUpstream(t, c.second))
				if got := query(t, network, serve(t, s, testZone), "example.org."); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		}
	}
}

// misled answers another question than the one that was asked, as a forger would.
func misled(_ string, q dnsmessage.Message) *dnsmessage.Message {
	q.Questions[0].Name = dnsmessage.MustNewName("bank.example.")
	return fixed(0, "6.6.6.6")("", q)
}

// An answer that was cut off goes to the asker, which asks by TCP; so is the name server.
func TestTruncated(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(network string, q dnsmessage.Message) *dnsmessage.Message {
		if network == "tcp" {
			return fixed(0, "1.1.1.1")(network, q)
		}
		q.Response, q.Truncated = true, true
		return &q
	})
	s := newServer(t, Options{}, u)
	at := serve(t, s, testZone)
	if got := query(t, "udp", at, "example.org."); got != "RCodeSuccess " {
		t.Errorf("by UDP: %q", got)
	}
	if got := query(t, "tcp", at, "example.org."); got != "RCodeSuccess 1.1.1.1" {
		t.Errorf("by TCP: %q", got)
	}
}

// A name server that does not answer is asked last for a while.
func TestSilentUpstreamIsAskedLast(t *testing.T) {
	t.Parallel()
	silent := newUpstream(t, func(string, dnsmessage.Message) *dnsmessage.Message { return nil })
	s := newServer(t, Options{Timeout: 200 * time.Millisecond}, silent, newUpstream(t, fixed(0, "2.2.2.2")))
	at := serve(t, s, testZone)
	for range 5 {
		if got := query(t, "udp", at, "example.org."); got != "RCodeSuccess 2.2.2.2" {
			t.Errorf("answered %q", got)
		}
	}
	if n := silent.asked.Load(); n != 1 {
		t.Errorf("the silent one was asked %d times, want once", n)
	}
}

func TestZonesAndUpstreamsChange(t *testing.T) {
	t.Parallel()
	s := newServer(t, Options{}, newUpstream(t, fixed(dnsmessage.RCodeNameError, "")))
	at := serve(t, s, testZone)
	if got := query(t, "udp", at, "db."); got != "RCodeSuccess 10.1.0.2" {
		t.Errorf("db: %q", got)
	}
	if !s.SetZone("a", &Zone{}) || s.SetZone("b", &Zone{}) {
		t.Error("SetZone says of a that it is no asker, or of b that it is one")
	}
	if got := query(t, "udp", at, "db."); got != "RCodeNameError " {
		t.Errorf("db, removed: %q", got)
	}
	other := newUpstream(t, fixed(0, "3.3.3.3"))
	s.SetUpstreams([]netip.AddrPort{other.addr})
	if got := query(t, "udp", at, "db."); got != "RCodeSuccess 3.3.3.3" {
		t.Errorf("db by another name server: %q", got)
	}
	own := newUpstream(t, fixed(0, "4.4.4.4"))
	s.SetZone("a", &Zone{Upstreams: []netip.AddrPort{own.addr}})
	if got := query(t, "tcp", at, "db."); got != "RCodeSuccess 4.4.4.4" {
		t.Errorf("db by a name server of its own: %q", got)
	}
	s.SetUpstreams(nil)
	s.SetZone("a", &Zone{})
	if got := query(t, "udp", at, "db."); got != "RCodeServerFailure " {
		t.Errorf("db without a name server: %q", got)
	}
}

// Stop and Close end what waits for a name server, and close the sockets.
func TestStop(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	u := newUpstream(t, func(string, dnsmessage.Message) *dnsmessage.Message { asked <- struct{}{}; return nil })
	s := newServer(t, Options{Timeout: time.Hour}, u)
	at := serve(t, s, testZone)
	conn, err := net.Dial("tcp", at) // a connection that asks nothing
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(question(t, "example.org.", dnsmessage.TypeA, false)); err != nil {
		t.Fatal(err)
	}
	<-asked
	s.Stop("a")
	s.Stop("a")
	if got := query(t, "tcp", at, "db."); got != "" {
		t.Errorf("answered %q after Stop", got)
	}
	s.Close()
	if got := query(t, "tcp", serve(t, s, testZone), "db."); got != "" {
		t.Errorf("answered %q after Close", got)
	}
}

// An asker that floods the server loses its own questions, and others lose none.
func TestFlood(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(string, dnsmessage.Message) *dnsmessage.Message { return nil })
	s := newServer(t, Options{Timeout: time.Hour, Concurrent: 2}, u)
	at := serve(t, s, testZone)
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 50 {
		if _, err := c.Write(question(t, "example.org.", dnsmessage.TypeA, false)); err != nil {
			t.Fatal(err)
		}
	}
	if got := query(t, "udp", at, "db."); got != "RCodeSuccess 10.1.0.2" {
		t.Errorf("db: %q", got)
	}
	if n := u.asked.Load(); n > 2 {
		t.Errorf("%d questions were passed on at a time, want at most 2", n)
	}
}

func TestParseResolvConf(t *testing.T) {
	t.Parallel()
	c := ParseResolvConf([]byte("# made by dhcp\nnameserver 192.168.1.1\n; x\nnameserver fe80::1%eth0\nnameserver nonsense\ndomain old\nsearch a.example b.example\noptions edns0 trust-ad\noptions rotate\nsortlist x\n"))
	if got := fmt.Sprint(c.Servers, c.Search, c.Options); got != "[192.168.1.1 fe80::1%eth0] [a.example b.example] [edns0 trust-ad rotate]" {
		t.Errorf("read %s", got)
	}
	if got := fmt.Sprint(Upstreams(c.Servers)); got != "[192.168.1.1:53 [fe80::1%eth0]:53]" {
		t.Errorf("upstreams %s", got)
	}
}
