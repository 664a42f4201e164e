package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
)

// reportState is what the Forwarder knows of the rules under which the CO holds its
// copies of the retained messages; see freshness. A change of the rules is reported by
// a snapshot in each stream whose copy they change. It belongs to the goroutine of Run.
type reportState struct {
	// reported are the rules that were reported last, and unreported those of them
	// whose queue could not be opened: their streams got no snapshot.
	reported   *datarule.Table
	unreported map[string]bool
	// removed are the rules that are in force no more and whose queue is not empty yet:
	// it keeps their bounds.
	removed map[string]protocol.DataRule

	// done are the streams that have their snapshot in a report that could not be
	// completed, of the rules encoded in doneFor.
	done    map[string]bool
	doneFor string
}

// reportRecord is what datarules.cbor holds of a reportState.
type reportRecord struct {
	Reported []protocol.DataRule `cbor:"1,keyasint,omitempty"` // without the unreported
	Removed  []protocol.DataRule `cbor:"2,keyasint,omitempty"`
}

func (f *Forwarder) reportedFile() statefile.File {
	return statefile.File{Disk: f.o.Disk, Identity: statefile.Identity{Role: "lo/datarules", Name: string(f.o.Site)}, Path: filepath.Join(f.o.Dir, "datarules.cbor")}
}

// loadReported reads what the last run stored. A damaged file counts as empty, so that
// each stream gets a snapshot.
func (f *Forwarder) loadReported() error {
	var m reportRecord
	_, err := f.reportedFile().Load(func(b []byte) error { return protocol.Unmarshal(b, &m) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		m = reportRecord{}
		f.damage(damage)
		f.log.Error("data rules of the last run are damaged; the co gets a snapshot of what is retained", "err", damage)
	} else if err != nil {
		return fmt.Errorf("read data rules of the last run: %w", err)
	}
	for _, r := range m.Removed {
		f.removed[r.Name] = r
	}
	if f.reported, err = datarule.New(f.o.Site, m.Reported); err != nil {
		f.log.Warn("data rules of the last run are not valid; the co gets a snapshot of what is retained", "err", err)
		f.reported, err = datarule.New(f.o.Site, nil)
	}
	return err
}

// saveReported makes table the rules that were reported last.
func (f *Forwarder) saveReported(table *datarule.Table) error {
	unreported := map[string]bool{}
	var m reportRecord
	for _, r := range table.Rules() {
		if !r.Down && f.streams[r.Name] == nil {
			unreported[r.Name] = true
		} else {
			m.Reported = append(m.Reported, r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.removed)) {
		m.Removed = append(m.Removed, f.removed[name])
	}
	if err := f.reportedFile().Save(protocol.Marshal(&m)); err != nil {
		return fmt.Errorf("store data rules: %w", err)
	}
	f.reported, f.unreported = table, unreported
	clear(f.done)
	return nil
}

// removedRule returns a rule that is in force no more, as its queue needs it. The
// caller holds mu.
func (f *Forwarder) removedRule(name string) protocol.DataRule {
	r, ok := f.removed[name]
	if !ok {
		r = protocol.DataRule{Name: name}
	}
	for _, old := range f.reported.Rules() {
		if old.Name == name && !old.Down {
			r = old
		}
	}
	if s := f.streams[name]; s != nil {
		r = s.rule
	}
	r.Sample = protocol.Sample{}
	return r
}

// isUp reports whether a table has a rule of that name for the way to the CO.
func isUp(t *datarule.Table, name string) bool {
	return slices.ContainsFunc(t.Rules(), func(r protocol.DataRule) bool { return r.Name == name && !r.Down })
}

// report brings the CO's copies in line with rules that have come into force. What it
// could not do it does at the next call. The caller holds mu.
func (f *Forwarder) report(ctx context.Context, table *datarule.Table) error {
	if key := string(protocol.Marshal(table.Rules())); f.doneFor != key {
		f.doneFor = key
		clear(f.done)
	}
	before, after := f.copies(f.reported), f.copies(table)
	if err := f.reportChanged(ctx, before, after); err != nil {
		return err
	}
	if err := f.awaitMoved(before, after); err != nil {
		return err
	}
	return f.saveReported(table)
}

// A copied is a retained message in a copy of the CO.
type copied struct{ topic, remote string } // its topic at the site and at the CO

// copies returns what the CO's copy of each stream has to hold under some rules.
func (f *Forwarder) copies(table *datarule.Table) map[string][]copied {
	out := map[string][]copied{}
	for _, m := range f.retained.Stream("") {
		if r, remote, ok := table.Up(m.Topic); ok {
			out[r.Name] = append(out[r.Name], copied{m.Topic, remote})
		}
	}
	return out
}

// reportChanged appends a snapshot to each stream whose copy is not the same under the
// new rules.
func (f *Forwarder) reportChanged(ctx context.Context, before, after map[string][]copied) error {
	var errs []error
	for _, s := range f.sorted() {
		name := s.rule.Name
		if f.done[name] || !f.changes(s, before[name], after[name]) {
			continue
		}
		_, err := s.appendSnapshot(ctx)
		if protocol.KindOf(err) == protocol.Invalid {
			// It is too large, which must not hold up the rules: repair tries again.
			s.stale, err = true, f.mark(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("report what data rule %s retains: %w", name, err))
			continue
		}
		f.done[name] = true
	}
	return errors.Join(errs...)
}

// changes reports whether new rules change the CO's copy of a stream.
func (f *Forwarder) changes(s *stream, before, after []copied) bool {
	name := s.rule.Name
	switch {
	case f.unreported[name]:
		return true // the CO may hold the copy of rules before those that were reported
	case s.draining && isUp(f.reported, name) && s.queue.Last() > 0:
		return true // the rule was removed: an empty snapshot has the CO delete its copy
	default:
		return !slices.Equal(before, after)
	}
}

// awaitMoved has each stream to which topics moved from other streams wait for these:
// what they have queued on the topics is older, and the CO may get it later.
func (f *Forwarder) awaitMoved(before, after map[string][]copied) error {
	owner := map[string]string{} // rule, by topic
	for name, list := range before {
		for _, m := range list {
			owner[m.topic] = name
		}
	}
	for _, s := range f.sorted() {
		name := s.rule.Name
		moved := slices.ContainsFunc(after[name], func(m copied) bool {
			was, ok := owner[m.topic]
			return ok && was != name
		})
		if !moved {
			continue
		}
		if err := f.mark(name); err != nil {
			return err
		}
		s.awaitOthers(f.sorted())
	}
	return nil
}
