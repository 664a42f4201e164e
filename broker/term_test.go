package broker_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// A pair is the LO of a site with a broker, and a node of the site. Their clocks stand still, so that
// a certificate lasts as long as it did at the start, however slow the machine is.
type pair struct {
	t        *testing.T
	root     *identity.Authority
	at       time.Time
	lo, node *identity.Holder
}

// lifetime is for how long a certificate of certify lasts from the time of the clocks on.
const lifetime = time.Second

func newPair(t *testing.T) *pair {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, at: time.Now()}
	if p.root, err = identity.NewRoot(key, p.at.Add(-identity.LeafLife)); err != nil {
		t.Fatal(err)
	}
	for _, h := range []**identity.Holder{&p.lo, &p.node} {
		*h = identity.NewHolder(identity.NewClock(func() time.Time { return p.at }, identity.Floor{}, nil))
	}
	p.certify(p.lo, identity.OfLO("s1"), identity.LeafLife)
	p.certify(p.node, identity.OfNode("s1", "n1"), identity.LeafLife)
	return p
}

// certify gives a machine a certificate that ends in a while.
func (p *pair) certify(h *identity.Holder, n identity.Name, left time.Duration) {
	p.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		p.t.Fatal(err)
	}
	chain, err := p.root.Issue(n, key.Public(), p.at.Add(left-identity.LeafLife))
	if err != nil {
		p.t.Fatal(err)
	}
	h.Set(&identity.Credential{Key: key, Chain: chain, Root: p.root.Root()})
}

// access is that of the site, for machines with certificates.
func (p *pair) access() access.Certified {
	return access.Certified{Control: access.Site("s1"), Listener: "machines", Tier: identity.EN, Peer: p.lo.Client, Left: p.lo.Left, Standing: p.lo.Standing}
}

func (p *pair) listen(o *broker.Options) {
	o.Listeners = append(o.Listeners, broker.Listener{Name: "machines", Network: broker.TLS, Address: "127.0.0.1:0", TLS: p.lo.ServerTLS()})
}

// options are those of a client that is the node; ups gets each of its sessions.
func (p *pair) options(b *broker.Broker) (o client.Options, ups chan string) {
	ups = make(chan string, 100)
	return client.Options{
		URLs: []string{"tls://" + b.Addr("machines")}, ClientID: "n1.s1", Username: "n1.s1", TLS: p.node.ClientTLS(identity.OfLO("s1")), Proof: client.Proof{Left: p.node.Left, Standing: p.node.Standing},
		Logger: testLog(p.t), OnUp: func(_ context.Context, s string) { ups <- s },
	}, ups
}

func awaitUp(t *testing.T, ups <-chan string, what string) {
	t.Helper()
	select {
	case <-ups:
	case <-time.After(patience):
		t.Fatalf("%s: not within %s", what, patience)
	}
}

// TestEndOfCertificate checks that an open connection gets the reason 0xA0, maximum connect time,
// when its certificate ends, and that another one goes on.
func TestEndOfCertificate(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b, reg := start(t, p.access(), p.listen)
	other := p.dial(b)
	other.mustConnect("n1.s1", nil)
	p.certify(p.node, identity.OfNode("s1", "n2"), lifetime)
	r := p.dial(b)
	r.mustConnect("n2.s1", nil)
	r.wantCode(packets.Disconnect, 0xA0)
	r.wantEnd()
	other.ping()
	until(t, "the end is counted", func() bool { return metric(t, reg, "disconnects_total", "0xa0") == 1 })
}

// dial opens a connection as the node, with the certificate that it has.
func (p *pair) dial(b *broker.Broker) *raw {
	p.t.Helper()
	o, _ := p.options(b)
	return rawOver(p.t, tlsConn(p.t, b.Addr("machines"), o.TLS))
}

// TestNothingIsLostAtTheEnd publishes without a pause while the certificate of the connection ends, or
// that of the broker: each message arrives. The link is made anew before, once there is another
// certificate, or at the end.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		ends func(p *pair)                   // what ends, before the first link
		next func(p *pair, c *client.Client) // once that is up
	}{
		{"the node connects anew after its renewal", func(p *pair) {}, func(p *pair, c *client.Client) {
			p.certify(p.node, identity.OfNode("s1", "n1"), identity.LeafLife)
			c.Reconnect()
		}},
		{"the broker ends the connection", func(p *pair) {
			p.certify(p.node, identity.OfNode("s1", "n1"), lifetime)
		}, func(p *pair, _ *client.Client) { p.certify(p.node, identity.OfNode("s1", "n1"), identity.LeafLife) }},
		{"the certificate of the broker ends", func(p *pair) {
			p.certify(p.lo, identity.OfLO("s1"), lifetime)
		}, func(p *pair, _ *client.Client) { p.certify(p.lo, identity.OfLO("s1"), identity.LeafLife) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			c.ends(p)
			var mu sync.Mutex
			got := map[string]bool{}
			b, _ := start(t, p.access(), func(o *broker.Options) {
				p.listen(o)
				o.Accept = func(_ context.Context, _ access.Identity, m broker.Message) error {
					mu.Lock()
					defer mu.Unlock()
					got[string(m.Payload)] = true
					return nil
				}
			})
			o, ups := p.options(b)
			node := join(t, o)
			awaitUp(t, ups, "the first link")
			c.next(p, node)
			sent := 0
			for again := false; !again || sent == 0; { // on a busy machine the first link may end before anything is sent
				body := fmt.Sprint(sent)
				err := node.Publish(t.Context(), client.Message{Topic: "line/1", QoS: 1, Payload: []byte(body)})
				switch {
				case err == nil:
					sent++
				case protocol.KindOf(err) != protocol.Unavailable:
					t.Fatalf("publish: %v", err)
				}
				select {
				case <-ups:
					again = true
				default:
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range sent {
				if !got[fmt.Sprint(i)] {
					t.Errorf("message %d of %d was acknowledged and did not arrive", i, sent)
				}
			}
		})
	}
}

// TestRecheck revokes the certificate of one of two clients: its connection ends, the other goes on,
// and the first one does not get in again, by a resumed session neither.
func TestRecheck(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b, reg := start(t, p.access(), p.listen)
	good := p.dial(b)
	good.mustConnect("n1.s1", nil)
	p.certify(p.node, identity.OfNode("s1", "n2"), identity.LeafLife)
	config := p.node.ClientTLS(identity.OfLO("s1")) // has the tickets of both connections
	bad := rawOver(t, tlsConn(t, b.Addr("machines"), config))
	bad.mustConnect("n2.s1", nil)
	if n := b.Recheck(); n != 0 {
		t.Errorf("%d connections ended, and nothing was revoked", n)
	}
	p.lo.SetRevoked([]string{identity.KeyName(p.node.Credential().Chain[0])})
	if n := b.Recheck(); n != 1 {
		t.Errorf("%d connections ended, want 1", n)
	}
	bad.wantCode(packets.Disconnect, 0x87)
	bad.wantEnd()
	good.ping()
	until(t, "the end is counted", func() bool { return metric(t, reg, "disconnects_total", "0x87") == 1 })
	again := tlsConn(t, b.Addr("machines"), config)
	if _, err := again.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "bad certificate") {
		t.Errorf("with a certificate that was revoked: %v", err)
	}
}

// TestRecheckOfTheBroker has a client learn that the certificate of its broker was revoked: it ends
// the link, and makes no other one with that broker until there is another certificate.
func TestRecheckOfTheBroker(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b, _ := start(t, p.access(), p.listen)
	o, ups := p.options(b)
	downs, dials := make(chan error, 100), make(chan struct{}, 100)
	o.OnDown = func(err error) { downs <- err }
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case dials <- struct{}{}:
		default:
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	node := join(t, o)
	awaitUp(t, ups, "the first link")
	<-dials
	if node.Recheck() {
		t.Error("the link ended, and nothing was revoked")
	}
	p.node.SetRevoked([]string{identity.KeyName(p.lo.Credential().Chain[0])})
	if !node.Recheck() {
		t.Error("the link to a broker whose certificate was revoked goes on")
	}
	select {
	case err := <-downs:
		if protocol.KindOf(err) != protocol.Denied {
			t.Errorf("the link ended: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the link did not end")
	}
	<-dials // the second attempt
	<-dials // the third: the second one has failed
	if node.Up() {
		t.Error("the next link is with a certificate that was revoked")
	}
	p.certify(p.lo, identity.OfLO("s1"), identity.LeafLife)
	awaitUp(t, ups, "a link with the successor")
}

// tlsConn opens a connection that is closed with the test.
func tlsConn(t *testing.T, addr string, config *tls.Config) *tls.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return tls.Client(c, config)
}
