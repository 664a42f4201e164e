// Package broker is the MQTT 5 and 3.1.1 broker that the Central and the Local Orchestrator embed.
// It owns no fact of Colony: what it retains is in memory, and its owner publishes it again after a
// restart. It stores sessions that outlive their connection, and the messages in them, for their
// clients, see package sessions; CONNACK names how long.
//
// Of the MQTT server mochi it uses the codec. It does not use mochi's sessions, subscriptions and
// retained messages: their faults could lose or leak messages of Colony, see DESIGN.md. A
// connection begins in connect.go and is read in serve.go; publish.go and subscribe.go act on its
// packets; stored.go joins it to its session. Package transport wraps the network connection,
// package routing decides which clients receive a message, package answer encodes the answers to a
// client.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/door"
	"github.com/colonyfleet/colony/broker/lasting"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/broker/wills"
	"github.com/colonyfleet/colony/internal/refusals"
	"github.com/colonyfleet/colony/protocol"
)

// A Broker serves MQTT on its listeners. Its methods may be called concurrently.
type Broker struct {
	o Options
	reports

	routes *routing.Router
	door   *door.Door
	wills  *wills.Sender
	bounds packet.Limits  // of what a packet may hold
	pace   transport.Pace // of the owner's messages

	transport transport.Options

	ctx    context.Context // ends when Stop begins
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections, what closes them, and what serves the broker

	pending   atomic.Int64 // bytes that wait in the memory of all connections, see conn
	relieving sync.Mutex   // held by the goroutine that disconnects clients because of pending

	mu        sync.RWMutex // protects what follows
	state     state
	listeners map[string]*door.Listener
	conns     map[*conn]struct{}
	sessions  map[string]*session // by client id
	store     *lasting.Sessions   // that outlive their connection; nil: none do; set by Start
	// identities holds what each name of identity uses, while it has sessions.
	identities map[string]*identity
}

// reports are where a broker says what happens.
type reports struct {
	log     *slog.Logger
	metrics *metrics.Metrics
	refused *refusals.Log // which refusals the log shows
}

type state int

const (
	created state = iota
	running
	stopped
)

// New returns a broker that is not started. The error lists every fault of o.
func New(o Options) (*Broker, error) {
	if err := o.Validate(); err != nil {
		return nil, &protocol.Error{Kind: protocol.Invalid, Message: "broker " + o.Name + ": " + err.Error(), Err: err}
	}
	o.Limits.Connections = cmp.Or(o.Limits.Connections, listen.Connections())
	o.Limits.Defaults()
	o.SysInterval = cmp.Or(o.SysInterval, 30*time.Second)
	b := &Broker{
		o:         o,
		reports:   reports{log: slog.New(refusals.Bounded(o.Logger.Handler())).With("component", "broker", "broker", o.Name)},
		listeners: make(map[string]*door.Listener),
		conns:     make(map[*conn]struct{}),
		sessions:  make(map[string]*session),
		bounds:    packet.Limits{Filters: o.Limits.SubscribeFilters, Levels: o.Limits.Levels, UserProperties: o.Limits.UserProperties},

		identities: make(map[string]*identity),
	}
	b.refused = refusals.New(b.log)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.metrics = metrics.New(o.Name, metrics.Held{
		Retained: func() int64 { return int64(b.routes.Retained.Count()) }, RetainedBytes: func() int64 { return b.routes.Retained.Bytes() },
		Waiting: b.pending.Load, Sessions: b.stats,
	})
	b.routes = routing.New(routing.Options{
		Access: o.Access, Limits: &b.o.Limits, Metrics: b.metrics, Logger: b.log, Accept: o.Accept, Context: b.ctx, Go: b.wg.Go,
	})
	b.door = door.New(door.Options{Limits: &b.o.Limits, Metrics: b.metrics, Refused: b.refused, Logger: b.log, Listen: o.Listen})
	b.wills = &wills.Sender{Access: o.Access, Routes: b.routes, Levels: o.Limits.Levels, Metrics: b.metrics, Refused: b.refused, Logger: b.log}
	b.transport = transport.Options{
		WriteBuffer: o.Limits.WriteBuffer, WriteTimeout: o.Limits.WriteTimeout, Pending: &b.pending, Go: b.wg.Go,
		Events: transport.Events{
			Dropped: b.metrics.Dropped, Expired: b.metrics.Expired,
			Unacknowledged: func(n int) { b.metrics.Inflight.Add(int64(n)) },
		},
	}
	return b, nil
}

// Start opens the listeners and serves them until Stop. It returns when clients
// can connect. A broker is started once.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != created {
		return protocol.Errorf(protocol.Conflict, "broker %s: started twice", b.o.Name)
	}
	if err := b.openStore(ctx); err != nil {
		b.state = stopped
		return err
	}
	for _, l := range b.o.Listeners {
		open, err := b.door.Open(b.ctx, l)
		if err != nil {
			b.state = stopped
			b.closeListeners()
			return errors.Join(fmt.Errorf("broker %s: listener %s: %w", b.o.Name, l.Name, err), b.closeStore())
		}
		b.listeners[l.Name] = open
		b.log.InfoContext(ctx, "broker listens", "listener", l.Name, "network", l.Network, "address", open.Address())
	}
	if err := b.metrics.Register(b.o.Registerer); err != nil {
		b.state = stopped
		b.closeListeners()
		return errors.Join(fmt.Errorf("broker %s: register metrics: %w", b.o.Name, err), b.closeStore())
	}
	if b.store != nil {
		b.store.Expire() // what was due while the broker was away is over before anybody comes
	}
	for _, l := range b.listeners {
		b.wg.Go(func() { b.acceptAll(l) })
	}
	b.wg.Go(b.keepHouse)
	b.state = running
	return nil
}

// Stop closes the listeners, disconnects every client with the reason "server
// shutting down", and waits for all of them, or for ctx, after which connections
// are cut. Last wills are not sent: the clients are as alive as before, and what
// the broker retains goes with it.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	was := b.state
	b.state = stopped
	open := make([]*conn, 0, len(b.conns))
	for c := range b.conns {
		open = append(open, c)
	}
	b.mu.Unlock()
	b.cancel()
	if was != running {
		return nil
	}
	b.closeListeners()
	for _, c := range open {
		b.disconnect(c, packets.ErrServerShuttingDown)
	}
	done := make(chan struct{})
	go func() { // ends at the latest when the last Accept returns
		b.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("stop broker %s: %w", b.o.Name, ctx.Err())
		for _, c := range open {
			c.Abort("stop")
		}
		select {
		case <-done:
		case <-time.After(time.Second):
			return fmt.Errorf("%w; an Accept function has not returned", err)
		}
	}
	b.refused.Summarise(time.Now(), true)
	b.metrics.Unregister(b.o.Registerer)
	return errors.Join(err, b.closeStore())
}

// Addr returns the address that a listener got, host:port or a path, or "" if
// there is no listener of that name or the broker is not started.
func (b *Broker) Addr(listener string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.listeners[listener]; l != nil {
		return l.Address()
	}
	return ""
}

// closeListeners closes what Start has opened.
func (b *Broker) closeListeners() {
	for _, l := range b.listeners { // written by Start only
		l.Close()
	}
}

// Publish sends m to the subscribers, and retains it if m.Retain is set, without access control and
// without Accept. It waits for no subscriber longer than two seconds. The content of m must not be
// changed afterwards.
func (b *Broker) Publish(ctx context.Context, m Message) error {
	return b.publish(ctx, m, b.pace.Waiting(forever))
}

// PublishAll is Publish of a list, in order. It waits for subscribers that lag behind
// half a second in all, however many messages there are; one that is then behind for
// more than its write buffer is disconnected. refused is called for each message that
// can never be published; an error is about all that are left.
func (b *Broker) PublishAll(ctx context.Context, list []Message, refused func(i int, err error)) error {
	w := b.pace.Waiting(listPatience)
	for i := range list {
		err := b.publish(ctx, list[i], w)
		switch {
		case err == nil:
		case protocol.KindOf(err) == protocol.Invalid:
			refused(i, err)
		default:
			return err
		}
	}
	return nil
}

// Restore retains m again after a restart of the broker; its owner knows that the broker retained m
// before. It delivers the message to no subscriber: sessions received it before the restart. It is called
// before Start; the error is of kind Conflict after that, and of kind Invalid for a message that cannot
// be retained. The content of m must not be changed afterwards.
func (b *Broker) Restore(ctx context.Context, m Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := message.Check(m); err != nil {
		return err
	}
	if !m.Retain || len(m.Payload) == 0 {
		return protocol.Errorf(protocol.Invalid, "restore %s: not a retained message with a payload", m.Topic)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != created {
		return protocol.Errorf(protocol.Conflict, "restore %s: broker %s was started", m.Topic, b.o.Name)
	}
	b.routes.Retain(message.Own(m))
	return nil
}

func (b *Broker) publish(ctx context.Context, m Message, w *transport.Waiting) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := message.Check(m); err != nil {
		return err
	}
	b.mu.RLock()
	serving := b.state == running
	b.mu.RUnlock()
	if !serving {
		return protocol.Errorf(protocol.Unavailable, "publish to %s: broker %s is not running", m.Topic, b.o.Name)
	}
	b.metrics.PublishedIn(m.QoS)
	one := message.Own(m)
	if err := b.routes.Storable(one); err != nil {
		return err
	}
	to := b.routes.Distribute(one, w)
	if len(to) == 0 {
		return nil
	}
	stored := make(chan error, 1)
	b.routes.StoreFor(to, one, func(err error) { stored <- err })
	select {
	case err := <-stored:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Retained returns the retained messages whose topics match a filter, in no
// order. Their owner uses it to clear those that it no longer wants.
func (b *Broker) Retained(filter string) []Message {
	var out []Message
	for c := b.routes.Retained.Find(filter); ; {
		names, done := b.routes.Retained.Next(&c)
		for _, name := range names {
			if m, ok := b.routes.Retained.Get(name); ok {
				out = append(out, m.Public())
			}
		}
		if done {
			return out
		}
	}
}

// stats are those of the sessions that are stored.
func (b *Broker) stats() (s sessions.Stats) {
	if b.store != nil {
		s = b.store.Stats()
	}
	return s
}

// track notes a new connection; false if the broker stops.
func (b *Broker) track(c *conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stopped {
		return false
	}
	b.conns[c] = struct{}{}
	b.wg.Add(1) // under mu, so that Stop does not wait for none and miss this one
	return true
}

func (b *Broker) untrack(c *conn) {
	c.AfterClose(func() { c.entry.Leave(time.Now()) }) // until then it has its descriptor
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	b.wg.Done()
}

// keepHouse forgets retained messages whose time is up, and publishes the $SYS
// topics. What it does each second costs nothing where nothing is due.
func (b *Broker) keepHouse() {
	expire, publish := time.NewTicker(time.Second), time.NewTicker(b.o.SysInterval)
	defer expire.Stop()
	defer publish.Stop()
	b.routes.PublishSys(b.atOnce)
	for {
		select {
		case now := <-expire.C:
			b.refused.Summarise(now, false)
			b.routes.Retained.Expire(now)
			if b.store != nil {
				b.store.Expire()
			}
		case <-publish.C:
			b.routes.PublishSys(b.atOnce)
		case <-b.ctx.Done():
			return
		}
	}
}

// atOnce waits for no subscriber that lags behind.
func (b *Broker) atOnce() *transport.Waiting { return b.pace.Waiting(0) }
