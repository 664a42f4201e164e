// Package datarule finds the rule of a site that applies to a message of machine
// data, and where the message is delivered: the CO and the LO use the same code. It
// also says what is wrong with a set of rules. It is pure.
package datarule

import (
	"errors"
	"strings"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Table finds the rule of a message. It never changes, and may be used
// concurrently.
type Table struct {
	rules []protocol.DataRule
	up    []entry
	down  []entry
}

// entry is one filter of a rule. One filter after the other, in the order of the
// rules, is what "the first rule that matches" means.
type entry struct {
	rule *protocol.DataRule
	// from is where matching topics begin, to what they begin with on the other side.
	from, to string
	// literal is from and the filter up to its first wildcard: most topics fail here.
	literal string
	filter  string
}

// New returns the table of a site's rules, which it copies. The error, of kind
// Invalid, lists what Validate finds.
func New(site protocol.SiteID, rules []protocol.DataRule) (*Table, error) {
	if faults := Validate(rules); len(faults) > 0 {
		err := errors.Join(faults...)
		return nil, protocol.Errorf(protocol.Invalid, "data rules of site %s:\n%w", site, err)
	}
	t := &Table{rules: append([]protocol.DataRule(nil), rules...)}
	for i := range t.rules {
		r := &t.rules[i]
		local := r.Local
		if local == "" {
			local = topic.ForTail(topic.Data, site, "")
		}
		for _, f := range r.Topics {
			if r.Down {
				t.down = append(t.down, newEntry(r, r.Remote, local, f))
			} else {
				t.up = append(t.up, newEntry(r, local, r.Remote, f))
			}
		}
	}
	return t, nil
}

func newEntry(r *protocol.DataRule, from, to, filter string) entry {
	literal := filter
	if i := strings.IndexAny(filter, "+#"); i >= 0 {
		literal = filter[:i]
		if filter[i] == '#' {
			literal = strings.TrimSuffix(literal, "/") // a/# matches a
		}
	}
	return entry{rule: r, from: from, to: to, literal: from + literal, filter: filter}
}

// Rules returns the rules in their order. They must not be changed.
func (t *Table) Rules() []protocol.DataRule { return t.rules }

// Up returns the rule that applies to a message which a client of the site's broker
// published, and the topic relative to colony/v1/{site}/data/ on which it is
// delivered at the CO. The rule must not be changed.
func (t *Table) Up(local string) (rule *protocol.DataRule, remote string, ok bool) {
	return find(t.up, local)
}

// Down returns the rule that applies to a message which a client of the CO's broker
// published on colony/v1/{site}/in/ and tail, and the whole topic on which it is
// delivered at the site's broker. The rule must not be changed.
func (t *Table) Down(tail string) (rule *protocol.DataRule, local string, ok bool) {
	return find(t.down, tail)
}

func find(entries []entry, name string) (*protocol.DataRule, string, bool) {
	for i := range entries {
		e := &entries[i]
		if !strings.HasPrefix(name, e.literal) || len(name) <= len(e.from) {
			continue // a topic has at least one character [MQTT-4.7.3-1]
		}
		if rest := name[len(e.from):]; topic.Matches(e.filter, rest) {
			return e.rule, e.to + rest, true
		}
	}
	return nil, "", false
}
