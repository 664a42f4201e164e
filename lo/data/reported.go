package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

// memory is what the plane knows of rules that were.
type memory struct {
	reported   *datarule.Table // of the rules under which the CO knows what is retained
	unreported map[string]bool // of these its queue could not be opened, and it knows nothing
	removed    map[string]protocol.DataRule

	listed    map[string]bool // what tell has done already for the rules listedFor
	listedFor string
}

// freshness is what a lane knows of what the CO knows to be retained.
type freshness struct {
	// Of the loop of data:
	lost     uint64            // messages, when the loop looked last
	found    bool              // stalePath was there when the lane was opened
	stale    bool              // the CO may not know what is retained
	waiting  bool              // and is to be told again when it has what awaits says
	awaits   map[string]uint64 // sequences, by rule
	resyncAt time.Time         // not before
	listedAt time.Time
	list     uint64 // the end of the list that the loop made last; 0: the CO has it

	unlisted atomic.Pointer[string] // why the CO cannot be told what is retained

	markMu sync.Mutex // protects doubted
	marked bool       // something was retained in this run, and stalePath is there
}

// record is what datarules.cbor holds.
type record struct {
	// Reported are the rules under which the CO was told what is retained.
	Reported []protocol.DataRule `cbor:"1,keyasint,omitempty"`
	// Removed are rules that are gone, and whose queue is not: its bounds stay theirs.
	Removed []protocol.DataRule `cbor:"2,keyasint,omitempty"`
}

func (d *Forwarder) toldFile() statefile.File {
	return statefile.File{Identity: statefile.Identity{Role: "lo/datarules", Name: string(d.o.Site)}, Path: filepath.Join(d.o.Dir, "datarules.cbor")}
}

// loadReported reads what the last run left; what is damaged counts as nothing.
func (d *Forwarder) loadReported() error {
	var m record
	_, err := d.toldFile().Load(func(b []byte) error { return protocol.Unmarshal(b, &m) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		m = record{}
		d.damage(damage)
		d.log.Error("data rules of the last run are damaged; the CO is told anew what is retained", "err", damage)
	} else if err != nil {
		return fmt.Errorf("read data rules of the last run: %w", err)
	}
	for _, r := range m.Removed {
		d.removed[r.Name] = r
	}
	if d.reported, err = datarule.New(d.o.Site, m.Reported); err != nil {
		d.log.Warn("rules of the last run cannot be read; the CO is told anew what is retained", "err", err)
		d.reported, err = datarule.New(d.o.Site, nil)
	}
	return err
}

// leftover returns what is left of a rule that is gone. The caller holds mu.
func (d *Forwarder) leftover(name string) protocol.DataRule {
	r, ok := d.removed[name]
	if !ok {
		r = protocol.DataRule{Name: name}
	}
	for _, old := range d.reported.Rules() {
		if old.Name == name && !old.Down {
			r = old
		}
	}
	if l := d.streams[name]; l != nil {
		r = l.rule
	}
	r.Sample = protocol.Sample{}
	return r
}

// upRule reports whether a table has a rule of that name that goes up.
func upRule(t *datarule.Table, name string) bool {
	return slices.ContainsFunc(t.Rules(), func(r protocol.DataRule) bool { return r.Name == name && !r.Down })
}

// report puts into each queue what is retained under it, where that changed with the
// rules. The caller holds mu.
func (d *Forwarder) report(ctx context.Context, table *datarule.Table) error {
	if key := string(protocol.Marshal(table.Rules())); d.listedFor != key {
		d.listedFor = key
		clear(d.listed)
	}
	before, after := d.mapping(d.reported), d.mapping(table)
	var errs []error
	for _, l := range d.sorted() {
		name := l.rule.Name
		removed := l.draining && upRule(d.reported, name) && l.queue.Last() > 0
		if d.listed[name] || slices.Equal(before[name], after[name]) && !removed && !d.unreported[name] {
			continue
		}
		_, err := l.resync(ctx)
		if protocol.KindOf(err) == protocol.Invalid {
			l.stale, err = true, d.mark(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tell the CO what data rule %s retains: %w", name, err))
			continue
		}
		d.listed[name] = true
	}
	if err := errors.Join(errs...); err != nil {
		return err // the others are not told again
	}
	if err := d.await(before, after); err != nil {
		return err
	}
	clear(d.unreported)
	var m record
	for _, r := range table.Rules() {
		if d.unreported[r.Name] = !r.Down && d.streams[r.Name] == nil; !d.unreported[r.Name] {
			m.Reported = append(m.Reported, r)
		}
	}
	for _, r := range d.removed {
		m.Removed = append(m.Removed, r)
	}
	if err := d.toldFile().Save(protocol.Marshal(&m)); err != nil {
		return fmt.Errorf("store data rules: %w", err)
	}
	d.reported = table
	clear(d.listed)
	return nil
}

// await has the CO told once more what is retained under rules that took topics
// from others: what the others have queued of these topics is older, and may come
// later. The caller holds mu.
func (d *Forwarder) await(before, after map[string][]string) error {
	owner := map[string]string{}
	for name, list := range before {
		for _, entry := range list {
			topic, _, _ := strings.Cut(entry, "\x00")
			owner[topic] = name
		}
	}
	for name, list := range after {
		l := d.streams[name]
		took := slices.ContainsFunc(list, func(entry string) bool {
			topic, _, _ := strings.Cut(entry, "\x00")
			was, ok := owner[topic]
			return ok && was != name
		})
		if l == nil || !took {
			continue
		}
		if err := d.mark(name); err != nil {
			return err
		}
		l.awaitOthers(d.sorted())
	}
	return nil
}

// awaitOthers notes what the other lanes have queued now.
func (l *stream) awaitOthers(all []*stream) {
	l.waiting, l.awaits = true, map[string]uint64{}
	for _, o := range all {
		if o != l {
			l.awaits[o.rule.Name] = o.queue.Last()
		}
	}
}

// arrived reports that the CO has all that was awaited.
func (l *stream) arrived() bool {
	for _, o := range l.forwarder.all() {
		if o.queue.Trimmed() < l.awaits[o.rule.Name] {
			return false
		}
	}
	return true
}

// mark notes on disk that the CO does not know for certain what is retained.
func (d *Forwarder) mark(rule string) error {
	if err := os.MkdirAll(filepath.Dir(d.stalePath(rule)), dirPerm); err != nil {
		return fmt.Errorf("note what the CO may not know: %w", err)
	}
	return atomicfile.Write(d.stalePath(rule), nil, filePerm)
}

// markStale leaves a mark before the first change of what is retained: a crash between
// the store and the queue must not leave the CO with something else for good.
func (l *stream) markStale() error {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	if l.marked {
		return nil
	}
	if err := l.forwarder.mark(l.rule.Name); err != nil {
		return protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	l.marked = true
	return nil
}

// clearStale takes the mark away, unless something is retained in this run: with end,
// nothing comes any more.
func (l *stream) clearStale(end bool) error {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	if l.marked && !end {
		return nil
	}
	path := l.forwarder.stalePath(l.rule.Name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.marked = false
	return atomicfile.Remove(path)
}

// losses counts what the CO will not get.
func (l *stream) losses() uint64 {
	st := l.queue.Stats()
	return st.Dropped + st.Lost + l.uplink.Status().Backlog.Expired
}

// repair tells the CO what is retained, where it may know something else.
func (l *stream) repair(ctx context.Context) error {
	if lost := l.losses(); lost != l.lost {
		if err := l.forwarder.mark(l.rule.Name); err != nil {
			return err
		}
		l.lost, l.stale = lost, true
	}
	if l.found {
		l.found, l.stale = false, true
		l.awaitOthers(l.forwarder.all()) // which may be what the mark was for
	}
	if l.waiting && l.arrived() {
		l.waiting, l.stale = false, true
	}
	now := time.Now()
	if l.list > 0 && l.queue.Trimmed() >= l.list {
		// On a slow link lists are a tenth of what it carries, at most.
		l.list, l.resyncAt = 0, later(l.resyncAt, now.Add(9*now.Sub(l.listedAt)))
	}
	if !l.stale || l.list > 0 || !l.forwarder.up.Load() || now.Before(l.resyncAt) {
		return nil
	}
	l.listedAt, l.resyncAt = now, now.Add(resyncPause)
	last, err := l.resync(ctx)
	if err != nil {
		return fmt.Errorf("tell the CO what is retained: %w", err)
	}
	l.list, l.stale = last, false
	if l.waiting {
		return nil
	}
	return l.clearStale(false)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
