// Package external uses an MQTT 5 broker that others operate, such as Mosquitto, or a cluster of
// EMQX or HiveMQ, in the place of the embedded one.
package external

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Delivery says what a Broker owes to the messages of a Source.
type Delivery int

// The deliveries.
const (
	// Stream messages are taken once. One that Take refuses is forgotten, because its
	// sender waits for an answer of its own and sends again.
	Stream Delivery = iota
	// State messages are taken by every program that is connected, and the last one
	// of a topic is tried until Take accepts it.
	State
	// Retained messages are held by the broker while no program is connected, as far as
	// its limits allow, and each is tried until Take accepts it.
	Retained
)

// A Source is a topic filter that a Broker subscribes to.
type Source struct {
	Filter   string
	Delivery Delivery
}

// Options configure a Broker. URLs, ClientID, Take and Logger are required.
type Options struct {
	// URLs are the broker's addresses, tried in turn, as in client.Options.
	URLs []string
	// ClientID is stable, and differs between the replicas of a program.
	ClientID, Username, Password string
	TLS                          *tls.Config
	// KeepAlive is the longest silence before a ping. The broker gives the messages of a
	// program that is stopped to another one after 1.5 times as long. Default 6 s.
	KeepAlive time.Duration
	// Group is the name of the shared subscription (MQTT 5, section 4.8.2) over which
	// Stream and Kept messages are spread among the replicas. Default colony.
	Group   string
	Sources []Source
	// SessionExpiry is how long the broker keeps Kept messages. Default 24 h.
	SessionExpiry time.Duration

	// Accept is called for each message, one after the other for State and Stream, and
	// beside them for Kept. The broker's own access control has admitted the sender; a
	// message whose topic is none of the protocol's is refused before Take. Its
	// identity is no more than the site that the topic names.
	Accept func(ctx context.Context, from access.Identity, m client.Message) error
	// OnUp is called each time that the broker is connected: it may have lost what it
	// retained. ctx ends with the connection. May be nil.
	OnUp func(ctx context.Context)
	// Fit fails where Accept could store nothing, such as without a database. It is called each 2 s.
	// After 4 s of failure the connection is ended, so that the broker delivers the Stream messages to
	// other programs; it is made again when Fit returns no error. Nil: the connection stays.
	Fit        func(ctx context.Context) error
	Logger     *slog.Logger
	Registerer prometheus.Registerer // may be nil
}

// A Broker is an external broker: any that implements MQTT 5 with shared subscriptions. It has its
// own access control; docs/operations.md says what it must enforce. Its methods may be called
// concurrently.
type Broker struct {
	o        Options
	log      *slog.Logger
	main     *client.Client
	retainer *client.Client // nil where no Source is Kept
	gauge    prometheus.GaugeFunc

	unfit atomic.Bool // Fit has failed

	stop context.CancelFunc
	wg   sync.WaitGroup
	wake notify.Signal

	// mu is held while Take is called for a State message, so that an older one never
	// comes after a newer one.
	mu    sync.Mutex
	state map[string]client.Message // by topic, what Take has not accepted yet
}

// retryPolicy is the time between two tries of what Accept did not accept: all replicas
// of a tier have failed together, and do not come back together.
var retryPolicy = retry.Policy{Min: time.Second, Max: 5 * time.Second, Jitter: 0.5}

// New returns a Broker that is not connected. The error lists every fault.
func New(o Options) (*Broker, error) {
	if o.Accept == nil || o.Logger == nil {
		return nil, protocol.Errorf(protocol.Invalid, "external broker: Take and Logger must be given")
	}
	o.Group = cmp.Or(o.Group, "colony")
	o.SessionExpiry = cmp.Or(o.SessionExpiry, 24*time.Hour)
	o.KeepAlive = cmp.Or(o.KeepAlive, 6*time.Second)
	b := &Broker{
		o: o, log: o.Logger.With("component", "external_broker"),
		wake: notify.New(), state: map[string]client.Message{},
	}
	var streams, retained []client.Subscription
	for _, s := range o.Sources {
		shared := client.Subscription{Filter: "$share/" + o.Group + "/" + s.Filter, QoS: 1}
		switch s.Delivery {
		case Stream:
			streams = append(streams, shared)
		case State:
			streams = append(streams, client.Subscription{Filter: s.Filter, QoS: 1})
		case Retained:
			retained = append(retained, shared)
		}
	}
	base := client.Options{URLs: o.URLs, Username: o.Username, Password: o.Password, TLS: o.TLS, KeepAlive: o.KeepAlive, Logger: o.Logger}
	main := base
	main.Dial = b.dial
	main.ClientID, main.Subscriptions, main.Handle = o.ClientID, streams, b.handle
	main.OnUp = func(ctx context.Context, _ string) {
		b.log.InfoContext(ctx, "external broker is connected")
		if o.OnUp != nil {
			o.OnUp(ctx)
		}
	}
	main.OnDown = func(err error) { b.log.Warn("external broker is not connected", "err", err) }
	var err error
	if b.main, err = client.New(main); err != nil {
		return nil, fmt.Errorf("external broker: %w", err)
	}
	if len(retained) > 0 {
		hold := base
		hold.ClientID, hold.Subscriptions, hold.Handle = o.ClientID+"-in", retained, b.hold
		hold.SessionExpiry = o.SessionExpiry
		if b.retainer, err = client.New(hold); err != nil {
			return nil, fmt.Errorf("external broker: %w", err)
		}
	}
	b.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "colony_broker_external_up", Help: "1 while the external broker is connected.",
	}, func() float64 {
		if b.Up() {
			return 1
		}
		return 0
	})
	return b, nil
}

// Start begins to connect, and goes on until Stop. It does not wait for the broker.
func (b *Broker) Start(ctx context.Context) error {
	if b.o.Registerer != nil {
		if err := b.o.Registerer.Register(b.gauge); err != nil {
			return fmt.Errorf("external broker: register metrics: %w", err)
		}
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	b.wg.Go(func() { b.retry(run) })
	if b.o.Fit != nil {
		b.wg.Go(func() { b.judge(run) })
	}
	if err := b.main.Start(ctx); err != nil {
		return err
	}
	if b.retainer != nil {
		return b.retainer.Start(ctx)
	}
	return nil
}

// fitEvery is how often Fit is asked, and fitWithin bounds its answer.
const (
	fitEvery  = 2 * time.Second
	fitWithin = 4 * time.Second
)

// judge asks Fit until ctx ends, and ends the connection or lets it be made.
func (b *Broker) judge(ctx context.Context) {
	for retry.Sleep(ctx, fitEvery) == nil {
		asked, cancel := context.WithTimeout(ctx, fitWithin)
		err := b.o.Fit(asked)
		cancel()
		if ctx.Err() != nil || b.unfit.Swap(err != nil) == (err != nil) {
			continue
		}
		if err != nil {
			b.log.WarnContext(ctx, "nothing can be taken: the broker gives it to others", "err", err)
		}
		b.main.Reconnect()
	}
}

// dial connects, but for a program that can take nothing.
func (b *Broker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if b.unfit.Load() {
		return nil, protocol.Errorf(protocol.Unavailable, "this program can take nothing now")
	}
	return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, address) // MQTT's is the keep-alive
}

// Up reports whether the broker is connected.
func (b *Broker) Up() bool { return b.main.Up() && (b.retainer == nil || b.retainer.Up()) }

// Publish sends m, with QoS 2 as QoS 1, and returns when the broker has it. While
// the broker is away it fails with kind Unavailable.
func (b *Broker) Publish(ctx context.Context, m client.Message) error {
	m.QoS = min(m.QoS, 1)
	return b.main.Publish(ctx, m)
}

// PublishAll sends list in order, each message with QoS 2 as QoS 1, without waiting
// for the answer to one before it sends the next. See client.Client.PublishAll.
func (b *Broker) PublishAll(ctx context.Context, list []client.Message, refused func(i int, err error)) error {
	return b.main.PublishAll(ctx, withoutQoS2(list), refused)
}

// withoutQoS2 returns list with QoS 2 as QoS 1; list itself is not changed.
func withoutQoS2(list []client.Message) []client.Message {
	if !slices.ContainsFunc(list, func(m client.Message) bool { return m.QoS > 1 }) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].QoS = min(list[i].QoS, 1)
	}
	return list
}

// Stop ends the connections, within ctx.
func (b *Broker) Stop(ctx context.Context) error {
	if b.stop == nil {
		return nil
	}
	b.stop()
	var errs []error
	if b.retainer != nil {
		errs = append(errs, b.retainer.Stop(ctx))
	}
	errs = append(errs, b.main.Stop(ctx))
	b.wg.Wait()
	if b.o.Registerer != nil {
		b.o.Registerer.Unregister(b.gauge)
	}
	return errors.Join(errs...)
}

// identity reads from the topic whose message it is.
func identity(m client.Message) (access.Identity, error) {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return access.Identity{}, protocol.Errorf(protocol.Invalid, "%w", err)
	}
	return access.Identity{Name: string(t.Site), Site: t.Site}, nil
}

// handle takes a Stream or State message. What cannot be taken now does not end
// the connection, which carries everybody's messages.
func (b *Broker) handle(ctx context.Context, m client.Message) error {
	from, err := identity(m)
	if err != nil {
		return err
	}
	if b.isState(m.Topic) {
		return b.handleState(ctx, from, m)
	}
	if err = b.o.Accept(ctx, from, m); passes(err) {
		b.log.WarnContext(ctx, "message not accepted, its sender will send it again", "topic", m.Topic, "err", err)
		return nil
	}
	return err
}

func (b *Broker) handleState(ctx context.Context, from access.Identity, m client.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.state, m.Topic) // an older one that waits
	err := b.o.Accept(ctx, from, m)
	if !passes(err) {
		return err
	}
	b.log.WarnContext(ctx, "message not accepted yet", "topic", m.Topic, "err", err)
	b.state[m.Topic] = m
	b.wake.Notify()
	return nil
}

// passes reports whether what made Take fail may have ended at the next try.
func passes(err error) bool {
	kind := protocol.KindOf(err)
	return err != nil && (kind == protocol.Unavailable || kind == protocol.Internal)
}

func (b *Broker) isState(name string) bool {
	for _, s := range b.o.Sources {
		if s.Delivery == State && filter.Covers(s.Filter, name) {
			return true
		}
	}
	return false
}

// retry tries what Take did not accept until ctx ends.
func (b *Broker) retry(ctx context.Context) {
	for {
		if b.wake.Wait(ctx) != nil {
			return
		}
		wait := retry.Backoff{Policy: retryPolicy}
		for left := true; left; left = b.tryAll(ctx) {
			if wait.Wait(ctx) != nil {
				return
			}
		}
	}
}

// tryAll tries each message once, and reports whether one is left.
func (b *Broker) tryAll(ctx context.Context) bool {
	b.mu.Lock()
	waiting := slices.Collect(maps.Keys(b.state))
	b.mu.Unlock()
	for _, name := range waiting {
		if !b.tryOne(ctx, name) {
			return true // the others meet the same
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.state) > 0
}

func (b *Broker) tryOne(ctx context.Context, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.state[name]
	if !ok {
		return true // a newer one was taken
	}
	from, err := identity(m)
	if err == nil {
		err = b.o.Accept(ctx, from, m)
	}
	if passes(err) {
		return false
	}
	if err != nil {
		b.log.ErrorContext(ctx, "message refused", "topic", name, "err", err)
	}
	delete(b.state, name)
	return true
}

// hold takes a Kept message, however long that takes: the broker holds those
// behind it.
func (b *Broker) hold(ctx context.Context, m client.Message) error {
	from, err := identity(m)
	if err != nil {
		return err
	}
	wait := retry.Backoff{Policy: retryPolicy}
	for {
		err := b.o.Accept(ctx, from, m)
		if !passes(err) {
			return err
		}
		b.log.WarnContext(ctx, "message not accepted yet", "topic", m.Topic, "err", err)
		if wait.Wait(ctx) != nil {
			return err
		}
	}
}
