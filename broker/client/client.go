// Package client is Colony's MQTT 5 client: one link to a broker, kept up for
// as long as the client runs, with the few promises that the tiers build on.
//
//   - Publish of QoS 1 returns after the broker's PUBACK, with its reason as an
//     error kind. While the link is down it fails at once: what must survive an
//     outage is kept by the caller, in a journal, and never in a queue here.
//   - Handle has returned before a received QoS 1 message is acknowledged.
//   - A link on which nothing arrives is given up after 1.5 × the keep-alive,
//     however much the TCP buffers still swallow, and each write has a deadline.
//   - A connection starts a clean session, unless SessionExpiry is set: the broker
//     keeps nothing for an absent client but what is retained. After a reconnect the
//     subscriptions are made again and retained messages arrive again.
//
// It speaks through the packet codec of paho.golang alone. That library's own
// client was measured and left aside: it acknowledges whatever the handler
// returned, has no write deadline, notices a half-open link after up to twice the
// keep-alive, and a full handler queue stops it from reading ping responses.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure a Client. The zero value of a field not marked as required
// takes the default that its comment names.
type Options struct {
	// URLs are the broker's addresses, tried in turn; at least one is required:
	// tcp://host:1883, tls://host:8883, ws://host/path, wss://host/path, unix:///path.
	URLs     []string
	ClientID string      // required
	Username string      // of CONNECT; empty: none
	Password string      // of CONNECT; empty: none
	TLS      *tls.Config // for tls and wss; nil: the system's roots
	// Proof is about the certificates of both ends, where TLS demands them.
	Proof Proof
	// Dial opens the connections that TLS and WebSocket go over. Nil: a net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Random draws the sessions' names and the waits between attempts. Nil: the machine's.
	Random *random.Source

	// KeepAlive is the longest silence before a ping. Default 30 s.
	KeepAlive time.Duration
	// ConnectTimeout bounds dialling, and then the broker's answers to CONNECT and
	// SUBSCRIBE, of every sixth attempt in a row that failed. The others give each of
	// these 1.5 s, so that one that began while the network swallowed everything does
	// not hold up the next. Default 10 s.
	ConnectTimeout time.Duration
	// WriteTimeout bounds the wait for the link to take the next 16 KiB. Default 10 s.
	WriteTimeout time.Duration
	// MaxBackoff caps the wait between attempts. Default 30 s.
	MaxBackoff time.Duration
	// ReceiveMaximum is how many unacknowledged QoS 1 messages the broker may send,
	// and how many messages may wait for Handle. Default 64.
	ReceiveMaximum uint16

	// SessionExpiry asks the broker to keep the session for that long after the end of a connection
	// (MQTT 5, section 3.1.2.11.2): messages with QoS 1 that match the subscriptions meanwhile
	// arrive on the next connection. 0: each connection begins anew. Only an external broker can do
	// that; the embedded one keeps no sessions.
	SessionExpiry time.Duration

	// Will returns the last will of the connection named session, or nil. It may be nil.
	Will func(session string) *Message
	// Subscriptions are made on each connection before OnUp. A broker that refuses
	// one of them is treated like one that refuses the connection.
	Subscriptions []Subscription
	// Handle takes the received messages, one after the other, in the order of their arrival. Its
	// error decides the acknowledgement of a QoS 1 message. With the kinds Invalid, NotFound,
	// Conflict and Denied the message is refused with a reason code. With any other kind the link
	// is closed without an acknowledgement, so that retained messages arrive again on the next
	// link. Its context ends with Stop.
	Handle func(ctx context.Context, m Message) error
	// OnUp is called, in a goroutine of its own, when the subscriptions are made; ctx
	// ends with the link. session differs between any two connections. May be nil.
	OnUp func(ctx context.Context, session string)
	// OnDown is called when a link that was up has ended and its OnUp has returned. May be nil.
	OnDown func(err error)
	// Logger is required.
	Logger *slog.Logger
}

// A Proof judges certificates. Each of its fields may be nil.
type Proof struct {
	// Left is for how long the broker's certificate lasts from now on, see identity.Holder. The link
	// ends with the certificate, and the next link uses the following one.
	Left func(s tls.ConnectionState) time.Duration
	// Standing returns an error where the broker's certificate was revoked; see Recheck.
	Standing func(s tls.ConnectionState) error
	// Refused is called when a broker that was reached by TLS does not let the client in: it may be
	// for the client's certificate, which is judged only after the client's end of the handshake. It is
	// not called for an attempt that began before the last Reconnect. It must not wait.
	Refused func()
}

const (
	maxPacket = protocol.MaxMessage + 64<<10 // a largest message and its headers
	firstWait = 500 * time.Millisecond       // the first step of the backoff
	// hastyTimeout is the ConnectTimeout of all attempts but one in patientEvery.
	hastyTimeout = 1500 * time.Millisecond
	patientEvery = 6
	steady       = 2 * time.Second // a link that lasted this long clears the backoff
)

func (o *Options) validate() error {
	var errs []error
	if len(o.URLs) == 0 {
		errs = append(errs, errors.New("no broker URL: give at least one"))
	}
	for _, raw := range o.URLs {
		if _, err := parseURL(raw); err != nil {
			errs = append(errs, err)
		}
	}
	if o.ClientID == "" {
		errs = append(errs, errors.New("no client id"))
	}
	if max(len(o.ClientID), len(o.Username), len(o.Password)) > 1<<16-1 {
		errs = append(errs, errors.New("client id, user name or password over 65,535 bytes"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	if len(o.Subscriptions) > 0 && o.Handle == nil {
		errs = append(errs, errors.New("subscriptions without a Handle function"))
	}
	for _, s := range o.Subscriptions {
		if s.QoS > 1 || s.Filter == "" {
			errs = append(errs, fmt.Errorf("subscription %q with QoS %d: want a filter and QoS 0 or 1", s.Filter, s.QoS))
		}
	}
	if o.SessionExpiry < 0 || o.SessionExpiry/time.Second > 1<<32-1 {
		errs = append(errs, fmt.Errorf("session expiry %s: want 0 to %d s", o.SessionExpiry, uint32(1<<32-1)))
	}
	if o.KeepAlive < 0 || o.KeepAlive > 18*time.Hour {
		errs = append(errs, fmt.Errorf("keep-alive %s: want up to 18 h", o.KeepAlive))
	}
	return errors.Join(errs...)
}

func (o *Options) defaults() {
	fill := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	fill(&o.KeepAlive, 30*time.Second)
	fill(&o.ConnectTimeout, 10*time.Second)
	fill(&o.WriteTimeout, 10*time.Second)
	fill(&o.MaxBackoff, 30*time.Second)
	if o.ReceiveMaximum == 0 {
		o.ReceiveMaximum = 64
	}
	if o.Handle == nil {
		o.Handle = func(context.Context, Message) error { return nil }
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext // the client's own probe is the keep-alive
	}
}

// A Client keeps one link to a broker. Its methods may be called concurrently.
type Client struct {
	o   Options
	log *slog.Logger

	stop context.CancelFunc // nil before Start
	done chan struct{}      // closed when the loop has ended

	mu sync.Mutex // protects link, stop, anew
	up *link      // nil while down
	// anew counts the calls of Reconnect: a link that was begun before one is not kept.
	anew uint64

	retryNow notify.Signal // by Reconnect: the wait for the next attempt is over
}

// New returns a client that is not started. The error lists every fault of o.
func New(o Options) (*Client, error) {
	if err := o.validate(); err != nil {
		return nil, &protocol.Error{Kind: protocol.Invalid, Message: "mqtt client: " + err.Error(), Err: err}
	}
	o.defaults()
	return &Client{o: o, log: o.Logger.With("component", "mqtt_client"), done: make(chan struct{}), retryNow: notify.New()}, nil
}

// Start begins to connect, and to reconnect until Stop. It does not wait for the
// link, and ctx does not end it. A client is started once.
func (c *Client) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return protocol.Errorf(protocol.Conflict, "mqtt client %s: started twice", c.o.ClientID)
	}
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	go c.run(ctx)
	return nil
}

// Stop ends the link with an orderly DISCONNECT, so that the last will is not
// sent, and waits for Handle, OnUp and OnDown to return, or for ctx.
func (c *Client) Stop(ctx context.Context) error {
	c.mu.Lock()
	stop := c.stop
	c.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop mqtt client: %w", ctx.Err())
	}
}

// Up reports whether the link is up and its subscriptions are made.
func (c *Client) Up() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up != nil
}

// Session names the link that is up, as OnUp does; "" while it is down.
func (c *Client) Session() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == nil {
		return ""
	}
	return c.up.session
}

// Subscribed reports whether the link is up and its broker has made the subscription of that filter.
func (c *Client) Subscribed(filter string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := func(s Subscription) bool { return s.Filter == filter && !slices.Contains(c.up.refused, filter) }
	return c.up != nil && slices.ContainsFunc(c.o.Subscriptions, made)
}

// Publish sends m. With QoS 0 it returns when the message is handed to the
// network; with QoS 1 after the broker's acknowledgement. Errors:
//
//   - Unavailable: the link is down, was lost before the acknowledgement (the
//     message may or may not have arrived), or the broker asks to try again.
//   - Denied, Invalid: the broker refused the message; the same call cannot succeed.
//   - ctx's error, if it ended first; the message may still arrive.
//
// Messages published one after the other arrive in that order.
func (c *Client) Publish(ctx context.Context, m Message) error {
	outcome, err := c.Begin(ctx, m)
	if err != nil {
		return err
	}
	return outcome(ctx)
}

// Begin is the first half of Publish: it returns when m is handed to the network, which waits while
// as many messages are under way as the broker allows. The second half, outcome, waits for the
// acknowledgement; it may be left out. So messages that are begun one after the other arrive in
// that order, and the caller need not wait for the acknowledgement of one before the next. The
// errors of both are those of Publish.
func (c *Client) Begin(ctx context.Context, m Message) (outcome func(context.Context) error, err error) {
	c.mu.Lock()
	l := c.up
	c.mu.Unlock()
	if l == nil {
		return nil, protocol.Errorf(protocol.Unavailable, "publish %s: no link to the broker", m.Topic)
	}
	answer, err := l.begin(ctx, &m)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return l.outcome(ctx, &m, answer) }, nil
}

func (c *Client) setUp(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = l
}

func (c *Client) generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.anew
}

// Reconnect ends the link with an orderly DISCONNECT, without its last will, and connects anew at once:
// the next link has what has changed, such as a certificate of this client. What was published and is
// not acknowledged yet fails with kind Unavailable, as at every end of a link. It does not wait.
func (c *Client) Reconnect() {
	c.mu.Lock()
	c.anew++
	l := c.up
	c.mu.Unlock()
	if l != nil {
		go l.disconnect(errAnew) // ends within the write timeout
	} else {
		c.retryNow.Notify()
	}
}

// Recheck ends the link, where the certificate of its broker was revoked, as Proof says, and
// reports whether it did.
func (c *Client) Recheck() (ended bool) {
	c.mu.Lock()
	l := c.up
	c.mu.Unlock()
	if l == nil || c.o.Proof.Standing == nil {
		return false
	}
	s := layers.TLS(l.conn)
	if s == nil {
		return false
	}
	err := c.o.Proof.Standing(*s)
	if err != nil {
		l.fail(protocol.Errorf(protocol.Denied, "the broker: %w", err))
	}
	return err != nil
}

// run connects again and again until ctx ends.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	tries := retry.Backoff{
		Policy: retry.Policy{Min: firstWait, Max: c.o.MaxBackoff, Jitter: 1}, Rand: c.o.Random.Rand("backoff/" + c.o.ClientID),
	}
	for attempt := 0; ctx.Err() == nil; attempt++ {
		raw := c.o.URLs[attempt%len(c.o.URLs)]
		begun := time.Now()
		wasUp, err := c.runOnce(ctx, raw, tries.Failures()%patientEvery != patientEvery-1)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAnew) && time.Since(begun) >= steady {
			c.log.InfoContext(ctx, "broker link is made anew", "url", redact(raw))
			attempt-- // the same broker
			continue
		}
		if wasUp && time.Since(begun) >= steady {
			tries.Reset()
		}
		wait := tries.Next()
		c.log.WarnContext(ctx, "broker link down", "url", redact(raw), "was_up", wasUp, "retry_in", wait, "err", err)
		_, _ = retry.SleepOr(ctx, wait, c.retryNow.C()) // the loop asks ctx
	}
}

// runOnce makes one connection and stays until it ends. It reports whether the
// link was up, and why it ended.
func (c *Client) runOnce(ctx context.Context, raw string, hasty bool) (wasUp bool, err error) {
	o := c.o
	if hasty {
		o.ConnectTimeout = min(o.ConnectTimeout, hastyTimeout)
	}
	begun := c.generation()
	conn, err := dial(ctx, raw, &o)
	if err != nil {
		return false, err
	}
	l := newLink(conn, &o, c.log)
	end := context.AfterFunc(ctx, func() { l.disconnect(errStopped) })
	defer end()
	if err := l.connect(); err != nil {
		l.fail(err)
		if layers.TLS(conn) != nil && o.Proof.Refused != nil && ctx.Err() == nil && c.generation() == begun { // else it was with what was before
			o.Proof.Refused()
		}
		return false, l.cause()
	}
	l.start(ctx)
	if err := l.subscribe(); err != nil {
		l.fail(err)
		l.wg.Wait()
		return false, l.cause()
	}
	c.setUp(l)
	l.expire()
	c.Recheck()
	if c.generation() != begun { // it was made with what was before
		go l.disconnect(errAnew)
	}
	c.log.InfoContext(ctx, "broker link up", "url", redact(raw), "session", l.session)
	var hooks sync.WaitGroup
	if c.o.OnUp != nil {
		hooks.Go(func() { c.o.OnUp(l.ctx, l.session) })
	}
	<-l.ctx.Done()
	c.setUp(nil)
	if l.term != nil {
		l.term.Stop()
	}
	l.wg.Wait()
	hooks.Wait()
	if c.o.OnDown != nil {
		c.o.OnDown(l.cause())
	}
	return true, l.cause()
}

// redact hides a password in a URL.
func redact(raw string) string {
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "unreadable url"
}
