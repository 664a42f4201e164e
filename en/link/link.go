// Package link is the node's end of the link to its LO. It publishes the presence of the node,
// heartbeats, the inventory when it has changed, and the reports of the runner; it passes the
// node's desired state to the runner.
package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// engineUnknown is the time between two looks while the engine is not known.
	engineUnknown = 15 * time.Second
	retryAfter    = 2 * time.Second // after a message that the LO did not take
)

// A Runner runs what the LO desires. Its methods may be called concurrently.
type Runner interface {
	// Accept takes an encoded NodeDesired.
	Accept(ctx context.Context, payload []byte) error
	// Connected says that the link came up or went down.
	Connected(up bool)
	// StatusDigest is the digest of what the node runs.
	StatusDigest() uint64
	// Volumes are those that outlived their deployments, and how many there are.
	Volumes() (list []protocol.Volume, count int)
	// Unknown are the deployments that run on the node without an assignment.
	Unknown() []protocol.DeploymentName
}

// A Machine knows what the node is, and how it is. It is used by one goroutine at a time.
type Machine interface {
	// Collect returns the inventory; with an error it is without what the engine knows.
	Collect(ctx context.Context) (protocol.Inventory, error)
	// Heartbeat returns a heartbeat; the error says that the engine does not answer.
	Heartbeat(ctx context.Context) (protocol.Heartbeat, error)
}

// Options are the node's names and the ways to its LO.
type Options struct {
	Site protocol.SiteID
	Node protocol.NodeID
	// Presence is what the node says of itself; Online and Session are the Link's.
	Presence protocol.Presence
	// Damaged returns the files of state that were found damaged; it must not change what it
	// returned.
	Damaged func() []string
	// Problem says what is wrong with the disk of the state directory; "": nothing is.
	Problem func() string
	// MQTT are the URLs of the LO's broker, tried in turn.
	MQTT []string
	// KeepAlive is the longest silence before a ping, Heartbeat the time between two
	// heartbeats, Inventory that between two looks at the machine.
	KeepAlive, Heartbeat, Inventory time.Duration
	// TLS is the node's end of mutual TLS. Nil: that of the system's roots, without a certificate.
	TLS *tls.Config
	// Revocations takes an encoded SiteRevocations. Nil: they are not subscribed to.
	Revocations func(payload []byte) error
	// Commands takes what the LO sends about commands, on topics of the kinds NodeCommand, NodeCredit, NodeInput and NodeTime; it must not wait. Linked says
	// that the link went up or down. Nil: they are not subscribed to. An LO of an earlier release sends none.
	Commands func(t topic.Topic, payload []byte) error
	Linked   func(up bool)
	// Proof is that of the client.
	Proof client.Proof
	// Dial opens the connection. Nil: that of the system.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Random spreads the attempts to connect. Nil: the machine's.
	Random *random.Source
	Logger *slog.Logger
}

// A Link is one node's link to its LO. Report, ReportAll, Changed and Up may be called
// concurrently, and before Start; then nothing is sent.
type Link struct {
	o       Options
	log     *slog.Logger
	client  *client.Client
	runner  Runner        // set by Start, before anything uses it
	machine Machine       // likewise
	changed notify.Signal // the link came up, or what the node holds has changed

	away bool // the container engine, in the last inventory; Run's alone

	mu   sync.Mutex
	sent []byte // the inventory as last acknowledged on this link
	last inventory
}

// New returns a Link that is not started.
func New(o Options) (*Link, error) {
	l := &Link{o: o, log: o.Logger, changed: notify.New()}
	name := string(o.Node) + "." + string(o.Site)
	subscriptions := []client.Subscription{{Filter: topic.ForNode(topic.NodeDesired, o.Site, o.Node), QoS: 1}}
	if o.Revocations != nil {
		subscriptions = append(subscriptions, client.Subscription{Filter: topic.ForSite(topic.Revocations, o.Site), QoS: 1})
	}
	if o.Commands != nil {
		subscriptions = append(subscriptions,
			client.Subscription{Filter: topic.ForNodeCommand(topic.NodeCommand, o.Site, o.Node, topic.AnyCommand), QoS: 1, Optional: true},
			client.Subscription{Filter: topic.ForNodeCommand(topic.NodeCredit, o.Site, o.Node, topic.AnyCommand), Optional: true},
			client.Subscription{Filter: topic.ForNodeCommand(topic.NodeInput, o.Site, o.Node, topic.AnyCommand), Optional: true},
			client.Subscription{Filter: topic.ForNode(topic.NodeTime, o.Site, o.Node), Optional: true})
	}
	var err error
	l.client, err = client.New(client.Options{
		URLs: o.MQTT, ClientID: name, Username: name, KeepAlive: o.KeepAlive,
		Will: func(session string) *client.Message {
			m := l.presence(session, false)
			return &m
		},
		Subscriptions: subscriptions,
		Handle:        l.handle,
		OnUp:          l.greet,
		OnDown: func(err error) {
			l.linked(false)
			l.log.Warn("link to the lo lost, work goes on", "err", err)
		},
		Logger: o.Logger, TLS: o.TLS, Proof: o.Proof, Dial: o.Dial, Random: o.Random,
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Start connects, now and whenever the link is down. It does not wait for the LO.
func (l *Link) Start(ctx context.Context, runner Runner, machine Machine) error {
	l.runner, l.machine = runner, machine
	return l.client.Start(ctx)
}

// Up says whether the link is up.
func (l *Link) Up() bool { return l.client.Up() }

// Reconnect connects anew, so that a new certificate of the node comes into use. It does not wait.
func (l *Link) Reconnect() { l.client.Reconnect() }

// Recheck ends the connection where the certificate of the LO was revoked.
func (l *Link) Recheck() { l.client.Recheck() }

// Changed says that what the inventory says of the runner has changed.
func (l *Link) Changed() { l.changed.Notify() }

// handle passes a message of the LO to the runner, or to the list of revoked keys.
func (l *Link) handle(ctx context.Context, m client.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	if t.Kind == topic.Revocations && t.Site == l.o.Site && l.o.Revocations != nil {
		return l.o.Revocations(m.Payload)
	}
	if l.o.Commands != nil && t.Node == l.o.Node {
		switch t.Kind { //nolint:exhaustive // the others follow
		case topic.NodeCommand, topic.NodeCredit, topic.NodeInput, topic.NodeTime:
			return l.o.Commands(t, m.Payload)
		}
	}
	if t.Kind != topic.NodeDesired || t.Site != l.o.Site || t.Node != l.o.Node {
		return protocol.Errorf(protocol.Invalid, "message on %s, which is not this node's", m.Topic)
	}
	if len(m.Payload) == 0 {
		return nil // the LO cleared the topic: that is no desired state
	}
	err = l.runner.Accept(ctx, m.Payload)
	if disk.IsFull(err) {
		// An error of another kind would end the connection, and each later one when the message
		// is delivered again, and the LO would not learn why. The runner reports the position that
		// it holds, and the LO publishes the desired state again.
		return protocol.Errorf(protocol.Conflict, "%w", err)
	}
	return err
}

// linked says that the link went up or down.
func (l *Link) linked(up bool) {
	l.runner.Connected(up)
	if l.o.Linked != nil {
		l.o.Linked(up)
	}
}

// greet publishes the presence after each connect, and has the inventory sent again: the broker may
// have lost what it retained.
func (l *Link) greet(ctx context.Context, session string) {
	l.log.InfoContext(ctx, "link to the lo is up")
	l.insist(ctx, "presence", func() error { return l.client.Publish(ctx, l.presence(session, true)) })
	if ctx.Err() != nil {
		return
	}
	l.linked(true)
	l.mu.Lock()
	l.sent = nil
	l.mu.Unlock()
	l.changed.Notify()
}

// insist calls act until it succeeds or ctx ends, and logs each failure.
func (l *Link) insist(ctx context.Context, what string, act func() error) {
	for {
		err := act()
		if err == nil || ctx.Err() != nil {
			return
		}
		l.log.WarnContext(ctx, "message not accepted by the lo, trying again", "message", what, "err", err)
		_ = retry.Sleep(ctx, retryAfter) // the next failure ends it
	}
}

// presence is the node's presence, as a message or as a last will.
func (l *Link) presence(session string, online bool) client.Message {
	p := l.o.Presence
	p.V, p.Online, p.Session = protocol.Version, online, session
	m := l.message(topic.ForNode(topic.NodeOnline, l.o.Site, l.o.Node), p)
	m.QoS, m.Retain = 1, true
	return m
}

func (l *Link) message(name string, body any) client.Message {
	return client.Message{Topic: name, Payload: protocol.Marshal(body), ContentType: protocol.ContentType}
}

// Report carries a report of the runner to the LO.
func (l *Link) Report(ctx context.Context, r protocol.DeploymentStatus, durable bool) error {
	m := l.message(topic.ForStatus(l.o.Site, l.o.Node, r.Deployment), r)
	if durable {
		m.QoS = 1
	}
	return l.client.Publish(ctx, m)
}

// ReportAll carries everything that the node holds to the LO.
func (l *Link) ReportAll(ctx context.Context, r protocol.NodeReport) error {
	m := l.message(topic.ForNode(topic.NodeReport, l.o.Site, l.o.Node), &r)
	m.QoS = 1
	return l.client.Publish(ctx, m)
}

// Stop publishes that the node is offline, so that the LO need not wait for the last will, and closes
// the link.
func (l *Link) Stop(ctx context.Context) error {
	if l.client.Up() {
		// Without a session it holds for every session of this agent: it does not come back.
		if err := l.client.Publish(ctx, l.presence("", false)); err != nil {
			l.log.InfoContext(ctx, "offline message not accepted by the lo", "err", err)
		}
	}
	return l.client.Stop(ctx)
}

// Run sends heartbeats, and the inventory where it changed, until ctx ends.
func (l *Link) Run(ctx context.Context) {
	heart := time.NewTicker(l.o.Heartbeat)
	defer heart.Stop()
	look := time.NewTimer(l.o.Inventory)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heart.C:
			if away := l.heartbeat(ctx); away != l.away { // the LO learns it now, not at the next look
				look.Reset(l.sendInventory(ctx))
			}
		case <-l.changed.C():
			look.Reset(l.sendInventory(ctx))
			l.heartbeat(ctx)
		case <-look.C:
			look.Reset(l.sendInventory(ctx))
		}
	}
}

// heartbeat sends a heartbeat and reports whether the container engine is away.
func (l *Link) heartbeat(ctx context.Context) (away bool) {
	if !l.client.Up() {
		return l.away
	}
	h, fault := l.machine.Heartbeat(ctx)
	h.StatusDigest = l.runner.StatusDigest()
	if err := l.client.Publish(ctx, l.message(topic.ForNode(topic.Heartbeat, l.o.Site, l.o.Node), h)); err != nil {
		l.log.DebugContext(ctx, "heartbeat not sent", "err", err)
	}
	return fault != nil
}

// sendInventory publishes the inventory if the LO does not have it, and returns
// when to look again.
func (l *Link) sendInventory(ctx context.Context) time.Duration {
	next := l.o.Inventory
	inv, err := l.machine.Collect(ctx)
	l.away = err != nil
	if err != nil {
		l.log.WarnContext(ctx, "container engine not asked for the inventory, trying again", "err", err)
		next = min(next, engineUnknown)
	}
	volumes, count := l.runner.Volumes()
	inv.Volumes, inv.VolumeCount, inv.Unknown, inv.Damaged = volumes, uint32(count), l.runner.Unknown(), l.o.Damaged()
	inv.Problem = l.o.Problem()
	m := l.message(topic.ForNode(topic.Inventory, l.o.Site, l.o.Node), inv)
	m.QoS, m.Retain = 1, true
	l.mu.Lock()
	known := bytes.Equal(l.sent, m.Payload)
	l.mu.Unlock()
	if known || !l.client.Up() {
		return next
	}
	if err := l.client.Publish(ctx, m); err != nil {
		l.log.WarnContext(ctx, "inventory not accepted by the lo, trying again", "err", err)
		return min(next, engineUnknown)
	}
	l.sentInventory(inv, m.Payload)
	return next
}
