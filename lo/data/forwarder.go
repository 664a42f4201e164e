// Package data stores a site's machine data until the CO has it. Each data rule has a stream: a
// queue on disk, which Accept appends to before a message is acknowledged, and a separate uplink
// that sends the queue to the CO.
//
// The messages that the site's broker retains are stored too. The broker gets them again after a
// restart, and the CO holds a copy of those that match a rule; see freshness for how that copy is
// kept right.
//
// The state directory holds data/<rule> (the queues), samples/<rule> (the messages that a sampling
// rule holds until its period ends), retained (the retained messages), stale/<rule> (the marks of
// stale copies) and datarules.cbor (the rules under which the copies were made).
package data

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600
	// reconcileInterval is how often Run looks at its streams.
	reconcileInterval = time.Second
)

// Options of a Forwarder. All must be given but those that say what 0 or nil means.
type Options struct {
	Site protocol.SiteID
	// Dir is the LO's state directory.
	Dir string
	// Gate is shared with the other streams of the link.
	Gate *pace.Gate
	// Begin sends a batch to the CO, as uplink.Options.Publish does.
	Begin func(ctx context.Context, topic string, payload []byte) (outcome func(context.Context) error, err error)
	// Rules returns the desired rules; ok is false while there is no desired state:
	// those of the last run stay in force.
	Rules func() (rules []protocol.DataRule, ok bool)
	// RetainedTopics and RetainedBytes bound what the site's broker retains. 0 means
	// 100,000 and 64 MiB.
	RetainedTopics int
	RetainedBytes  int64
	// Faulty, unless nil, is called by each Reconcile with the reason why the rules that
	// Rules returned last are not wholly in force. It is not called if they are.
	Faulty func(reason string)
	// Damaged, unless nil, is called for each file that is found damaged, by Open and when
	// the rules change. Its content counts as not held. It must not call the Forwarder.
	Damaged func(*statefile.Damage)
	// Fail is called when a stream cannot go on.
	Fail func(error)
	// Disk is where the state is; nil: the file system of the machine.
	Disk disk.FS
	// Now is the machine's clock. Nil: time.Now.
	Now func() time.Time
	// Unsynced reports whether Now is not synchronised. Nil: it is.
	Unsynced func() bool
	// Random names the epochs of the streams' journals. Nil: the machine's.
	Random     *random.Source
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// A Forwarder sends the site's machine data to the CO. Its methods may be called
// concurrently, except for Run and Reconcile.
//
// A message is accepted while mu is held for reading, so that the rules change between
// two messages and never during one. A retained one is stored and queued while sequence is
// held for reading too; a snapshot holds it for writing, so that queue and store agree
// on which messages came before the snapshot. The locks are acquired in the order mu,
// topics, sequence, stream.mu.
type Forwarder struct {
	o        Options
	clock    func() time.Time // see Now
	log      *slog.Logger
	retained *retained.Store

	up    atomic.Bool                    // the link to the CO
	table atomic.Pointer[datarule.Table] // of the rules in force
	rules notify.Signal                  // the desired ones changed

	sequence sync.RWMutex // protects the order of queue and store
	// topics are a striped lock: topics that hash alike share one. Two messages on one
	// topic are accepted one after the other where the last one counts.
	topics [256]sync.Mutex
	seed   maphash.Seed

	mu      sync.RWMutex // protects what follows
	streams map[string]*stream
	counts  map[string]*streamCounts
	fault   string // why the rules in force are not the desired ones
	closed  bool

	// What follows belongs to the goroutine of Run, and of Reconcile before it.

	reportState
	changed bool // the desired rules may not be in force
}

// Open loads the retained messages of an earlier run. Reconcile opens its queues.
func Open(o Options) (*Forwarder, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Unsynced == nil {
		o.Unsynced = func() bool { return false }
	}
	o.Disk = disk.Or(o.Disk)
	wall, began := o.Now(), time.Now()
	f := &Forwarder{
		o: o, clock: func() time.Time { return wall.Add(time.Since(began)) }, log: o.Logger.With("component", "data", "site_id", string(o.Site)), rules: notify.New(),
		streams: map[string]*stream{}, counts: map[string]*streamCounts{}, changed: true, seed: maphash.MakeSeed(),
		reportState: reportState{removed: map[string]protocol.DataRule{}, done: map[string]bool{}},
	}
	if err := f.loadReported(); err != nil {
		return nil, err
	}
	f.table.Store(f.reported)
	var err error
	if f.retained, err = retained.Open(filepath.Join(o.Dir, "retained"), retained.Options{
		MaxTopics: o.RetainedTopics, MaxBytes: o.RetainedBytes, Disk: o.Disk, Now: f.Now, Logger: f.log,
	}); err != nil {
		return nil, err
	}
	f.damage(f.retained.Damage())
	if f.retained.Lost() {
		for _, name := range f.known() { // the CO holds messages that are lost here
			if err := f.mark(name); err != nil {
				f.log.Error("stale retained messages could not be marked; the co may keep them", "rule", name, "err", err)
			}
		}
	}
	return f, nil
}

// Now is the clock of the retained messages: the machine's when this run began, plus the
// time since. Setting the machine's clock meanwhile makes no message older.
func (f *Forwarder) Now() time.Time { return f.clock() }

// Retained returns the store of the messages that the site's broker retains. Those that
// came from the CO have a Stream there; the Forwarder handles those that have none.
func (f *Forwarder) Retained() *retained.Store { return f.retained }

// damage reports a file that was found damaged; nil is none.
func (f *Forwarder) damage(found *statefile.Damage) {
	if found != nil && f.o.Damaged != nil {
		f.o.Damaged(found)
	}
}

// Rules returns the rules in force. They must not be changed.
func (f *Forwarder) Rules() []protocol.DataRule { return f.table.Load().Rules() }

func (f *Forwarder) queueDir(rule string) string { return filepath.Join(f.o.Dir, "data", rule) }

func (f *Forwarder) heldDir(rule string) string { return filepath.Join(f.o.Dir, "samples", rule) }

// Run reconciles whenever Adopt is called, and every second, until ctx ends.
func (f *Forwarder) Run(ctx context.Context) {
	ticker := time.NewTicker(reconcileInterval)
	defer ticker.Stop()
	for {
		f.Reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-f.rules.C():
			f.changed = true
		case <-ticker.C:
		}
	}
}

// Adopt has Run put the present desired rules into force.
func (f *Forwarder) Adopt() {
	f.rules.Notify()
}

// Reconcile puts changed rules into force, repairs stale copies and removes streams that
// are drained.
func (f *Forwarder) Reconcile(ctx context.Context) {
	if f.changed {
		rules := f.reported.Rules() // a site that has lost its desired state goes on
		if desired, ok := f.o.Rules(); ok {
			rules = desired
		}
		table, err := datarule.New(f.o.Site, rules)
		f.changed = false // rules that are not valid leave those before in force: a retry would not help
		if err == nil {
			err = f.apply(ctx, table)
			f.changed = err != nil
		}
		f.setFault(err)
	}
	if fault := f.Fault(); fault != "" && f.o.Faulty != nil {
		f.o.Faulty(fault)
	}
	for _, s := range f.all() {
		if err := f.reconcileStream(ctx, s); err != nil && ctx.Err() == nil {
			f.log.ErrorContext(ctx, "stream of machine data needs another try", "rule", s.rule.Name, "err", err)
		}
	}
}

func (f *Forwarder) setFault(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.fault
	f.fault = ""
	if err == nil {
		return
	}
	if f.fault = err.Error(); f.fault != was {
		f.log.Error("data rules are not wholly in force", "err", err)
	}
}

// all returns the streams in the order of their names.
func (f *Forwarder) all() []*stream {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.sorted()
}

// sorted is all for a caller that holds mu.
func (f *Forwarder) sorted() []*stream {
	out := make([]*stream, 0, len(f.streams))
	for _, s := range f.streams {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *stream) int { return strings.Compare(a.rule.Name, b.rule.Name) })
	return out
}

// apply puts rules into force. Those whose queue cannot be opened accept nothing; the
// error is about them, and about snapshots that could not be appended.
func (f *Forwarder) apply(ctx context.Context, table *datarule.Table) error {
	rules := table.Rules()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	desired, removed := map[string]protocol.DataRule{}, map[string]protocol.DataRule{}
	for _, r := range rules {
		if !r.Down {
			desired[r.Name] = r
		}
	}
	var errs []error
	for _, name := range f.known() {
		r, ok := desired[name]
		if !ok { // nothing new is accepted; what is queued goes to the CO
			r = f.removedRule(name)
			removed[name] = r
		}
		if err := f.reopen(r, !ok); err != nil {
			errs = append(errs, err)
		}
		delete(desired, name)
	}
	for _, r := range rules {
		if _, ok := desired[r.Name]; ok && !r.Down {
			errs = append(errs, f.reopen(r, false))
		}
	}
	f.removed = removed
	f.table.Store(table)
	return errors.Join(append(errs, f.report(ctx, table))...)
}

// known returns the names of the rules that have a queue, open or on disk, sorted.
func (f *Forwarder) known() []string {
	names := map[string]bool{}
	for name := range f.streams {
		names[name] = true
	}
	for _, dir := range []string{filepath.Dir(f.queueDir("x")), filepath.Dir(f.heldDir("x"))} {
		entries, err := f.o.Disk.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.log.Error("queues of the last run cannot be listed", "err", err)
		}
		for _, e := range entries {
			if _, err := protocol.ParseNodeID(e.Name()); err == nil && e.IsDir() {
				names[e.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Spare is how many bytes the queues may still grow by on the disk.
func (f *Forwarder) Spare() (n int64) {
	for _, s := range f.all() {
		stats := s.queue.Stats()
		n += max(stats.MaxBytes-stats.Bytes, 0)
	}
	return n
}

// reopen opens the stream of a rule, or opens it again where the rule changed. What is
// queued stays. The caller holds mu.
func (f *Forwarder) reopen(r protocol.DataRule, draining bool) error {
	s := f.streams[r.Name]
	if s != nil && same(s.rule, r) {
		s.draining = draining
		return nil
	}
	if s != nil {
		delete(f.streams, r.Name)
		if err := s.close(); err != nil {
			f.log.Error("close stream of machine data", "rule", r.Name, "err", err)
		}
	}
	counts := f.counts[r.Name]
	if counts == nil {
		counts = &streamCounts{}
		f.counts[r.Name] = counts
	}
	s, err := openStream(f, r, counts)
	if err != nil {
		return err
	}
	s.draining = draining
	_, err = f.o.Disk.Stat(f.markPath(r.Name))
	s.foundMark = err == nil
	f.streams[r.Name] = s
	if f.up.Load() {
		s.uplink.Connected(true)
	}
	f.log.Info("data rule in force", "rule", r.Name, "draining", draining, "queued", s.queue.Stats().Depth)
	return nil
}

func same(a, b protocol.DataRule) bool {
	return string(protocol.Marshal(a)) == string(protocol.Marshal(b))
}

// reconcileStream repairs a stale copy at the CO, and removes the stream if its rule was
// removed and its queue is empty.
func (f *Forwarder) reconcileStream(ctx context.Context, s *stream) error {
	if err := s.repair(ctx); err != nil {
		return err
	}
	if !s.draining || s.queue.Stats().Depth > 0 || isUp(f.reported, s.rule.Name) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[s.rule.Name] != s {
		return nil
	}
	delete(f.streams, s.rule.Name)
	delete(f.counts, s.rule.Name)
	err := s.close()
	for _, path := range []string{f.markPath(s.rule.Name), f.heldDir(s.rule.Name), f.queueDir(s.rule.Name)} {
		err = errors.Join(err, disk.RemoveAll(f.o.Disk, path))
	}
	if err != nil {
		return fmt.Errorf("remove queue of data rule %s: %w", s.rule.Name, err)
	}
	f.log.InfoContext(ctx, "queue of a removed data rule is delivered and removed", "rule", s.rule.Name)
	return f.o.Disk.SyncDir(filepath.Dir(f.queueDir(s.rule.Name)))
}

// Connected says that the link to the CO went up or down.
func (f *Forwarder) Connected(up bool) {
	f.up.Store(up)
	for _, s := range f.all() {
		s.uplink.Connected(up)
	}
}

// Ack gives an Ack to the stream that it names. A question that names none goes to all.
func (f *Forwarder) Ack(a protocol.Ack) {
	name, named := strings.CutPrefix(a.Stream, protocol.DataStream(""))
	for _, s := range f.all() {
		switch {
		case named && s.rule.Name == name:
			s.uplink.Ack(a)
		case a.Stream == "" && a.Ask:
			asked := a
			asked.Stream = protocol.DataStream(s.rule.Name)
			s.uplink.Ack(asked)
		}
	}
}

// Close closes all streams; what they hold is on disk then. No Accept may run meanwhile.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var errs []error
	for _, s := range f.sorted() {
		delete(f.streams, s.rule.Name)
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, f.retained.Close())...)
}
