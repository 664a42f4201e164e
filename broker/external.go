package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Delivery says what an External owes to the messages of a Source.
type Delivery int

// The deliveries.
const (
	// Stream messages are taken once. One that Take refuses is forgotten, because its
	// sender waits for an answer of its own and sends again.
	Stream Delivery = iota
	// State messages are taken by every program that is connected, and the last one
	// of a topic is tried until Take accepts it.
	State
	// Kept messages are held by the broker while no program is connected, as far as
	// its limits allow, and each is tried until Take accepts it.
	Kept
)

// A Source is a topic filter that an External subscribes to.
type Source struct {
	Filter   string
	Delivery Delivery
}

// ExternalOptions configure an External. URLs, ClientID, Take and Logger are required.
type ExternalOptions struct {
	// URLs are the broker's addresses, tried in turn, as in client.Options.
	URLs []string
	// ClientID is stable, and differs between the replicas of a program.
	ClientID, Username, Password string
	TLS                          *tls.Config
	KeepAlive                    time.Duration // default 30 s
	// Group is the name of the shared subscription (MQTT 5, section 4.8.2) over which
	// Stream and Kept messages are spread among the replicas. Default colony.
	Group   string
	Sources []Source
	// SessionExpiry is how long the broker keeps Kept messages. Default 24 h.
	SessionExpiry time.Duration

	// Take is called for each message, one after the other for State and Stream, and
	// beside them for Kept. The broker's own access control has admitted the sender; a
	// message whose topic is none of the protocol's is refused before Take. Its
	// identity is no more than the site that the topic names.
	Take func(ctx context.Context, from Identity, m Message) error
	// OnUp is called each time that the broker is connected: it may have lost what it
	// retained. ctx ends with the connection. May be nil.
	OnUp       func(ctx context.Context)
	Logger     *slog.Logger
	Registerer prometheus.Registerer // may be nil
}

// An External is a broker that somebody else runs, such as Mosquitto, or a cluster
// of EMQX or HiveMQ, in the place of a Broker: any that speaks MQTT 5 with shared
// subscriptions. Access control is the broker's own then; docs/operations.md says
// what it must enforce. Its methods may be called concurrently.
type External struct {
	o     ExternalOptions
	log   *slog.Logger
	main  *client.Client
	kept  *client.Client // nil where no Source is Kept
	gauge prometheus.GaugeFunc

	stop context.CancelFunc
	wg   sync.WaitGroup
	wake chan struct{}

	// mu is held while Take is called for a State message, so that an older one never
	// comes after a newer one.
	mu    sync.Mutex
	state map[string]Message // by topic, what Take has not accepted yet
}

// retry is the time between two tries of what Take did not accept.
const retry = time.Second

// NewExternal returns an External that is not connected. The error lists every fault.
func NewExternal(o ExternalOptions) (*External, error) {
	if o.Take == nil || o.Logger == nil {
		return nil, protocol.Errorf(protocol.Invalid, "external broker: Take and Logger must be given")
	}
	fill(&o.Group, "colony")
	fill(&o.SessionExpiry, 24*time.Hour)
	e := &External{
		o: o, log: o.Logger.With("component", "external_broker"),
		wake: make(chan struct{}, 1), state: map[string]Message{},
	}
	var streams, kept []client.Subscription
	for _, s := range o.Sources {
		shared := client.Subscription{Filter: "$share/" + o.Group + "/" + s.Filter, QoS: 1}
		switch s.Delivery {
		case Stream:
			streams = append(streams, shared)
		case State:
			streams = append(streams, client.Subscription{Filter: s.Filter, QoS: 1})
		case Kept:
			kept = append(kept, shared)
		}
	}
	base := client.Options{URLs: o.URLs, Username: o.Username, Password: o.Password, TLS: o.TLS, KeepAlive: o.KeepAlive, Logger: e.log}
	main := base
	main.ClientID, main.Subscriptions, main.Handle = o.ClientID, streams, e.handle
	main.OnUp = func(ctx context.Context, _ string) {
		e.log.InfoContext(ctx, "external broker is connected")
		if o.OnUp != nil {
			o.OnUp(ctx)
		}
	}
	main.OnDown = func(err error) { e.log.Warn("external broker is not connected", "err", err) }
	var err error
	if e.main, err = client.New(main); err != nil {
		return nil, fmt.Errorf("external broker: %w", err)
	}
	if len(kept) > 0 {
		hold := base
		hold.ClientID, hold.Subscriptions, hold.Handle = o.ClientID+"-in", kept, e.hold
		hold.SessionExpiry = o.SessionExpiry
		if e.kept, err = client.New(hold); err != nil {
			return nil, fmt.Errorf("external broker: %w", err)
		}
	}
	e.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "colony", Subsystem: "external_broker", Name: "up", Help: "1 while the external broker is connected.",
	}, func() float64 {
		if e.Up() {
			return 1
		}
		return 0
	})
	return e, nil
}

// Start begins to connect, and goes on until Stop. It does not wait for the broker.
func (e *External) Start(ctx context.Context) error {
	if e.o.Registerer != nil {
		if err := e.o.Registerer.Register(e.gauge); err != nil {
			return fmt.Errorf("external broker: register metrics: %w", err)
		}
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	e.wg.Go(func() { e.again(run) })
	if err := e.main.Start(ctx); err != nil {
		return err
	}
	if e.kept != nil {
		return e.kept.Start(ctx)
	}
	return nil
}

// Up reports whether the broker is connected.
func (e *External) Up() bool { return e.main.Up() && (e.kept == nil || e.kept.Up()) }

// Publish sends m, with QoS 2 as QoS 1, and returns when the broker has it. While
// the broker is away it fails with kind Unavailable.
func (e *External) Publish(ctx context.Context, m Message) error {
	m.QoS = min(m.QoS, 1)
	return e.main.Publish(ctx, m)
}

// Stop ends the connections, within ctx.
func (e *External) Stop(ctx context.Context) error {
	if e.stop == nil {
		return nil
	}
	e.stop()
	var errs []error
	if e.kept != nil {
		errs = append(errs, e.kept.Stop(ctx))
	}
	errs = append(errs, e.main.Stop(ctx))
	e.wg.Wait()
	if e.o.Registerer != nil {
		e.o.Registerer.Unregister(e.gauge)
	}
	return errors.Join(errs...)
}

// identity reads from the topic whose message it is.
func identity(m Message) (Identity, error) {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return Identity{}, protocol.Errorf(protocol.Invalid, "%w", err)
	}
	return Identity{Name: string(t.Site), Site: t.Site}, nil
}

// handle takes a Stream or State message. What cannot be taken now does not end
// the connection, which carries everybody's messages.
func (e *External) handle(ctx context.Context, m Message) error {
	from, err := identity(m)
	if err != nil {
		return err
	}
	if e.isState(m.Topic) {
		return e.handleState(ctx, from, m)
	}
	if err = e.o.Take(ctx, from, m); passes(err) {
		e.log.WarnContext(ctx, "message not taken, its sender will send it again", "topic", m.Topic, "err", err)
		return nil
	}
	return err
}

func (e *External) handleState(ctx context.Context, from Identity, m Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.state, m.Topic) // an older one that waits
	err := e.o.Take(ctx, from, m)
	if !passes(err) {
		return err
	}
	e.log.WarnContext(ctx, "message not taken yet", "topic", m.Topic, "err", err)
	e.state[m.Topic] = m
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return nil
}

// passes reports whether what made Take fail may be gone at the next try.
func passes(err error) bool {
	kind := protocol.KindOf(err)
	return err != nil && (kind == protocol.Unavailable || kind == protocol.Internal)
}

func (e *External) isState(name string) bool {
	for _, s := range e.o.Sources {
		if s.Delivery == State && covers(s.Filter, name) {
			return true
		}
	}
	return false
}

// again tries what Take did not accept until ctx ends.
func (e *External) again(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		for left := true; left; left = e.tryAll(ctx) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry):
			}
		}
	}
}

// tryAll tries each message once, and reports whether one is left.
func (e *External) tryAll(ctx context.Context) bool {
	e.mu.Lock()
	waiting := slices.Collect(maps.Keys(e.state))
	e.mu.Unlock()
	for _, name := range waiting {
		if !e.tryOne(ctx, name) {
			return true // the others meet the same
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.state) > 0
}

func (e *External) tryOne(ctx context.Context, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, ok := e.state[name]
	if !ok {
		return true // a newer one was taken
	}
	from, err := identity(m)
	if err == nil {
		err = e.o.Take(ctx, from, m)
	}
	if passes(err) {
		return false
	}
	if err != nil {
		e.log.ErrorContext(ctx, "message refused", "topic", name, "err", err)
	}
	delete(e.state, name)
	return true
}

// hold takes a Kept message, however long that takes: the broker holds those
// behind it.
func (e *External) hold(ctx context.Context, m Message) error {
	from, err := identity(m)
	if err != nil {
		return err
	}
	for {
		err := e.o.Take(ctx, from, m)
		if !passes(err) {
			return err
		}
		e.log.WarnContext(ctx, "message not taken yet", "topic", m.Topic, "err", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retry):
		}
	}
}
