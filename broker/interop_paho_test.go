package broker_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
)

// everyTransport runs a broker on all of them, and returns their addresses by
// name, and the TLS configuration of clients.
func everyTransport(t *testing.T) (*broker.Broker, map[string]string, *tls.Config) {
	t.Helper()
	server, clientTLS := testTLS(t)
	socket := filepath.Join(t.TempDir(), "mqtt.sock")
	b, _ := start(t, free{}, func(o *broker.Options) {
		o.Accept = refuse
		o.Listeners = append(o.Listeners,
			broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "ws", Network: broker.WS, Address: "127.0.0.1:0"},
			broker.Listener{Name: "wss", Network: broker.WS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "unix", Network: broker.Unix, Address: socket})
	})
	return b, map[string]string{
		"tcp": "tcp://" + b.Addr("main"), "tls": "tls://" + b.Addr("tls"), "ws": "ws://" + b.Addr("ws") + "/mqtt",
		"wss": "wss://" + b.Addr("wss") + "/mqtt", "unix": "unix://" + socket,
	}, clientTLS
}

// pahoV5 connects the MQTT 5 client of Eclipse, and returns what it receives.
func pahoV5(t *testing.T, address, id string, conf *tls.Config) (*autopaho.ConnectionManager, chan *paho.Publish) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *paho.Publish, 100)
	c := autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, TlsCfg: conf, KeepAlive: 30, CleanStartOnInitialConnection: true, SessionExpiryInterval: 60,
		ConnectUsername: id, OnConnectError: func(err error) { t.Error(err) },
		ClientConfig: paho.ClientConfig{
			ClientID:          id,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) { got <- r.Packet; return true, nil }},
		},
	}
	if u.Scheme == "unix" {
		c.AttemptConnection = func(ctx context.Context, _ autopaho.ClientConfig, u *url.URL) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
			return packets.NewThreadSafeConn(raw), err
		}
	}
	return pahoConnect(t, c), got
}

// pahoConnect connects the MQTT 5 client of Eclipse until the end of the test.
func pahoConnect(t *testing.T, c autopaho.ClientConfig) *autopaho.ConnectionManager {
	t.Helper()
	cm, err := autopaho.NewConnection(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = cm.Disconnect(ctx) // it may have disconnected
		<-cm.Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := cm.AwaitConnection(ctx); err != nil {
		t.Fatal(err)
	}
	return cm
}

func arrives[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("no message came")
		panic("unreachable")
	}
}

// The MQTT 5 client of Eclipse over every transport, in each QoS, with all
// properties of a message, and a request with its response. [MQTT-4.10]
func TestPahoV5(t *testing.T) {
	t.Parallel()
	_, urls, conf := everyTransport(t)
	for name, address := range urls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, got := pahoV5(t, address, "v5-"+name, conf)
			server, asked := pahoV5(t, address, "server-"+name, conf)
			for qos := range byte(3) {
				topic := fmt.Sprint(name, "/", qos)
				if _, err := c.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}}); err != nil {
					t.Fatal(err)
				}
				expiry, format := uint32(60), byte(1)
				want := &paho.PublishProperties{
					ContentType: "text/plain", ResponseTopic: "r", CorrelationData: []byte("c"), MessageExpiry: &expiry, PayloadFormat: &format,
					User: paho.UserProperties{{Key: "b", Value: "1"}, {Key: "a", Value: "2"}, {Key: "b", Value: "3"}},
				}
				if _, err := c.Publish(t.Context(), &paho.Publish{Topic: topic, QoS: qos, Payload: []byte("hello"), Properties: want}); err != nil {
					t.Fatal(err)
				}
				p := arrives(t, got)
				if diff := cmp.Diff(want, p.Properties); diff != "" || p.QoS != qos || string(p.Payload) != "hello" {
					t.Errorf("QoS %d: got %q with QoS %d; properties (-sent +received):\n%s", qos, p.Payload, p.QoS, diff)
				}
			}
			for client, topic := range map[*autopaho.ConnectionManager]string{c: name + "/answer", server: name + "/ask"} {
				if _, err := client.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.Publish(t.Context(), &paho.Publish{
				Topic: name + "/ask", QoS: 1, Payload: []byte("?"),
				Properties: &paho.PublishProperties{ResponseTopic: name + "/answer", CorrelationData: []byte("7")},
			}); err != nil {
				t.Fatal(err)
			}
			q := arrives(t, asked)
			if _, err := server.Publish(t.Context(), &paho.Publish{
				Topic: q.Properties.ResponseTopic, QoS: 1, Payload: []byte("!"), Properties: &paho.PublishProperties{CorrelationData: q.Properties.CorrelationData},
			}); err != nil {
				t.Fatal(err)
			}
			if a := arrives(t, got); string(a.Payload) != "!" || string(a.Properties.CorrelationData) != "7" {
				t.Errorf("answer %q, correlation %q", a.Payload, a.Properties.CorrelationData)
			}
			// A message that the broker's owner refuses: the client learns the reason.
			ack, err := c.Publish(t.Context(), &paho.Publish{Topic: name + "/x", QoS: 1, Payload: []byte("refuse invalid")})
			if err == nil || ack == nil || ack.ReasonCode != 0x99 {
				t.Errorf("a refused message: %+v, %v", ack, err)
			}
		})
	}
}

// The MQTT 3.1.1 client of Eclipse over every transport, in each QoS.
func TestPahoV3(t *testing.T) {
	t.Parallel()
	b, urls, conf := everyTransport(t)
	for name, address := range urls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan paho3.Message, 10)
			o := paho3.NewClientOptions().AddBroker(address).SetClientID("v3-"+name).SetUsername("v3-"+name).SetProtocolVersion(4).
				SetTLSConfig(conf).SetAutoReconnect(false).SetWill("will/"+name, "bye", 1, true)
			c := paho3.NewClient(o)
			finish(t, c.Connect())
			t.Cleanup(func() { c.Disconnect(100) })
			for qos := range byte(3) {
				topic := fmt.Sprint(name, "/", qos)
				finish(t, c.Subscribe(topic, qos, func(_ paho3.Client, m paho3.Message) { got <- m }))
				finish(t, c.Publish(topic, qos, true, "hello"))
				if m := arrives(t, got); string(m.Payload()) != "hello" || m.Qos() != qos || m.Retained() { // live: [MQTT-3.1.1, 3.3.1-9]
					t.Errorf("QoS %d: got %q with QoS %d, retained %v", qos, m.Payload(), m.Qos(), m.Retained())
				}
				finish(t, c.Unsubscribe(topic))
				finish(t, c.Subscribe(topic, qos, func(_ paho3.Client, m paho3.Message) { got <- m }))
				if m := arrives(t, got); !m.Retained() {
					t.Errorf("QoS %d: the message that was kept comes without RETAIN", qos)
				}
			}
			if m := b.Retained("will/" + name); len(m) != 0 {
				t.Error("the will of a client that is there")
			}
		})
	}
}

func finish(t *testing.T, token paho3.Token) {
	t.Helper()
	if !token.WaitTimeout(patience) {
		t.Fatal("no answer")
	}
	if err := token.Error(); err != nil {
		t.Fatal(err)
	}
}
