// Package command brings commands to their sites: it publishes each command, signed, until it has ended there, and then
// clears it. The record of commands is the owner: a command that a broker has forgotten is published again.
package command

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A Store is the record of commands.
type Store interface {
	// Pending returns the commands of which the broker may have something, of a site, or of all where it is empty; only
	// what changed since a time.
	Pending(ctx context.Context, site protocol.SiteID, since time.Time) ([]fleet.PendingCommand, error)
	// Cleared records that the broker has nothing more of commands, as they were read: not of those that changed since.
	Cleared(ctx context.Context, list []fleet.PendingCommand) error
	// GiveUp ends commands of which nothing more comes. It returns whether there may be more.
	GiveUp(ctx context.Context, now time.Time) (more bool, err error)
}

// A Sign signs a command, and returns its statement with the key set.
type Sign func(c *command.Command) (statement, keySet []byte, err error)

// Options are what a Loop needs. Store, Publish and Logger are required.
type Options struct {
	Store Store
	// Sign signs commands. Nil: this CO has no keys, and publishes none.
	Sign Sign
	// Publish publishes a payload for a command to a site, retained.
	Publish func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error
	// Lock waits until no other CO looks after all sites, and returns a context that ends when one may. Nil: there is no other.
	Lock func(ctx context.Context) (held context.Context, release func(), err error)
	// Every is the time between two looks for what other COs recorded. 0: 5 s.
	Every  time.Duration
	Logger *slog.Logger
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

const (
	defaultEvery = 5 * time.Second
	// margin is how long a transaction may take until its changes are seen, beyond the time that they name.
	margin = time.Minute
	// retryDelay is the wait after what could not be published.
	retryDelay = 2 * time.Second
)

// A Loop publishes commands. Its methods may be called concurrently, and never wait.
type Loop struct {
	opts Options
	log  *slog.Logger
	wake notify.Signal
	metrics

	// turn is held while a list of commands is brought to the broker: an earlier list must not undo a later one.
	turn sync.Mutex

	mu sync.Mutex // protects what follows
	// dirty are the sites that are to be looked at.
	dirty map[protocol.SiteID]bool
	// leads says that this CO looks after all sites.
	leads bool
	// sent is what the broker was given last of what it may still have, by site and command.
	sent map[protocol.SiteID]map[command.ID]step
}

// New returns a Loop. It works while Run does.
func New(o Options) *Loop {
	if o.Every <= 0 {
		o.Every = defaultEvery
	}
	return &Loop{
		opts: o, log: o.Logger.With("component", "commands"), wake: notify.New(), metrics: newMetrics(o.Registerer),
		dirty: map[protocol.SiteID]bool{}, sent: map[protocol.SiteID]map[command.ID]step{},
	}
}

// Changed says that the record of commands of a site may have changed.
func (l *Loop) Changed(site protocol.SiteID) {
	l.mu.Lock()
	l.dirty[site] = true
	l.mu.Unlock()
	l.wake.Notify()
}

// Committed is called with events of a site that are committed.
func (l *Loop) Committed(site protocol.SiteID, events []protocol.Event) {
	news := false
	for i := range events {
		if e := &events[i]; e.Kind == protocol.CommandReceived || e.Kind == protocol.CommandResult {
			l.count(e)
			news = true
		}
	}
	if news {
		l.Changed(site)
	}
}

// Connected says that a site has connected: it gets what may still come of commands once again, so that it reports what did not
// arrive, and learns what was cancelled.
func (l *Loop) Connected(site protocol.SiteID) {
	l.mu.Lock()
	leads := l.leads
	if leads {
		delete(l.sent, site)
	}
	l.mu.Unlock()
	if leads {
		l.Changed(site)
	}
}

// Republish says that the broker may have lost all that it had.
func (l *Loop) Republish() {
	l.mu.Lock()
	clear(l.sent)
	l.mu.Unlock()
	l.Changed("")
}

// Run publishes until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.lead(ctx) })
	for l.wake.Wait(ctx) == nil {
		l.mu.Lock()
		sites := l.dirty
		l.dirty = map[protocol.SiteID]bool{}
		l.mu.Unlock()
		if sites[""] {
			sites = map[protocol.SiteID]bool{"": true} // it is all of them
		}
		for site := range sites {
			if err := l.bring(ctx, site, time.Time{}); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "commands not published yet, trying again", "site_id", string(site), "err", err)
				l.Changed(site)
				if retry.Sleep(ctx, retryDelay) != nil {
					return
				}
			}
		}
	}
}

// lead looks after all sites while no other CO does.
func (l *Loop) lead(ctx context.Context) {
	for ctx.Err() == nil {
		held, release, err := ctx, func() {}, error(nil)
		if l.opts.Lock != nil {
			held, release, err = l.opts.Lock(ctx)
		}
		if err != nil {
			_ = retry.Sleep(ctx, retryDelay) // an error is the end of ctx
			continue
		}
		l.setLeads(true)
		l.Republish()
		l.sweep(held)
		l.setLeads(false)
		release()
	}
}

func (l *Loop) setLeads(v bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads = v
}

// sweep gives up what is past its time, and publishes what other COs recorded.
func (l *Loop) sweep(ctx context.Context) {
	for seen := time.Now(); ; {
		for more := true; more; {
			var err error
			if more, err = l.opts.Store.GiveUp(ctx, time.Now()); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "commands past their deadline not ended yet", "err", err)
			}
		}
		began := time.Now()
		switch err := l.bring(ctx, "", seen.Add(-margin)); {
		case err == nil:
			seen = began
		case ctx.Err() == nil:
			l.log.WarnContext(ctx, "commands not published yet, trying again", "err", err)
		}
		if retry.Sleep(ctx, l.opts.Every) != nil {
			return
		}
	}
}

// bring has the broker have what it should of the commands of a site, or of all sites, that changed since a time. One that
// fails does not keep the others.
func (l *Loop) bring(ctx context.Context, site protocol.SiteID, since time.Time) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	list, err := l.opts.Store.Pending(ctx, site, since)
	if err != nil {
		return err
	}
	if since.IsZero() {
		l.keep(site, list)
	}
	var errs []error
	var cleared []fleet.PendingCommand
	for i := range list {
		p := &list[i]
		want := decide(p, time.Now())
		if err := l.publish(ctx, p, want); err != nil {
			errs = append(errs, err)
			continue
		}
		if want == remove {
			cleared = append(cleared, *p)
		}
	}
	if len(cleared) > 0 {
		if err := l.opts.Store.Cleared(ctx, cleared); err != nil {
			return errors.Join(append(errs, err)...)
		}
		l.forget(cleared)
	}
	return errors.Join(errs...)
}

// keep forgets what was sent of commands that another CO has taken away since: list is all of a site, or of all sites.
func (l *Loop) keep(site protocol.SiteID, list []fleet.PendingCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	still := map[protocol.SiteID]map[command.ID]step{}
	for i := range list {
		p := &list[i]
		if s := l.sent[p.Site][p.ID]; s != 0 {
			if still[p.Site] == nil {
				still[p.Site] = map[command.ID]step{}
			}
			still[p.Site][p.ID] = s
		}
	}
	if site == "" {
		l.sent = still
	} else if delete(l.sent, site); still[site] != nil {
		l.sent[site] = still[site]
	}
}

// forget forgets what was sent of commands that have ended. One that a site reports all the same is removed once again.
func (l *Loop) forget(list []fleet.PendingCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range list {
		p := &list[i]
		if delete(l.sent[p.Site], p.ID); len(l.sent[p.Site]) == 0 {
			delete(l.sent, p.Site)
		}
	}
}

// publish takes a step, unless the broker was given the same before.
func (l *Loop) publish(ctx context.Context, p *fleet.PendingCommand, want step) error {
	l.mu.Lock()
	same := l.sent[p.Site][p.ID] == want
	l.mu.Unlock()
	if same {
		return nil
	}
	var payload []byte
	if want == ask {
		var err error
		if payload, err = l.envelope(p); err != nil {
			return err
		}
	}
	if err := l.opts.Publish(ctx, p.Site, p.ID, payload); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[p.Site] == nil {
		l.sent[p.Site] = map[command.ID]step{}
	}
	l.sent[p.Site][p.ID] = want
	return nil
}

// ErrNoKeys is the error of a CO that cannot sign.
var ErrNoKeys = protocol.Errorf(protocol.Conflict, "this CO has no keys to sign with, and sites carry out no command without a signature: "+
	"make keys with \"colony co keys init DIR\", name the directory as signing.dir in the configuration of the CO, give each site the public root key, and start them again (docs/security.md)")

// envelope is what a site gets.
func (l *Loop) envelope(p *fleet.PendingCommand) ([]byte, error) {
	if l.opts.Sign == nil {
		return nil, ErrNoKeys
	}
	c := Message(p)
	statement, keySet, err := l.opts.Sign(&c)
	if err != nil {
		return nil, err
	}
	return protocol.Marshal(&command.Envelope{V: protocol.Version, Statement: statement, KeySet: keySet}), nil
}

// Message is a command as it is signed for a site.
func Message(p *fleet.PendingCommand) command.Command {
	return command.Command{
		V: protocol.Version, ID: p.ID, Site: p.Site, Kind: p.Kind, Args: p.Encoded, Nodes: p.Nodes, Selector: p.Selector, All: p.All,
		IssuedMillis: p.CreatedAt.UnixMilli(), DeadlineMillis: p.Deadline.UnixMilli(), Budget: p.Budget, Actor: p.Actor,
	}
}

// A step is what a broker is given of a command.
type step int

const (
	_ step = iota
	// ask publishes the command.
	ask
	// cancel publishes that it is cancelled, for the site when it connects.
	cancel
	// remove publishes the same once: the site needs it no more.
	remove
)

// decide returns what the broker should have of a command.
func decide(p *fleet.PendingCommand, now time.Time) step {
	switch {
	case fleet.CommandOpen(p.State) && !p.Cancelled:
		return ask
	case fleet.CommandOpen(p.State), p.State == fleet.CommandCancelled && now.Before(p.Deadline):
		return cancel
	}
	return remove
}

// Time answers an encoded command.TimeAsk of a site: it returns the encoded command.Time.
func Time(payload []byte, now time.Time) ([]byte, error) {
	var m command.TimeAsk
	if err := command.Unmarshal(payload, &m); err != nil {
		return nil, err
	}
	return protocol.Marshal(&command.Time{V: protocol.Version, Nonce: m.Nonce, UnixMillis: now.UnixMilli()}), nil
}
