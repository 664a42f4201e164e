// Package data keeps a site's machine data until the CO has it. Each data rule has
// a lane: a journal on disk, which Take appends to before a message is
// acknowledged, and an uplink of its own that empties it by and by.
//
// What the site's broker retains is kept too, for the broker to have it after a
// restart, and for the CO to be told of it whenever it has missed something:
// between RetainedBegin and RetainedEnd come all messages that are retained under
// a lane. That is so after a gap, after a loss, and where the rules have changed.
//
// In the state directory are data/<rule> (the queues), samples/<rule> (what a
// sampling rule holds), retained, stale/<rule> (the CO may not know what is retained)
// and datarules.cbor (the rules under which it was told).
package data

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600
	// glance is how often the loop of data looks at its lanes.
	glance = time.Second
	// resyncPause is the shortest time between two lists of what is retained under
	// a lane that loses messages.
	resyncPause = time.Minute
)

// Options of a Plane. All must be given but those that say what 0 or nil means.
type Options struct {
	Site protocol.SiteID
	// Dir is the LO's state directory.
	Dir string
	// Gate is shared with the other lanes of the link.
	Gate *uplink.Gate
	// Send publishes a batch to the CO, as uplink.Options.Publish does.
	Send func(ctx context.Context, topic string, payload []byte) error
	// Rules returns the rules that are wanted; ok is false where nobody knows, and
	// those of the last run go on.
	Rules func() (rules []protocol.DataRule, ok bool)
	// RetainedTopics and RetainedBytes bound what the site's broker retains. 0 means
	// 100,000 and 64 MiB.
	RetainedTopics int
	RetainedBytes  int64
	// Faulty, unless nil, is told by each Pass why what Rules returned last is not
	// wholly in force.
	Faulty func(why string)
	// Fail is told where a lane cannot go on.
	Fail       func(error)
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// A Forwarder is the site's machine data on its way up. Its methods may be called
// concurrently, but for Run and Pass.
//
// A message is taken while mu is held for reading, so that the rules change between
// two messages and never during one. A retained one is stored and queued while
// order is held for reading too, so that a list of what is retained, made under
// the lock of order, has the same order in the queue and in the store. The locks are
// taken in the order mu, topics, order, lane.
type Forwarder struct {
	o        Options
	began    time.Time
	log      *slog.Logger
	retained *retained.Store

	up    atomic.Bool                    // the link to the CO
	table atomic.Pointer[datarule.Table] // of the rules in force
	rules notify.Signal                  // others are wanted

	order sync.RWMutex
	// topics keep those apart who publish on one topic, where the last word counts.
	topics [256]sync.Mutex
	seed   maphash.Seed

	mu      sync.RWMutex // protects what follows
	streams map[string]*stream
	counts  map[string]*streamCounts
	fault   string // why the rules in force are not those that are wanted
	closed  bool

	// Of Run, and of Pass before it:
	memory
	changed bool // what is wanted may not be in force
}

// Open finds again what an earlier run had retained. What it had queued Pass finds.
func Open(o Options) (*Forwarder, error) {
	d := &Forwarder{
		o: o, began: time.Now(), log: o.Logger.With("component", "data", "site_id", string(o.Site)), rules: notify.New(),
		streams: map[string]*stream{}, counts: map[string]*streamCounts{}, changed: true, seed: maphash.MakeSeed(),
		memory: memory{unreported: map[string]bool{}, removed: map[string]protocol.DataRule{}, listed: map[string]bool{}},
	}
	if err := d.loadReported(); err != nil {
		return nil, err
	}
	d.table.Store(d.reported)
	var err error
	if d.retained, err = retained.Open(filepath.Join(o.Dir, "retained"), retained.Options{
		MaxTopics: o.RetainedTopics, MaxBytes: o.RetainedBytes, Now: d.Now, Logger: d.log,
	}); err != nil {
		return nil, err
	}
	if d.retained.Lost() {
		for _, name := range d.known() { // the CO has what is not there any more
			if err := d.mark(name); err != nil {
				d.log.Error("the CO may go on with what is retained no more", "rule", name, "err", err)
			}
		}
	}
	return d, nil
}

// Now is the clock of what is retained: the machine's when this run began, and the
// time since. One that is set meanwhile makes nothing older.
func (d *Forwarder) Now() time.Time { return d.began.Add(time.Since(d.began)) }

// Retained is the store of what the site's broker retains. What came from the CO
// has a Lane there; the Plane sees to what has none.
func (d *Forwarder) Retained() *retained.Store { return d.retained }

// Rules returns the rules in force. They must not be changed.
func (d *Forwarder) Rules() []protocol.DataRule { return d.table.Load().Rules() }

func (d *Forwarder) queueDir(rule string) string { return filepath.Join(d.o.Dir, "data", rule) }

func (d *Forwarder) heldDir(rule string) string { return filepath.Join(d.o.Dir, "samples", rule) }

// stalePath is there while the CO may not know what is retained under a rule: after
// a loss, while topics move from rule to rule, and after a crash.
func (d *Forwarder) stalePath(rule string) string { return filepath.Join(d.o.Dir, "stale", rule) }

// Run keeps the lanes as the rules want them, until ctx ends.
func (d *Forwarder) Run(ctx context.Context) {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		d.Reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-d.rules.C():
			d.changed = true
		case <-ticker.C:
		}
	}
}

// Adopt has Run put the rules that are wanted now into force.
func (d *Forwarder) Adopt() {
	d.rules.Notify()
}

// Reconcile does once what is due: it puts the rules that are wanted into force.
func (d *Forwarder) Reconcile(ctx context.Context) {
	if d.changed {
		rules := d.reported.Rules() // a site that has lost its desired state goes on
		if desired, ok := d.o.Rules(); ok {
			rules = desired
		}
		table, err := datarule.New(d.o.Site, rules)
		d.changed = false // those before stay in force, and to try again would not help
		if err == nil {
			err = d.apply(ctx, table)
			d.changed = err != nil
		}
		d.setFault(err)
	}
	if f := d.Fault(); f != "" && d.o.Faulty != nil {
		d.o.Faulty(f)
	}
	for _, l := range d.all() {
		if err := d.care(ctx, l); err != nil && ctx.Err() == nil {
			d.log.ErrorContext(ctx, "lane of machine data needs another try", "rule", l.rule.Name, "err", err)
		}
	}
}

func (d *Forwarder) setFault(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.fault
	d.fault = ""
	if err == nil {
		return
	}
	if d.fault = err.Error(); d.fault != was {
		d.log.Error("data rules are not wholly in force", "err", err)
	}
}

// all returns the lanes in the order of their names.
func (d *Forwarder) all() []*stream {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.sorted()
}

func (d *Forwarder) sorted() []*stream {
	out := make([]*stream, 0, len(d.streams))
	for _, l := range d.streams {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *stream) int { return strings.Compare(a.rule.Name, b.rule.Name) })
	return out
}

// apply puts rules into force. Those whose queue cannot be opened take nothing; the
// error is about them, and about lists that could not be told.
func (d *Forwarder) apply(ctx context.Context, table *datarule.Table) error {
	rules := table.Rules()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	desired, removed := map[string]protocol.DataRule{}, map[string]protocol.DataRule{}
	for _, r := range rules {
		if !r.Down {
			desired[r.Name] = r
		}
	}
	var errs []error
	for _, name := range d.known() {
		r, ok := desired[name]
		if !ok { // nothing new is taken; what is queued goes to the CO
			r = d.leftover(name)
			removed[name] = r
		}
		if err := d.reopen(r, !ok); err != nil {
			errs = append(errs, err)
		}
		delete(desired, name)
	}
	for _, r := range rules {
		if _, ok := desired[r.Name]; ok && !r.Down {
			errs = append(errs, d.reopen(r, false))
		}
	}
	d.removed = removed
	d.table.Store(table)
	return errors.Join(append(errs, d.report(ctx, table))...)
}

// known returns the names of the rules that have a queue, here or on disk.
func (d *Forwarder) known() []string {
	names := map[string]bool{}
	for name := range d.streams {
		names[name] = true
	}
	for _, dir := range []string{filepath.Dir(d.queueDir("x")), filepath.Dir(d.heldDir("x"))} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Error("queues of the last run cannot be listed", "err", err)
		}
		for _, e := range entries {
			if _, err := protocol.ParseNodeID(e.Name()); err == nil && e.IsDir() {
				names[e.Name()] = true
			}
		}
	}
	out := make([]string, 0, len(names))
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// reopen makes the lane of a rule what the rule says. What is queued stays. The
// caller holds mu.
func (d *Forwarder) reopen(r protocol.DataRule, draining bool) error {
	l := d.streams[r.Name]
	if l != nil && same(l.rule, r) {
		l.draining = draining
		return nil
	}
	if l != nil {
		delete(d.streams, r.Name)
		if err := l.close(); err != nil {
			d.log.Error("close lane of machine data", "rule", r.Name, "err", err)
		}
	}
	counts := d.counts[r.Name]
	if counts == nil {
		counts = &streamCounts{}
		d.counts[r.Name] = counts
	}
	l, err := openStream(d, r, counts)
	if err != nil {
		return err
	}
	l.draining = draining
	_, err = os.Stat(d.stalePath(r.Name))
	l.found = err == nil
	d.streams[r.Name] = l
	if d.up.Load() {
		l.uplink.Connected(true)
	}
	d.log.Info("data rule in force", "rule", r.Name, "draining", draining, "queued", l.queue.Stats().Depth)
	return nil
}

func same(a, b protocol.DataRule) bool {
	return string(protocol.Marshal(a)) == string(protocol.Marshal(b))
}

// care does what a lane needs now and then: after a loss the CO must be told what
// is retained, and a lane whose rule is gone ends once it is empty.
func (d *Forwarder) care(ctx context.Context, l *stream) error {
	if err := l.repair(ctx); err != nil {
		return err
	}
	if !l.draining || l.queue.Stats().Depth > 0 || upRule(d.reported, l.rule.Name) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.streams[l.rule.Name] != l {
		return nil
	}
	delete(d.streams, l.rule.Name)
	delete(d.counts, l.rule.Name)
	err := l.close()
	for _, path := range []string{d.stalePath(l.rule.Name), d.heldDir(l.rule.Name), d.queueDir(l.rule.Name)} {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return fmt.Errorf("remove queue: %w", err)
	}
	d.log.InfoContext(ctx, "queue of a former data rule is delivered and removed", "rule", l.rule.Name)
	return atomicfile.SyncDir(filepath.Dir(d.queueDir(l.rule.Name)))
}

// Connected tells every lane that the link to the CO went up or down.
func (d *Forwarder) Connected(up bool) {
	d.up.Store(up)
	for _, l := range d.all() {
		l.uplink.Connected(up)
	}
}

// Ack hands an Ack to its lane; one that asks, and names no lane, to all.
func (d *Forwarder) Ack(a protocol.Ack) {
	name, named := strings.CutPrefix(a.Stream, protocol.DataStream(""))
	for _, l := range d.all() {
		switch {
		case named && l.rule.Name == name:
			l.uplink.Ack(a)
		case a.Stream == "" && a.Ask:
			asked := a
			asked.Stream = protocol.DataStream(l.rule.Name)
			l.uplink.Ack(asked)
		}
	}
}

// Close ends all lanes, with what they hold on disk. Nobody may be taking any more.
func (d *Forwarder) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for name, l := range d.streams {
		delete(d.streams, name)
		errs = append(errs, l.close())
	}
	return errors.Join(append(errs, d.retained.Close())...)
}
