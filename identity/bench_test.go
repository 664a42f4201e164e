package identity_test

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
)

// counted counts what goes over a connection, both ways.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// BenchmarkHandshake measures mutual TLS between a node and its LO, both ends in one process: the time of a handshake, and its
// bytes without those of TCP/IP, tickets included.
func BenchmarkHandshake(b *testing.B) {
	now := time.Now()
	root := identitytest.Root(b, now)
	site, _ := identitytest.Site(b, root, "plant", now)
	lo := identitytest.Holder(b, root, root, identity.OfLO("plant"))
	node := identitytest.Holder(b, site, root, identity.OfNode("plant", "n1"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	server := tls.NewListener(l, lo.ServerTLS())
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return // the benchmark has ended
			}
			_, _ = c.Write([]byte{1}) // which ends the handshake
			_ = c.Close()
		}
	}()
	for name, resume := range map[string]bool{"full": false, "resumed": true} {
		b.Run(name, func(b *testing.B) {
			config, bytes, resumed := node.ClientTLS(identity.OfLO("plant")), &atomic.Int64{}, 0
			if !resume {
				config.ClientSessionCache = nil
			}
			for b.Loop() {
				raw, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				c := tls.Client(counted{raw, bytes}, config)
				if _, err := c.Read(make([]byte, 1)); err != nil {
					b.Fatal(err)
				}
				if c.ConnectionState().DidResume {
					resumed++
				}
				_ = c.Close()
			}
			b.ReportMetric(float64(bytes.Load())/float64(b.N), "wire-B")
			b.ReportMetric(100*float64(resumed)/float64(b.N), "%resumed")
		})
	}
}
