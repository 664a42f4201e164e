package broker_test

import (
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/internal/tlstest"
)

// A client that fails in TLS is counted, and the log says from where and why, within a bound. A client that sends nothing is
// not.
func TestFailedHandshakesAreSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	credential := func(name string, end time.Time) tls.Certificate {
		t.Helper()
		chain, key := filepath.Join(dir, name+".chain"), filepath.Join(dir, name+".key")
		tlstest.Write(t, chain, key, end)
		pair, err := tls.LoadX509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	expired := credential("expired", time.Now().Add(-time.Hour))
	foreign := credential("foreign", time.Now().Add(time.Hour))
	for _, network := range []listen.Network{broker.TLS, broker.WS} {
		t.Run(string(network), func(t *testing.T) {
			t.Parallel()
			server, own := testTLS(t)
			server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, own.RootCAs.Clone()
			server.ClientCAs.AddCert(expired.Leaf)
			var log lines
			b, reg := start(t, free{}, func(o *broker.Options) {
				log.logged(o)
				o.Listeners = append(o.Listeners, broker.Listener{Name: "secure", Network: network, Address: "127.0.0.1:0", TLS: server})
			})
			refused := func() float64 { return metric(t, reg, "refused_total", "connect", "tls") }
			ends := func(c net.Conn) {
				t.Helper()
				_, _ = io.Copy(io.Discard, c) // until the broker has ended it
				_ = c.Close()                 // it has ended
			}
			silent := dialRaw(t, b.Addr("secure")).conn
			_ = silent.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it was dialled so
			ends(silent)
			reset := dialRaw(t, b.Addr("secure")).conn
			_ = reset.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it was dialled so
			_ = reset.Close()                     // with a reset
			for i, c := range []struct {
				certificates []tls.Certificate
				why          string
			}{
				{nil, "client didn't provide a certificate"},
				{[]tls.Certificate{expired}, "certificate has expired"},
				{[]tls.Certificate{foreign}, "certificate signed by unknown authority"},
			} {
				config := own.Clone()
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if c.certificates == nil {
						return new(tls.Certificate), nil
					}
					return &c.certificates[0], nil
				}
				conn, err := tls.Dial("tcp", b.Addr("secure"), config)
				if err != nil {
					t.Fatal(err)
				}
				ends(conn)
				until(t, "it is counted", func() bool { return refused() == float64(i+1) })
				until(t, "the log says why", func() bool { return log.has("level=WARN", "TLS handshake", "remote=127.0.0.1:", "secure", c.why) })
			}
			plain := dialRaw(t, b.Addr("secure")).conn
			if _, err := plain.Write([]byte("\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")); err != nil {
				t.Fatal(err)
			}
			ends(plain)
			until(t, "the wrong protocol is counted", func() bool { return refused() == 4 })
			until(t, "the log says so", func() bool { return log.has("TLS handshake", "does not look like a TLS handshake") })
			for range 20 {
				c := dialRaw(t, b.Addr("secure")).conn
				if _, err := c.Write([]byte("\x10\x0c\x00\x04MQTT")); err != nil {
					t.Fatal(err)
				}
				ends(c)
			}
			until(t, "each is counted", func() bool { return refused() == 24 })
			if n := log.count("level=WARN"); n != 10 {
				t.Errorf("the log has %d warnings, want 10", n)
			}
		})
	}
}
