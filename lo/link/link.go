// Package link is the LO's MQTT connection to the CO's broker. It announces the site,
// sends the batches of the uplinks, and hands what arrives to a Receiver.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// DefaultKeepAlive is that of an LO whose configuration names none.
	DefaultKeepAlive = 30 * time.Second
	// DefaultMaxBackoff is that of an LO whose configuration names none.
	DefaultMaxBackoff = 2500 * time.Millisecond

	// farewellTimeout bounds the last message of an orderly stop.
	farewellTimeout = 2 * time.Second
	// retryDelay is the wait after the CO's broker refused the site's presence.
	retryDelay = time.Second
)

// A Receiver gets what happens on the link. Its methods must not wait. Desired, Ack
// and Down are called by one goroutine, Connected by any.
type Receiver interface {
	// Connected says that the link went up or down.
	Connected(up bool)
	// Desired gets an encoded SiteDesired.
	Desired(payload []byte)
	// Ack gets an acknowledgement, or a question, of the CO.
	Ack(a protocol.Ack)
	// Down gets an encoded Batch of machine data for the site.
	Down(payload []byte)
}

// Options of a Link. All must be given, but for TLS, Proof, Tokens, Revocations, Commands, Dial and Random.
type Options struct {
	Site protocol.SiteID
	// Version is the LO's.
	Version string
	// Epoch returns the name of the site's journal, which is in the site's presence.
	Epoch func() string
	// Held returns the desired state in force, which is in the site's presence; its zero
	// value: there is none.
	Held func() protocol.Held
	// Problem returns what is wrong with the LO's machine, which is in the site's presence;
	// "": nothing is.
	Problem func() string
	// URLs, KeepAlive and MaxBackoff are those of the client.
	URLs                  []string
	KeepAlive, MaxBackoff time.Duration
	Logger                *slog.Logger
	// Tokens takes an encoded SiteTokens. Nil: they are not subscribed to, as a CO of an
	// earlier release refuses that.
	Tokens func(payload []byte) error
	// Revocations takes an encoded SiteRevocations. Nil: they are not subscribed to.
	Revocations func(payload []byte) error
	// Commands takes what the CO sends about commands, on topics of the kinds SiteCommand, SiteCredit, SiteInput and SiteTime. It must not wait. Nil: they
	// are not subscribed to. A CO of an earlier release sends none.
	Commands func(t topic.Topic, payload []byte) error
	// TLS and Proof are those of the client.
	TLS   *tls.Config
	Proof client.Proof
	// Dial and Random are those of the client.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Random *random.Source
}

// A Link is the connection to the CO. Start and Stop are called once each, all other
// methods may be called concurrently.
type Link struct {
	opts     Options
	log      *slog.Logger
	client   *client.Client
	receiver Receiver // set by Start, before the client can call it
}

// New returns a Link that is not connected.
func New(o Options) (*Link, error) {
	l := &Link{opts: o, log: o.Logger.With("component", "link")}
	subscriptions := []client.Subscription{
		{Filter: topic.ForSite(topic.SiteDesired, o.Site), QoS: 1},
		{Filter: topic.ForSite(topic.Ack, o.Site), QoS: 1},
		{Filter: topic.ForSite(topic.Down, o.Site), QoS: 1},
	}
	if o.Tokens != nil {
		subscriptions = append(subscriptions, client.Subscription{Filter: topic.ForSite(topic.SiteTokens, o.Site), QoS: 1})
	}
	if o.Revocations != nil {
		subscriptions = append(subscriptions, client.Subscription{Filter: topic.ForSite(topic.Revocations, o.Site), QoS: 1})
	}
	if o.Commands != nil {
		subscriptions = append(subscriptions,
			client.Subscription{Filter: topic.ForCommand(topic.SiteCommand, o.Site, topic.AnyCommand), QoS: 1, Optional: true},
			client.Subscription{Filter: topic.ForCommand(topic.SiteCredit, o.Site, topic.AnyCommand), Optional: true},
			client.Subscription{Filter: topic.ForCommand(topic.SiteInput, o.Site, topic.AnyCommand), Optional: true},
			client.Subscription{Filter: topic.ForSite(topic.SiteTime, o.Site), Optional: true})
	}
	var err error
	l.client, err = client.New(client.Options{
		URLs: o.URLs, ClientID: string(o.Site), Username: string(o.Site), KeepAlive: o.KeepAlive, MaxBackoff: o.MaxBackoff,
		Will: func(session string) *client.Message {
			m := l.presence(false, session)
			return &m
		},
		Subscriptions: subscriptions,
		Handle:        l.handle,
		OnUp:          l.connected,
		OnDown: func(err error) {
			l.receiver.Connected(false)
			l.log.Warn("link to the co is down", "err", err)
		},
		Logger: o.Logger, TLS: o.TLS, Proof: o.Proof, Dial: o.Dial, Random: o.Random,
	})
	if err != nil {
		return nil, fmt.Errorf("make link to the co: %w", err)
	}
	return l, nil
}

// Start connects, and goes on to until Stop. It does not wait for the CO.
func (l *Link) Start(ctx context.Context, r Receiver) error {
	l.receiver = r
	if err := l.client.Start(ctx); err != nil {
		return fmt.Errorf("start link to the co: %w", err)
	}
	return nil
}

// Send publishes an encoded message to the CO, at QoS 1. It fails with kind
// Unavailable while there is no connection.
func (l *Link) Send(ctx context.Context, topic string, payload []byte) error {
	outcome, err := l.Begin(ctx, topic, payload)
	if err != nil {
		return err
	}
	return outcome(ctx)
}

// SendOnce publishes an encoded message to the CO, at QoS 0: it may get lost.
func (l *Link) SendOnce(ctx context.Context, topic string, payload []byte) error {
	return l.client.Publish(ctx, client.Message{Topic: topic, Payload: payload, ContentType: protocol.ContentType})
}

// Begin is the first half of Send, as client.Client.Begin is of Publish.
func (l *Link) Begin(ctx context.Context, topic string, payload []byte) (outcome func(context.Context) error, err error) {
	return l.client.Begin(ctx, client.Message{Topic: topic, Payload: payload, QoS: 1, ContentType: protocol.ContentType})
}

// Up reports whether the LO is connected to the CO.
func (l *Link) Up() bool { return l.client.Up() }

// Reconnect connects anew, so that a new certificate of the LO comes into use. It does not wait.
func (l *Link) Reconnect() { l.client.Reconnect() }

// Recheck ends the connection where the certificate of the CO was revoked.
func (l *Link) Recheck() { l.client.Recheck() }

// presence is the message that says whether the LO is connected.
func (l *Link) presence(online bool, session string) client.Message {
	return client.Message{
		Topic: topic.ForSite(topic.SiteOnline, l.opts.Site), QoS: 1, Retain: true, ContentType: protocol.ContentType,
		Payload: protocol.Marshal(&protocol.Presence{
			V: protocol.Version, Online: online, Agent: l.opts.Epoch(), Version: l.opts.Version, Session: session, Held: l.opts.Held(), Problem: l.opts.Problem(),
		}),
	}
}

// connected announces the site until the CO has accepted it, or ctx ends with the
// connection.
func (l *Link) connected(ctx context.Context, session string) {
	l.log.InfoContext(ctx, "link to the co is up")
	l.receiver.Connected(true)
	for ctx.Err() == nil {
		err := l.client.Publish(ctx, l.presence(true, session))
		if err == nil || ctx.Err() != nil {
			return
		}
		l.log.WarnContext(ctx, "presence of the site is not accepted yet", "retry_in", retryDelay.String(), "err", err)
		_ = retry.Sleep(ctx, retryDelay) // the end of ctx ends the loop, too
	}
}

// Announce sends the site's presence once more, for what it says has changed. Without a
// connection it does nothing: the next one begins with it.
func (l *Link) Announce(ctx context.Context) error {
	session := l.client.Session()
	if session == "" {
		return nil
	}
	if err := l.client.Publish(ctx, l.presence(true, session)); err != nil && l.client.Session() == session {
		return fmt.Errorf("publish presence of the site: %w", err)
	}
	return nil
}

// handle gives a message of the CO to the receiver.
func (l *Link) handle(_ context.Context, m client.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	switch t.Kind { //nolint:exhaustive // nothing else is subscribed to
	case topic.SiteDesired:
		if len(m.Payload) > 0 { // an empty one clears the topic; the desired state stays in force
			l.receiver.Desired(m.Payload)
		}
		return nil
	case topic.Ack:
		var a protocol.Ack
		if err := protocol.Unmarshal(m.Payload, &a); err != nil {
			return err
		}
		l.receiver.Ack(a)
		return nil
	case topic.Down:
		l.receiver.Down(m.Payload)
		return nil
	case topic.SiteTokens:
		return l.opts.Tokens(m.Payload)
	case topic.Revocations:
		return l.opts.Revocations(m.Payload)
	case topic.SiteCommand, topic.SiteCredit, topic.SiteInput, topic.SiteTime:
		return l.opts.Commands(t, m.Payload)
	default:
		return protocol.Errorf(protocol.Invalid, "unexpected topic %s", m.Topic)
	}
}

// Stop says that the site goes offline in an orderly way, so that the CO does not take
// it for lost, and ends the connection.
func (l *Link) Stop(ctx context.Context) error {
	var errs []error
	// The CO accepts it from the connection that it knows: an earlier one has ended already.
	if session := l.client.Session(); session != "" {
		short, cancel := context.WithTimeout(ctx, farewellTimeout)
		defer cancel()
		if err := l.client.Publish(short, l.presence(false, session)); err != nil && protocol.KindOf(err) != protocol.Unavailable && short.Err() == nil {
			errs = append(errs, fmt.Errorf("publish that the site goes offline: %w", err))
		}
	}
	return errors.Join(append(errs, l.client.Stop(ctx))...)
}
