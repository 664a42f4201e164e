package broker_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/limits"
)

// certificate writes a new certificate for 127.0.0.1 and its key, and returns its number.
func certificate(t *testing.T, chain, key string) *big.Int {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: number, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{chain: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return number
}

// secure connects over TLS with any certificate, and returns which that was.
func secure(t *testing.T, addr string, version uint16) (*raw, *big.Int, error) {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}) //nolint:gosec // the certificate is what the test looks at
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return &raw{t: t, conn: c, r: bufio.NewReader(c), version: 5}, c.ConnectionState().PeerCertificates[0].SerialNumber, nil
}

// A certificate is read from files, and again when they change. Connections that are
// there stay; files that do not fit together change nothing. TLS is 1.2 or 1.3.
func TestCertificateReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chain, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first := certificate(t, chain, key)
	var log lines
	b, _ := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Listeners = append(o.Listeners, broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", Certificate: chain, Key: key})
	})
	addr := b.Addr("tls")
	if _, _, err := secure(t, addr, tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	old, number, err := secure(t, addr, tls.VersionTLS12)
	if err != nil || number.Cmp(first) != 0 {
		t.Fatalf("TLS 1.2: certificate %v, %v, want %v", number, err, first)
	}
	old.mustConnect("old", nil)
	second := certificate(t, chain, key)
	until(t, "new connections get the new certificate", func() bool {
		_, number, err := secure(t, addr, tls.VersionTLS13)
		return err == nil && number.Cmp(second) == 0
	})
	if err := os.WriteFile(key, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the fault is logged, and the certificate stays", func() bool {
		_, number, err := secure(t, addr, tls.VersionTLS13)
		return err == nil && number.Cmp(second) == 0 && log.has("level=ERROR", "certificate not read", key)
	})
	old.ping()
}

// Pages of other hosts connect by WebSocket only if their origin is listed; what is not a
// browser always may.
func TestWebSocketOrigins(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Listeners = append(o.Listeners,
			broker.Listener{Name: "own", Network: broker.WS, Address: "127.0.0.1:0"},
			broker.Listener{Name: "hmi", Network: broker.WS, Address: "127.0.0.1:0", Origins: []string{"https://hmi.example"}},
			broker.Listener{Name: "any", Network: broker.WS, Address: "127.0.0.1:0", Origins: []string{"*"}})
	})
	for _, c := range []struct {
		listener, origin string
		ok               bool
	}{
		{"own", "", true},
		{"own", "http://" + b.Addr("own"), true},
		{"own", "https://hmi.example", false},
		{"hmi", "https://hmi.example", true},
		{"hmi", "http://hmi.example", false},
		{"hmi", "https://evil.example", false},
		{"hmi", "null", false},
		{"any", "https://evil.example", true},
	} {
		header := http.Header{}
		if c.origin != "" {
			header.Set("Origin", c.origin)
		}
		d := websocket.Dialer{Subprotocols: []string{"mqtt"}}
		conn, resp, err := d.DialContext(t.Context(), "ws://"+b.Addr(c.listener), header)
		if resp != nil {
			_ = resp.Body.Close()
		}
		if (err == nil) != c.ok || err != nil && resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s with the origin %q: %v, want ok %v", c.listener, c.origin, err, c.ok)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	if got := metric(t, reg, "refused_total", "origin"); got != 4 || !log.has("see origins of the listener", "listener=hmi", "origin=https://evil.example") {
		t.Errorf("%v refused origins are counted, want 4, each in the log with the key to set", got)
	}
}

// Each listener has rules of its own: which clients, and from where.
func TestListenerRules(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "mqtt.sock")
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Listeners = append(o.Listeners,
			broker.Listener{Name: "some", Network: broker.TCP, Address: "127.0.0.1:0", Users: []string{"*@plant1", "scada"}, From: []string{"127.0.0.0/8"}},
			broker.Listener{Name: "elsewhere", Network: broker.TCP, Address: "127.0.0.1:0", From: []string{"10.0.0.0/8", "192.0.2.1"}},
			broker.Listener{Name: "unix", Network: broker.Unix, Address: socket, Mode: "0660"})
	})
	for user, want := range map[string]byte{"mes@plant1": 0, "scada": 0, "mes@plant2": 0x87, "": 0x87} {
		r := dialRaw(t, b.Addr("some"))
		ack := r.connect("c-"+user, func(p *packets.Packet) { p.Connect.Username, p.Connect.UsernameFlag = []byte(user), user != "" })
		if ack.ReasonCode != want {
			t.Errorf("user %q: CONNACK 0x%02x %q, want 0x%02x", user, ack.ReasonCode, ack.Properties.ReasonString, want)
		}
		_ = r.conn.Close()
	}
	dialRaw(t, b.Addr("elsewhere")).wantEnd()
	if n := metric(t, reg, "refused_total", "connect", "address"); n != 1 {
		t.Errorf("%v refused addresses counted, want 1", n)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket %v, %v, want the mode 0660", info, err)
	}
	join(t, client.Options{URLs: []string{"unix://" + socket}, Username: "c"})
}

// Why a WebSocket ended before its upgrade is said at debug, in the log of the broker: any client of the port can cause
// it, without bound.
func TestFailedUpgradeIsLogged(t *testing.T) {
	t.Parallel()
	var log lines
	server, _ := testTLS(t)
	b, _ := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Listeners = append(o.Listeners, broker.Listener{Name: "wss", Network: broker.WS, Address: "127.0.0.1:0", TLS: server})
	})
	r := dialRaw(t, b.Addr("wss"))
	if _, err := r.conn.Write([]byte("no TLS at all")); err != nil {
		t.Fatal(err)
	}
	until(t, "it is logged", func() bool { return log.has("level=DEBUG", "listener=wss", "TLS handshake error") })
}

// A client that does not end the request of its WebSocket in time is counted as one that was too slow to connect, over TLS too.
func TestSlowUpgradeIsCounted(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		if !w.web {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := attackedAs(t, w, free{}, limits.Limits{ConnectTimeout: 200 * time.Millisecond})
			var c net.Conn = s.socket()
			if w.tls {
				c = tls.Client(c, s.tls)
			}
			defer c.Close()                                                                //nolint:errcheck // the broker has closed it
			if _, err := c.Write([]byte("GET /mqtt HTTP/1.1\r\n")); err != nil && !w.tls { // the handshake may be too slow as well
				t.Fatal(err)
			}
			until(t, "it is counted", func() bool { return metric(t, s.reg, "refused_total", "timeout") == 1 })
		})
	}
}
