package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/lasting"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/listen"
)

// Message is one MQTT application message.
type Message = client.Message

// Property is one MQTT 5 user property of a Message.
type Property = client.Property

// Options configure a Broker. Access and Logger are required.
type Options struct {
	// Name distinguishes brokers of one process, in logs and metrics.
	Name      string
	Listeners []Listener
	// Listen opens the sockets of the Listeners, of the network tcp or unix. Nil: those
	// of the system.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	Access Access
	// Accept is called for each message that a client publishes, and for each last will, after
	// access control and before the message is acknowledged, retained or delivered: what must not
	// be lost is stored here. It runs on the client's own goroutine, so a slow Accept slows only
	// that client; calls for different clients run concurrently. ctx ends when the broker stops.
	//
	// A message for which it returns an error is neither retained nor delivered. An MQTT 5
	// publisher gets a reason code: Denied 0x87, Invalid 0x99, NotFound 0x90, Unavailable 0x97, any
	// other 0x83. MQTT 3.1.1 has no such code: its publisher is disconnected without an
	// acknowledgement. Nil accepts everything.
	Accept func(ctx context.Context, from access.Identity, m Message) error
	// Admit, unless nil, is called for each client that Access lets connect, before it
	// takes the place of an earlier connection of its client id. will is its last will,
	// nil without one. An error refuses the client: CONNACK 0x85 for Invalid and
	// Conflict, 0x87 for Denied and NotFound, 0x89 for others. It is called concurrently.
	Admit func(ctx context.Context, id access.Identity, info access.ConnectInfo, will *Message) error
	// Changed, unless nil, is called after a client has connected or left, in order for each. It must not wait.
	Changed func(access.Change)
	Limits  limits.Limits
	// Sessions says where sessions that outlive their connection are stored. The zero value:
	// nowhere, they end with their connection.
	Sessions Sessions
	// SysInterval is the time between two updates of the $SYS topics. Default 30 s.
	SysInterval time.Duration
	Logger      *slog.Logger
	// Registerer takes the metrics; nil: none are kept.
	Registerer prometheus.Registerer
}

// Access decides what clients may do. Its methods are called concurrently, and
// often: MayPublish for each message, MaySubscribe for each delivery too. An
// Access that also has one of the methods
//
//	Refusal(id access.Identity, filter string) string
//	PublishRefusal(id access.Identity, topic string) string
//
// is asked why a filter or a topic was refused, for the client and the log. One that also has
//
//	Term(listener string, s *tls.ConnectionState) (left time.Duration, bounded bool, err error)
//
// is asked for how long a connection may last, once, and with each Recheck whether it still may.
type Access interface {
	// Connect returns the identity of the client, or an error: of Kind Denied if it may not
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
	TCP  = listen.TCP  // plain MQTT over TCP
	TLS  = listen.TLS  // MQTT over TLS
	WS   = listen.WS   // MQTT over WebSocket
	Unix = listen.Unix // a Unix socket
)

// Sessions configure the sessions that outlive their connections.
type Sessions = lasting.Storage

// Validate returns every fault of o, joined.
func (o Options) Validate() error {
	var errs []error
	if o.Access == nil {
		errs = append(errs, errors.New("no access control: set Access"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	errs = append(errs, listen.ValidateAll(o.Listeners), o.Sessions.Limits.Validate())
	return errors.Join(append(errs, o.Limits.Validate())...)
}
