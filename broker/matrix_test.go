package broker_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/devices"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/protocol"
)

// The names of the matrix: what is the client's own has s1 and n1.
var (
	siteWords = []string{"desired", "tokens", "revocations", "online", "up", "ack", "down", "down-ack"}
	nodeWords = []string{"desired", "online", "heartbeat", "inventory", "report", "status/web"}
)

// matrixTopics are all topics of the protocol, of the client's own site and node and of others,
// and topics that are none of the protocol's.
func matrixTopics() (all []string) {
	for _, site := range []string{"s1", "s2"} {
		prefix := "colony/v1/" + site + "/"
		for _, word := range siteWords {
			all = append(all, prefix+word)
		}
		for _, node := range []string{"n1", "n2"} {
			for _, word := range nodeWords {
				all = append(all, prefix+"node/"+node+"/"+word)
			}
		}
		all = append(all, prefix+"data/line/1", prefix+"in/line/1", prefix+"other", prefix+"data", prefix+"node", prefix+"node/n1")
	}
	return append(all, "line/1", "/line", "colony", "colony/v1", "colony/v2/s1/desired", "$SYS/broker/uptime", "$local/x")
}

// matrixFilters are filters that cover one of the topics: the topic itself, each level as +,
// and each tail as #.
func matrixFilters() (all []string) {
	seen := map[string]bool{}
	for _, topic := range matrixTopics() {
		levels := strings.Split(topic, "/")
		for i := range levels {
			wild := append([]string(nil), levels...)
			wild[i] = "+"
			for _, f := range []string{topic, strings.Join(wild, "/"), strings.Join(append(append([]string(nil), levels[:i]...), "#"), "/")} {
				if !seen[f] {
					seen[f] = true
					all = append(all, f)
				}
			}
		}
	}
	return all
}

// A matrixClient is a kind of client, and what it may do: written down, not computed by what
// is under test. An entry that ends with a slash allows all below it.
type matrixClient struct {
	what      string
	user      string
	holder    *identity.Holder // nil: it has no certificate, and comes by the plain listener
	password  string
	publish   []string
	subscribe []string
	// wild says that filters with wildcards are granted whatever they cover: the client gets
	// what it may receive, topic by topic.
	wild bool
}

// may reports whether a list allows a topic or a filter. What is local is allowed by "local".
func may(list []string, name string) bool {
	first, _, _ := strings.Cut(name, "/")
	local := first != "colony" && first != "+" && first != "#" && !strings.HasPrefix(first, "$")
	for _, one := range list {
		below, all := strings.CutSuffix(one, "/")
		switch {
		case one == "local" && local, one == name:
			return true
		case all && !local && strings.HasPrefix(name, below+"/") && len(name) > len(below)+1:
			return true
		}
	}
	return false
}

// TestAccessMatrix tries every topic with every kind of client that can connect, at a running
// broker of a site and one of the CO, with certificates where clients are parts of Colony: to
// publish, to publish retained, to subscribe, to share a subscription, and as a last will.
func TestAccessMatrix(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, time.Now())
	site := devices.New("s1")
	_, faults := site.Set([]protocol.DeviceAccount{{
		User: "press", Publish: []string{"line/#", "colony/v1/s1/data/line/#"}, Subscribe: []string{"line/1", "colony/v1/s1/data/line/1"},
		SHA256: identity.HashSecret([]byte("secret")),
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	const own = "colony/v1/s1/node/n1/"
	for _, b := range []struct {
		name    string
		server  identity.Name
		tier    identity.Tier
		control access.Control
		clients []matrixClient
	}{
		{"site", identity.OfLO("s1"), identity.EN, site, []matrixClient{
			{
				what: "node", user: "n1.s1", holder: identitytest.Holder(t, root, root, identity.OfNode("s1", "n1")),
				publish:   []string{own + "online", own + "heartbeat", own + "inventory", own + "report", own + "status/web", "colony/v1/s1/data/", "local"},
				subscribe: []string{own + "desired", "colony/v1/s1/revocations", "colony/v1/s1/data/", "local"},
			},
			{what: "workload", user: "app@s1", publish: []string{"colony/v1/s1/data/", "local"}, subscribe: []string{"colony/v1/s1/data/", "local"}},
			{
				what: "device", user: "press", password: "secret", wild: true,
				publish: []string{"line/1", "colony/v1/s1/data/line/1"}, subscribe: []string{"line/1", "colony/v1/s1/data/line/1"},
			},
		}},
		{"co", identity.OfCO(), identity.LO, access.CO{}, []matrixClient{
			{
				what: "lo", user: "s1", holder: identitytest.Holder(t, root, root, identity.OfLO("s1")),
				publish:   []string{"colony/v1/s1/online", "colony/v1/s1/up", "colony/v1/s1/down-ack"},
				subscribe: []string{"colony/v1/s1/desired", "colony/v1/s1/tokens", "colony/v1/s1/revocations", "colony/v1/s1/ack", "colony/v1/s1/down"},
			},
			{what: "application of a site", user: "app@s1", publish: []string{"colony/v1/s1/in/"}, subscribe: []string{"colony/v1/s1/data/"}},
			{
				what: "application", user: "app@*", publish: []string{"colony/v1/s1/in/", "colony/v1/s2/in/"},
				subscribe: []string{"colony/v1/s1/data/", "colony/v1/s2/data/", "colony/v1/+/data/"},
			},
		}},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			h := identitytest.Holder(t, root, root, b.server)
			br, _ := start(t, access.Certified{Control: b.control, Listener: "machines", Tier: b.tier, Peer: h.Client}, func(o *broker.Options) {
				o.Logger = slog.New(slog.DiscardHandler) // a line for each refusal
				o.Listeners = append(o.Listeners, broker.Listener{Name: "machines", Network: broker.TLS, Address: "127.0.0.1:0", TLS: h.ServerTLS()})
			})
			for _, c := range b.clients {
				t.Run(c.what, func(t *testing.T) {
					m := &matrix{t: t, broker: br, server: b.server, client: c}
					m.run()
					t.Logf("%d cases", m.cases)
					if m.cases < 500 {
						t.Errorf("only %d cases", m.cases)
					}
				})
			}
		})
	}
}

// matrix tries one kind of client.
type matrix struct {
	t      *testing.T
	broker *broker.Broker
	server identity.Name
	client matrixClient
	cases  int
}

// dial opens the transport that the client comes by.
func (m *matrix) dial() *raw {
	m.t.Helper()
	name := "main"
	if m.client.holder != nil {
		name = "machines"
	}
	c, err := net.Dial("tcp", m.broker.Addr(name))
	if err != nil {
		m.t.Fatal(err)
	}
	if m.client.holder != nil {
		c = tls.Client(c, m.client.holder.ClientTLS(m.server))
	}
	m.t.Cleanup(func() { _ = c.Close() })
	return rawOver(m.t, c)
}

// proof sets the password of a client that has one.
func (m *matrix) proof(p *packets.Packet) {
	p.Connect.PasswordFlag, p.Connect.Password = m.client.password != "", []byte(m.client.password)
}

func (m *matrix) verdict(what, name string, got, want bool) {
	m.t.Helper()
	m.cases++
	if got != want {
		m.t.Errorf("%s %s: allowed %v, want %v", what, name, got, want)
	}
}

func (m *matrix) run() {
	r := m.dial()
	r.mustConnect(m.client.user, m.proof)
	for i, topic := range matrixTopics() {
		for _, retain := range []bool{false, true} {
			id := uint16(2*i + 1)
			r.send(packets.Packet{
				FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1, Retain: retain}, TopicName: topic, Payload: []byte("x"), PacketID: id,
			})
			m.verdict(fmt.Sprintf("publish (retained %v)", retain), topic, r.want(packets.Puback).ReasonCode < 0x80, may(m.client.publish, topic))
		}
	}
	for _, filter := range matrixFilters() {
		want := may(m.client.subscribe, filter) || m.client.wild && strings.ContainsAny(filter, "+#")
		for _, share := range []string{"", "$share/group/"} {
			p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 7, Filters: packets.Subscriptions{{Filter: share + filter, RetainHandling: 2}}}
			r.send(p)
			code := r.want(packets.Suback).ReasonCodes[0]
			m.verdict("subscribe "+share, filter, code < 0x80, want)
		}
	}
	for _, topic := range matrixTopics() {
		w := m.dial()
		ack := w.connect(m.client.user, func(p *packets.Packet) {
			m.proof(p)
			p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload, p.Connect.WillQos, p.Connect.WillRetain = true, topic, []byte("x"), 1, true
		})
		m.verdict("last will", topic, ack.ReasonCode == 0, may(m.client.publish, topic))
		if ack.ReasonCode == 0 {
			w.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
		}
	}
}
