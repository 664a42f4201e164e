// Package limits bounds what clients can take from a broker. Their keys are those of the
// configuration files.
package limits

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// Limits bound what clients can take from the broker. Zero means the default that
// the comment names, or where it names none, no limit.
type Limits struct {
	// ConnectTimeout is how long a connection may take to its accepted CONNECT,
	// the TLS handshake included. Default 10 s.
	ConnectTimeout time.Duration `yaml:"connectTimeout,omitempty"`
	// ConnectBytes is the largest CONNECT packet. Default 64 KiB.
	ConnectBytes int `yaml:"connectBytes,omitempty"`
	// PacketBytes is the largest packet after that. Default 4 MiB + 64 KiB.
	PacketBytes uint32 `yaml:"packetBytes,omitempty"`
	// Connections is the highest number of open connections of all listeners, those among them
	// whose TLS or WebSocket has not begun. Default: as many as leave the process descriptors for its
	// files, see listen.Connections.
	Connections int `yaml:"connections,omitempty"`
	// ConnectionsPerIdentity is the highest number of sessions of one identity.
	ConnectionsPerIdentity int `yaml:"connectionsPerIdentity,omitempty"`
	ConnectLimits          `yaml:",inline"`
	PublishLimits          `yaml:",inline"`
	// WriteBuffer is how many bytes may wait for a client that reads or acknowledges
	// slowly before it is disconnected. From half of it on publishers are held back, up
	// to 2 s for a message; those that serve other subscribers too, for at most a twentieth of
	// their time. Default 8 MiB: room for two largest packets.
	WriteBuffer int `yaml:"writeBuffer,omitempty"`
	// TotalWriteBuffer bounds what waits in memory for all connections: to be written,
	// and of packets that have not arrived whole. Above it the clients that most waits for
	// are disconnected: of the address that most waits for in all, or of the identity of clients
	// that a certificate or a device's password proves. Default 256 MiB.
	TotalWriteBuffer int64 `yaml:"totalWriteBuffer,omitempty"`
	// UnreadPerIdentity is how many bytes of packets that have not arrived whole the
	// connections of one identity may have under way; above it they are disconnected.
	// CONNECT is counted for all connections alone, see TotalWriteBuffer. Default 32 MiB.
	UnreadPerIdentity int64 `yaml:"unreadPerIdentity,omitempty"`
	// WriteTimeout is how long a client may take to accept the next 16 KiB. Default 30 s.
	WriteTimeout time.Duration `yaml:"writeTimeout,omitempty"`
	// Unacknowledged is how many QoS 1 and 2 messages are sent to a client at most before
	// it acknowledges one; a client may ask for less. Further ones wait in the write
	// buffer. Default 4,096, at most 32,768.
	Unacknowledged int `yaml:"unacknowledged,omitempty"`
	// Filters is how many subscriptions a client may have, whose filters have ten times as
	// many levels at most in all. Default 10,000.
	Filters     int `yaml:"filters,omitempty"`
	StateLimits `yaml:",inline"`
	// Levels is how many levels a filter or a topic of a client may have. Default 200.
	Levels int `yaml:"levels,omitempty"`
	// UserProperties is how many user properties a packet of a client may have. Default 1,000.
	UserProperties int `yaml:"userProperties,omitempty"`
	// RetainedBytes is the memory of retained messages of all clients together, about:
	// topics, properties and payloads, and 256 bytes for each. Above it they are refused
	// with 0x97. What the broker's owner publishes is never refused. Default 256 MiB.
	RetainedBytes int64 `yaml:"retainedBytes,omitempty"`
	// RetainedPerIdentity is the same for one identity that a certificate or a device's password
	// proves, or that connects over a Unix socket; for all others at one network address. Default 64 MiB.
	RetainedPerIdentity int64 `yaml:"retainedPerIdentity,omitempty"`
	// KeepAlive is the longest that a client may ask for, and what CONNACK names
	// if it asks for none. A client of MQTT 3.1.1 without one that has ended its own direction of the
	// connection waits so long for answers that the disk delays. Default 1 h.
	KeepAlive time.Duration `yaml:"keepAlive,omitempty"`
}

// ConnectLimits bound how clients connect, in all and from one network address; over a Unix socket
// they have none.
type ConnectLimits struct {
	// MachineConnections is how many of Connections are reserved for nodes, and at the CO for sites. A quarter as
	// many are for connections that have not identified themselves yet when the others are in use. Default: an
	// eighth of Connections, at most 1,024.
	MachineConnections int `yaml:"machineConnections,omitempty"`
	// ConnectRate is how many connections a listener accepts per second; those above
	// it wait in the system's queue, so that a fleet that comes back at once is let
	// in evenly.
	ConnectRate float64 `yaml:"connectRate,omitempty"`
	// ConnectionsPerAddress is the highest number of open connections of one address. Above it
	// CONNECT is refused with 0x97, but for that of a client which takes over its own connection, and that of a
	// machine with a certificate, which does not count. Default: half of Connections, and 64 at least.
	ConnectionsPerAddress int `yaml:"connectionsPerAddress,omitempty"`
	// ConnectRatePerAddress is how many connections one address may begin per second; as many may
	// begin at once. Above it CONNECT is refused with 0x9f, before access control is asked.
	ConnectRatePerAddress float64 `yaml:"connectRatePerAddress,omitempty"`
}

// PublishLimits bound how fast clients publish.
type PublishLimits struct {
	// PublishRate is how many messages per second one connection may publish; one
	// that sends faster is read more slowly. PublishBurst is the slack, default 100.
	PublishRate  float64 `yaml:"publishRate,omitempty"`
	PublishBurst int     `yaml:"publishBurst,omitempty"`
	// MatchRate is how many steps per second it may take to find the subscribers of the messages of one account: an address, or
	// an identity that a certificate or a device's password proves. A message has 100 of its own, and 8 for each of its subscribers, which do not count. Above it
	// the next message of the account waits, 2 s at most. A step takes about 0.1 µs, see topictree.Found. Default 500,000.
	MatchRate int `yaml:"matchRate,omitempty"`
}

// StateLimits bound what the names, subscriptions, topic aliases and last wills of clients take.
type StateLimits struct {
	// ClientIDBytes is how long a client id may be. Default 1,024.
	ClientIDBytes int `yaml:"clientIDBytes,omitempty"`
	// FilterBytes is how many bytes the filters of a client may have in all. Default 1 MiB.
	FilterBytes int `yaml:"filterBytes,omitempty"`
	// StateBytes is the memory of the filters, last wills and topic aliases of all clients together, about;
	// those of sessions without a connection are among them. Above it SUBSCRIBE and CONNECT are
	// refused with 0x97. Default 256 MiB.
	StateBytes int64 `yaml:"stateBytes,omitempty"`
	// StatePerAddress is the same for the clients at one network address. Default 64 MiB.
	StatePerAddress int64 `yaml:"statePerAddress,omitempty"`
	// SubscribeFilters is how many filters one SUBSCRIBE or UNSUBSCRIBE may hold. Default 1,000.
	SubscribeFilters int `yaml:"subscribeFilters,omitempty"`
}

const (
	mostForMachines = 1024
	leastPerAddress = 64
)

// Defaults fills in the defaults.
func (l *Limits) Defaults() {
	fill(&l.ConnectTimeout, 10*time.Second)
	fill(&l.ConnectBytes, 64<<10)
	fill(&l.PacketBytes, protocol.MaxMessage+64<<10)
	fill(&l.Connections, math.MaxInt)
	if l.Connections < math.MaxInt {
		fill(&l.MachineConnections, min(l.Connections/8, mostForMachines))
		fill(&l.ConnectionsPerAddress, max(l.Connections/2, leastPerAddress))
	}
	fill(&l.ConnectionsPerIdentity, math.MaxInt)
	fill(&l.PublishBurst, 100)
	fill(&l.MatchRate, 500_000)
	fill(&l.WriteBuffer, 8<<20)
	fill(&l.TotalWriteBuffer, 256<<20)
	fill(&l.WriteTimeout, 30*time.Second)
	fill(&l.UnreadPerIdentity, 32<<20)
	fill(&l.Unacknowledged, 4096)
	fill(&l.Filters, 10_000)
	fill(&l.ClientIDBytes, 1024)
	fill(&l.FilterBytes, 1<<20)
	fill(&l.StateBytes, 256<<20)
	fill(&l.StatePerAddress, 64<<20)
	fill(&l.SubscribeFilters, 1000)
	fill(&l.Levels, 200)
	fill(&l.UserProperties, 1000)
	fill(&l.RetainedBytes, 256<<20)
	fill(&l.RetainedPerIdentity, 64<<20)
	fill(&l.KeepAlive, time.Hour)
}

// WithRoomFor returns the limits with room for so many bytes of retained messages of one
// identity, where l names no other limits for them.
func (l Limits) WithRoomFor(retained int64) Limits {
	var d Limits
	d.Defaults()
	fill(&l.RetainedBytes, max(d.RetainedBytes, retained))
	fill(&l.RetainedPerIdentity, max(d.RetainedPerIdentity, retained))
	return l
}

func fill[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate returns every fault of l, joined.
func (l Limits) Validate() error {
	var errs []error
	if l.Unacknowledged < 0 || l.Unacknowledged > 32768 {
		errs = append(errs, fmt.Errorf("limit of %d unacknowledged messages: want 1 to 32768", l.Unacknowledged))
	}
	if l.KeepAlive < 0 || l.KeepAlive > 12*time.Hour {
		errs = append(errs, fmt.Errorf("keep-alive limit %s: want up to 12 h", l.KeepAlive))
	}
	if n := l.MachineConnections; n > 0 && l.Connections > 0 && l.forClients() < 1 {
		errs = append(errs, fmt.Errorf("limits.machineConnections of %d, and a quarter as many beside them: limits.connections of %d leave none for clients", n, l.Connections))
	}
	if min(l.ConnectRate, l.ConnectRatePerAddress, l.PublishRate) < 0 || min(l.ConnectTimeout, l.WriteTimeout) < 0 ||
		min(l.UnreadPerIdentity, l.RetainedBytes, l.RetainedPerIdentity, l.TotalWriteBuffer, l.StateBytes, l.StatePerAddress) < 0 ||
		min(l.WriteBuffer, l.ConnectBytes, l.Connections, l.ConnectionsPerIdentity, l.MachineConnections, l.ConnectionsPerAddress, l.PublishBurst, l.MatchRate, l.ClientIDBytes, l.Filters, l.FilterBytes, l.SubscribeFilters, l.Levels, l.UserProperties) < 0 {
		errs = append(errs, errors.New("a negative limit: want 0 for the default"))
	}
	return errors.Join(errs...)
}

// forClients is how many of Connections all but machines may have, see peers.Table.
func (l *Limits) forClients() int {
	return l.Connections - l.MachineConnections - (l.MachineConnections+3)/4
}

// TooMany says which limit a connection from an address has met: that of all clients but machines, or that of the
// address.
func (l *Limits) TooMany(address string, all bool) string {
	if all {
		return fmt.Sprintf("all connections but those that are kept for parts of Colony are taken, %d of %d: see limits.connections and limits.machineConnections", l.forClients(), l.Connections)
	}
	return fmt.Sprintf("%s has %d connections: that is the limit; see limits.connectionsPerAddress", address, l.ConnectionsPerAddress)
}

// KeepAliveOf is what counts of the keep-alive that a client asked for, in seconds; 0 is none. An
// MQTT 5 client reads it in CONNACK if it differs.
func (l *Limits) KeepAliveOf(asked uint16, v5 bool) uint16 {
	longest := uint16(min(l.KeepAlive/time.Second, 65_535))
	if v5 && (asked == 0 || asked > longest) {
		return longest
	}
	return asked
}
