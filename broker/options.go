package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/protocol"
)

// Message is one MQTT application message.
type Message = client.Message

// Property is one MQTT 5 user property of a Message.
type Property = client.Property

// Options configure a Broker. Access and Logger are required.
type Options struct {
	// Name tells brokers of one process apart, in logs and metrics.
	Name      string
	Listeners []Listener
	// Listen opens the sockets of the Listeners, of the network tcp or unix. Nil: those
	// of the system.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	Access Access
	// Accept is called for each message that a client publishes, and for each last
	// will, after access control and before the message is acknowledged, retained or
	// delivered: what must not be lost is stored here. It runs on the client's own
	// goroutine, so a slow Take slows that client and nobody else; calls for different
	// clients run concurrently. ctx ends when the broker stops.
	//
	// A message for which it returns an error is neither retained nor delivered. An
	// MQTT 5 publisher is told by reason code: Denied 0x87, Invalid 0x99, NotFound
	// 0x90, Unavailable 0x97, any other 0x83. MQTT 3.1.1 has no such code: its
	// publisher is disconnected without an acknowledgement. Nil takes everything.
	Accept func(ctx context.Context, from access.Identity, m Message) error
	Limits Limits
	// SysInterval is the time between two updates of the $SYS topics. Default 30 s.
	SysInterval time.Duration
	Logger      *slog.Logger
	// Registerer takes the metrics; nil: none are kept.
	Registerer prometheus.Registerer
}

// Access decides what clients may do. Its methods are called concurrently, and
// often: MayPublish for each message, MaySubscribe for each delivery too. An
// Access that also has the method
//
//	Refusal(id access.Identity, filter string) string
//
// is asked why a filter was refused, for the client and the log.
type Access interface {
	// Connect returns who the client is, or an error: of Kind Denied if it may not
	// connect, Invalid if its client id is not its own.
	Connect(info access.ConnectInfo) (access.Identity, error)
	// MayPublish reports whether id may publish to a topic name.
	MayPublish(id access.Identity, name string) bool
	// MaySubscribe reports whether id may receive every topic that a filter matches.
	// A topic name is a filter too. The $share prefix has been taken off.
	MaySubscribe(id access.Identity, filter string) bool
}

// A Listener is an address that clients connect to.
type Listener = listen.Spec

// The networks of a Listener.
const (
	TCP  = listen.TCP
	TLS  = listen.TLS
	WS   = listen.WS
	Unix = listen.Unix
)

// Limits bound what clients can take from the broker. Zero means the default that
// the comment names, or where it names none, no limit.
type Limits struct {
	// ConnectTimeout is how long a connection may take to its accepted CONNECT,
	// the TLS handshake included. Default 10 s.
	ConnectTimeout time.Duration
	// ConnectBytes is the largest CONNECT packet. Default 64 KiB.
	ConnectBytes int
	// PacketBytes is the largest packet after that. Default 4 MiB + 64 KiB.
	PacketBytes uint32
	// Connections is the highest number of open connections of all listeners.
	Connections int
	// ConnectionsPerIdentity is the highest number of sessions of one identity.
	ConnectionsPerIdentity int
	// ConnectRate is how many connections a listener accepts per second; those above
	// it wait in the system's queue, so that a fleet that comes back at once is let
	// in evenly.
	ConnectRate float64
	// PublishRate is how many messages per second one connection may publish; one
	// that sends faster is read more slowly. PublishBurst is the slack, default 100.
	PublishRate  float64
	PublishBurst int
	// WriteBuffer is how many bytes may wait for a client that reads or acknowledges
	// slowly before it is disconnected. From half of it on publishers are held back, up
	// to 2 s for a message; those that serve other subscribers too, for at most 1/20 of
	// their time. Default 8 MiB: room for two largest packets.
	WriteBuffer int
	// TotalWriteBuffer bounds what waits in memory for all connections: to be written,
	// and of packets that have not arrived whole. Above it the clients that most waits for
	// are disconnected. Default 256 MiB.
	TotalWriteBuffer int64
	// UnreadPerIdentity is how many bytes of packets that have not arrived whole the
	// connections of one identity may have under way; above it they are disconnected.
	// Packets of up to 16 KiB are not counted. Default 32 MiB.
	UnreadPerIdentity int64
	// WriteTimeout is how long a client may take to accept the next 16 KiB. Default 30 s.
	WriteTimeout time.Duration
	// Unacknowledged is how many QoS 1 and 2 messages are sent to a client at most before
	// it acknowledges one; a client may ask for less. Further ones wait in the write
	// buffer. Default 4,096, at most 32,768.
	Unacknowledged int
	// Filters is how many subscriptions a client may have, whose filters have ten times as
	// many levels at most in all. Default 10,000.
	Filters int
	// SubscribeFilters is how many filters one SUBSCRIBE or UNSUBSCRIBE may hold. Default 1,000.
	SubscribeFilters int
	// Levels is how many levels a filter or a topic of a client may have. Default 200.
	Levels int
	// UserProperties is how many user properties a packet of a client may have. Default 1,000.
	UserProperties int
	// RetainedBytes is the memory of retained messages of all clients together, about:
	// topics, properties and payloads, and 256 bytes for each. Above it they are refused
	// with 0x97. What the broker's owner publishes is never refused. Default 256 MiB.
	RetainedBytes int64
	// RetainedPerIdentity is the same for one identity. Default 64 MiB.
	RetainedPerIdentity int64
	// KeepAlive is the longest that a client may ask for, and what it is told to keep
	// if it asks for none. Default 1 h.
	KeepAlive time.Duration
}

func (l *Limits) defaults() {
	fill(&l.ConnectTimeout, 10*time.Second)
	fill(&l.ConnectBytes, 64<<10)
	fill(&l.PacketBytes, protocol.MaxMessage+64<<10)
	fill(&l.Connections, math.MaxInt)
	fill(&l.ConnectionsPerIdentity, math.MaxInt)
	fill(&l.PublishBurst, 100)
	fill(&l.WriteBuffer, 8<<20)
	fill(&l.TotalWriteBuffer, 256<<20)
	fill(&l.WriteTimeout, 30*time.Second)
	fill(&l.UnreadPerIdentity, 32<<20)
	fill(&l.Unacknowledged, 4096)
	fill(&l.Filters, 10_000)
	fill(&l.SubscribeFilters, 1000)
	fill(&l.Levels, 200)
	fill(&l.UserProperties, 1000)
	fill(&l.RetainedBytes, 256<<20)
	fill(&l.RetainedPerIdentity, 64<<20)
	fill(&l.KeepAlive, time.Hour)
}

func fill[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate returns every fault of o, joined.
func (o Options) Validate() error {
	var errs []error
	if o.Access == nil {
		errs = append(errs, errors.New("no access control: set Access"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	errs = append(errs, listen.ValidateAll(o.Listeners))
	lim := o.Limits
	if lim.Unacknowledged < 0 || lim.Unacknowledged > 32768 {
		errs = append(errs, fmt.Errorf("limit of %d unacknowledged messages: want 1 to 32768", lim.Unacknowledged))
	}
	if lim.KeepAlive < 0 || lim.KeepAlive > 12*time.Hour {
		errs = append(errs, fmt.Errorf("keep-alive limit %s: want up to 12 h", lim.KeepAlive))
	}
	if lim.ConnectRate < 0 || lim.PublishRate < 0 || lim.UnreadPerIdentity < 0 || lim.RetainedBytes < 0 || lim.RetainedPerIdentity < 0 ||
		min(lim.WriteBuffer, lim.ConnectBytes, lim.Filters, lim.SubscribeFilters, lim.Levels, lim.UserProperties) < 0 {
		errs = append(errs, errors.New("a negative limit: want 0 for the default"))
	}
	return errors.Join(errs...)
}
