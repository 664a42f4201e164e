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
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

// memory is what the plane knows of rules that were.
type memory struct {
	told   *datarule.Table // of the rules under which the CO knows what is retained
	untold map[string]bool // of these its queue could not be opened, and it knows nothing
	former map[string]protocol.DataRule

	listed    map[string]bool // what tell has done already for the rules listedFor
	listedFor string
}

// certainty is what a lane knows of what the CO knows to be retained.
type certainty struct {
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

	doubting sync.Mutex // protects doubted
	doubted  bool       // something was retained in this run, and stalePath is there
}

// record is what datarules.cbor holds.
type record struct {
	// Told are the rules under which the CO was told what is retained.
	Told []protocol.DataRule `cbor:"1,keyasint,omitempty"`
	// Former are rules that are gone, and whose queue is not: its bounds stay theirs.
	Former []protocol.DataRule `cbor:"2,keyasint,omitempty"`
}

func (d *Plane) toldPath() string { return filepath.Join(d.o.Dir, "datarules.cbor") }

// loadTold reads what the last run left; what is damaged counts as nothing.
func (d *Plane) loadTold() error {
	var m record
	b, err := os.ReadFile(d.toldPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read data rules of the last run: %w", err)
	}
	if err == nil {
		if err := protocol.Unmarshal(b, &m); err != nil {
			d.log.Warn("data rules of the last run are damaged; the CO is told anew what is retained", "err", err)
			m = record{}
		}
	}
	for _, r := range m.Former {
		d.former[r.Name] = r
	}
	if d.told, err = datarule.New(d.o.Site, m.Told); err != nil {
		d.log.Warn("rules of the last run cannot be read; the CO is told anew what is retained", "err", err)
		d.told, err = datarule.New(d.o.Site, nil)
	}
	return err
}

// leftover returns what is left of a rule that is gone. The caller holds mu.
func (d *Plane) leftover(name string) protocol.DataRule {
	r, ok := d.former[name]
	if !ok {
		r = protocol.DataRule{Name: name}
	}
	for _, old := range d.told.Rules() {
		if old.Name == name && !old.Down {
			r = old
		}
	}
	if l := d.lanes[name]; l != nil {
		r = l.rule
	}
	r.Sample = protocol.Sample{}
	return r
}

// upRule reports whether a table has a rule of that name that goes up.
func upRule(t *datarule.Table, name string) bool {
	return slices.ContainsFunc(t.Rules(), func(r protocol.DataRule) bool { return r.Name == name && !r.Down })
}

// tell puts into each queue what is retained under it, where that changed with the
// rules. The caller holds mu.
func (d *Plane) tell(ctx context.Context, table *datarule.Table) error {
	if key := string(protocol.Marshal(table.Rules())); d.listedFor != key {
		d.listedFor = key
		clear(d.listed)
	}
	before, after := d.mapping(d.told), d.mapping(table)
	var errs []error
	for _, l := range d.sorted() {
		name := l.rule.Name
		gone := l.draining && upRule(d.told, name) && l.queue.Last() > 0
		if d.listed[name] || slices.Equal(before[name], after[name]) && !gone && !d.untold[name] {
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
	clear(d.untold)
	var m record
	for _, r := range table.Rules() {
		if d.untold[r.Name] = !r.Down && d.lanes[r.Name] == nil; !d.untold[r.Name] {
			m.Told = append(m.Told, r)
		}
	}
	for _, r := range d.former {
		m.Former = append(m.Former, r)
	}
	if err := atomicfile.Write(d.toldPath(), protocol.Marshal(&m), filePerm); err != nil {
		return fmt.Errorf("store data rules: %w", err)
	}
	d.told = table
	clear(d.listed)
	return nil
}

// await has the CO told once more what is retained under rules that took topics
// from others: what the others have queued of these topics is older, and may come
// later. The caller holds mu.
func (d *Plane) await(before, after map[string][]string) error {
	owner := map[string]string{}
	for name, list := range before {
		for _, entry := range list {
			topic, _, _ := strings.Cut(entry, "\x00")
			owner[topic] = name
		}
	}
	for name, list := range after {
		l := d.lanes[name]
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
func (l *lane) awaitOthers(all []*lane) {
	l.waiting, l.awaits = true, map[string]uint64{}
	for _, o := range all {
		if o != l {
			l.awaits[o.rule.Name] = o.queue.Last()
		}
	}
}

// arrived reports that the CO has all that was awaited.
func (l *lane) arrived() bool {
	for _, o := range l.plane.all() {
		if o.queue.Trimmed() < l.awaits[o.rule.Name] {
			return false
		}
	}
	return true
}

// mark notes on disk that the CO does not know for certain what is retained.
func (d *Plane) mark(rule string) error {
	if err := os.MkdirAll(filepath.Dir(d.stalePath(rule)), dirPerm); err != nil {
		return fmt.Errorf("note what the CO may not know: %w", err)
	}
	return atomicfile.Write(d.stalePath(rule), nil, filePerm)
}

// doubt leaves a mark before the first change of what is retained: a crash between
// the store and the queue must not leave the CO with something else for good.
func (l *lane) doubt() error {
	l.doubting.Lock()
	defer l.doubting.Unlock()
	if l.doubted {
		return nil
	}
	if err := l.plane.mark(l.rule.Name); err != nil {
		return protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	l.doubted = true
	return nil
}

// certain takes the mark away, unless something is retained in this run: with end,
// nothing comes any more.
func (l *lane) certain(end bool) error {
	l.doubting.Lock()
	defer l.doubting.Unlock()
	if l.doubted && !end {
		return nil
	}
	path := l.plane.stalePath(l.rule.Name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.doubted = false
	return atomicfile.Remove(path)
}

// losses counts what the CO will not get.
func (l *lane) losses() uint64 { return l.queue.Stats().Dropped + l.uplink.Status().Backlog.Expired }

// repair tells the CO what is retained, where it may know something else.
func (l *lane) repair(ctx context.Context) error {
	if lost := l.losses(); lost != l.lost {
		if err := l.plane.mark(l.rule.Name); err != nil {
			return err
		}
		l.lost, l.stale = lost, true
	}
	if l.found {
		l.found, l.stale = false, true
		l.awaitOthers(l.plane.all()) // which may be what the mark was for
	}
	if l.waiting && l.arrived() {
		l.waiting, l.stale = false, true
	}
	now := time.Now()
	if l.list > 0 && l.queue.Trimmed() >= l.list {
		// On a slow link lists are a tenth of what it carries, at most.
		l.list, l.resyncAt = 0, later(l.resyncAt, now.Add(9*now.Sub(l.listedAt)))
	}
	if !l.stale || l.list > 0 || !l.plane.up.Load() || now.Before(l.resyncAt) {
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
	return l.certain(false)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
