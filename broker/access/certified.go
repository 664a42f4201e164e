package access

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// A Control is access control that Certified can stand before, as Site and CO are.
type Control interface {
	// Connect returns the identity of a client, or an error: of kind Denied if it may not connect.
	Connect(info ConnectInfo) (Identity, error)
	// MayPublish reports whether id may publish to a topic name.
	MayPublish(id Identity, name string) bool
	// MaySubscribe reports whether id may receive every topic that a filter matches.
	MaySubscribe(id Identity, filter string) bool
	// Refusal returns why a filter was refused, for the log.
	Refusal(id Identity, filter string) string
}

// Certified is access control in front of another one. The certificate of a connection alone
// identifies a part of Colony; client id and user name can only repeat it. The inner access control
// decides on clients that are no part of Colony; they connect to other listeners.
type Certified struct {
	Control
	// Listener is the name of the one listener for machines: each connection there has a
	// certificate that was verified in its handshake.
	Listener string
	// Tier is the kind of machine that this broker serves.
	Tier identity.Tier
	// Peer returns the identity of the other end of a connection; it verifies the certificate
	// again.
	Peer func(tls.ConnectionState) (identity.Peer, error)
	// Left is for how long the certificate of a connection lasts, and Standing returns an error
	// where it was revoked: see identity.Holder. Nil: it has no end, and none is.
	Left     func(tls.ConnectionState) time.Duration
	Standing func(tls.ConnectionState) error
}

// Term is how long a connection that was let in may last; bounded false: for ever. The error says
// why it may not, such as a certificate that was revoked since.
func (c Certified) Term(listener string, s *tls.ConnectionState) (left time.Duration, bounded bool, err error) {
	if listener != c.Listener || s == nil {
		return 0, false, nil
	}
	if c.Standing != nil {
		if err := c.Standing(*s); err != nil {
			return 0, false, err
		}
	}
	if c.Left == nil {
		return 0, false, nil
	}
	return c.Left(*s), true, nil
}

// Connect implements broker.Access.
func (c Certified) Connect(info ConnectInfo) (Identity, error) {
	if info.Listener != c.Listener {
		id, err := c.Control.Connect(info)
		if err == nil && id.Client == "" {
			return Identity{}, protocol.Errorf(protocol.Denied, "%s is a part of Colony: it connects with its certificate, by TLS, to the listener %s", id.Name, c.Listener)
		}
		return id, err
	}
	if info.TLS == nil {
		return Identity{}, protocol.Errorf(protocol.Denied, "no TLS on listener %s", c.Listener)
	}
	p, err := c.Peer(*info.TLS)
	if err != nil {
		return Identity{}, err
	}
	name := p.Name.String()
	switch {
	case p.Name.Tier != c.Tier:
		return Identity{}, protocol.Errorf(protocol.Denied, "the certificate is that of %s, which is no client of this broker", p.Name.DNS())
	case info.Username != name || info.ClientID != name:
		return Identity{}, protocol.Errorf(protocol.Denied, "the certificate is that of %s: want its user name and client id to be %s, and not %.80q and %.80q", p.Name.DNS(), name, info.Username, info.ClientID)
	}
	return c.Control.Connect(info)
}

// PublishRefusal says why a topic was refused.
func (c Certified) PublishRefusal(id Identity, name string) string {
	if a, ok := c.Control.(interface {
		PublishRefusal(id Identity, topic string) string
	}); ok {
		return a.PublishRefusal(id, name)
	}
	return fmt.Sprintf("%s may not publish to %.200s", id.Name, name)
}
