package nodes

import (
	"cmp"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// keepCommands is how many commands that the LO carried out a record remembers.
const keepCommands = 32

// A Restriction is one that is in force on a node. Left is its remaining time, measured at time At of the boot Boot of the machine.
type Restriction struct {
	restriction.Restriction
	// Boot names the boot of the LO's machine that At is of; "": nothing is counted yet.
	Boot string `json:"boot,omitempty"`
	// At is when Left was counted, since the boot.
	At time.Duration `json:"at,omitempty"`
	// Left means nothing where ForMillis is 0: it has no end.
	Left time.Duration `json:"left,omitempty"`
}

// A Clock is what the LO knows of time without a clock that can be set.
type Clock struct {
	// Boot names the boot of the machine and is not empty, SinceBoot is what has passed since, also while the machine slept.
	Boot      string
	SinceBoot time.Duration
	// COMillis is the latest that the time of the CO can be, in milliseconds since 1970; 0: it is not known. What must not be late is held against it.
	COMillis int64
	// EstimateMillis is the best estimate of it, without a margin, and EstimateAge how long ago the CO was asked.
	EstimateMillis int64
	EstimateAge    time.Duration
}

// left returns what is left of a restriction; ends is false where it has no end. Over a boot, or where nothing is counted yet, what has
// passed is not known: it counts from the boot, or from now on, and where the time of the CO is known, that counts as well.
func (x *Restriction) left(c Clock) (left time.Duration, ends bool) {
	if x.ForMillis == 0 {
		return 0, false
	}
	switch x.Boot {
	case c.Boot:
		return x.Left - max(0, c.SinceBoot-x.At), true
	case "":
		left = x.Left
	default:
		left = x.Left - c.SinceBoot
	}
	if c.COMillis != 0 && x.UntilMillis != 0 {
		left = min(left, time.Duration(x.UntilMillis-c.COMillis)*time.Millisecond)
	}
	return left, true
}

// A Change is what is to be done about the restrictions of a node.
type Change struct {
	// Do is command.Cordon, Uncordon, Drain, Hold or Release.
	Do command.Kind
	// Reason, For and Force are as in restriction.Restriction; For 0: without an end.
	Reason string
	For    time.Duration
	Force  bool
	// Actor is the person that asks; "": the CO does without tokens.
	Actor string
	// Command is the command that asks; "": it is asked at the machine of the LO.
	Command command.ID
	// UntilMillis is when For is over by the clock of the CO, in milliseconds since 1970; 0: that is not known.
	UntilMillis int64
}

// ChangeOf returns the change that a command of a kind of the LO's own asks for. Its arguments were checked.
func ChangeOf(c *command.Command) (Change, error) {
	change := Change{Do: c.Kind, Actor: c.Actor, Command: c.ID}
	if len(c.Args) == 0 {
		return change, nil
	}
	var args command.Restriction
	if err := protocol.Unmarshal(c.Args, &args); err != nil {
		return change, err
	}
	change.SetTerms(args)
	if args.ForMillis > 0 {
		change.UntilMillis = c.IssuedMillis + int64(args.ForMillis)
	}
	return change, nil
}

// SetTerms sets the reason, the time and what follows from them.
func (c *Change) SetTerms(args command.Restriction) {
	c.Reason, c.Force, c.For = args.Reason, args.Force, time.Duration(args.ForMillis)*time.Millisecond
}

// Said is what is to be said, for people, of the change once it was carried out.
func (c *Change) Said(out Outcome) string {
	switch {
	case out.Duplicate:
		return "it was carried out before"
	case c.Do == command.Uncordon && len(out.Facts) == 0:
		return "the node was neither cordoned nor drained"
	case c.Do == command.Uncordon:
		return "the node is open for new work"
	case c.Do == command.Release && len(out.Facts) == 0:
		return "the node was not held"
	case c.Do == command.Release:
		return "the node is not held any more"
	}
	text := map[command.Kind]string{
		command.Cordon: "nothing new is placed on the node", command.Drain: "what can move leaves the node", command.Hold: "nothing on the node changes",
	}[c.Do]
	if c.For > 0 {
		return text + " for " + c.For.String()
	}
	return text + " until a person ends it"
}

// slot returns the kinds of which a node has one at most, with that of the change.
func (c *Change) slot() []restriction.Kind {
	if c.Do == command.Hold || c.Do == command.Release {
		return []restriction.Kind{restriction.Hold}
	}
	return []restriction.Kind{restriction.Cordon, restriction.Drain}
}

// Restrict carries a change out. One of a command that was carried out before changes nothing; what ends a restriction that there is
// none of changes nothing either, but that the command is remembered.
func (r *Record) Restrict(c Change, clock Clock, now time.Time) Outcome {
	if c.Command != "" && slices.Contains(r.Commands, c.Command) {
		return Outcome{Duplicate: true}
	}
	r.noteCommand(c.Command)
	before := len(r.Restrictions)
	r.Restrictions = slices.DeleteFunc(r.Restrictions, func(x Restriction) bool { return slices.Contains(c.slot(), x.Kind) })
	ends := c.Do == command.Uncordon || c.Do == command.Release
	if ends && len(r.Restrictions) == before {
		return Outcome{Changed: c.Command != ""}
	}
	if !ends {
		left := c.For
		if clock.COMillis != 0 && c.UntilMillis != 0 {
			left = time.Duration(c.UntilMillis-clock.COMillis) * time.Millisecond // it counts from the issue of the command on
		}
		r.Restrictions = append(r.Restrictions, Restriction{
			Restriction: restriction.Restriction{
				Kind: restriction.Kind(c.Do), Reason: c.Reason, Actor: c.Actor, Command: string(c.Command), SetMillis: now.UnixMilli(),
				ForMillis: uint64(c.For.Milliseconds()), UntilMillis: c.UntilMillis, Force: c.Force && c.Do == command.Drain,
			},
			Boot: clock.Boot, At: clock.SinceBoot, Left: left,
		})
		slices.SortStableFunc(r.Restrictions, holdLast)
	}
	change := &restriction.Change{Did: string(c.Do), Reason: c.Reason, Actor: c.Actor, Local: c.Command == "", Command: string(c.Command)}
	return Outcome{Changed: true, Facts: []Fact{r.restrictionFact(change, now)}}
}

// noteCommand remembers a command that was carried out; "" is none.
func (r *Record) noteCommand(id command.ID) {
	if id == "" || slices.Contains(r.Commands, id) {
		return
	}
	r.Commands = append(r.Commands, id)
	r.Commands = slices.Delete(r.Commands, 0, max(0, len(r.Commands)-keepCommands))
}

func holdLast(a, b Restriction) int {
	rank := func(k restriction.Kind) int {
		if k == restriction.Hold {
			return 1
		}
		return 0
	}
	return rank(a.Kind) - rank(b.Kind)
}

// ExpireRestrictions ends the restrictions of which nothing is left, and returns after how long it is to be called again; 0: never.
// every is how often what is left is counted anew, so that a reboot of the machine loses no more of it.
func (r *Record) ExpireRestrictions(clock Clock, every time.Duration, now time.Time) (out Outcome, next time.Duration) {
	var over []Restriction
	var still []Restriction
	for _, x := range r.Restrictions {
		left, ends := x.left(clock)
		if !ends {
			still = append(still, x)
			continue
		}
		if left <= 0 {
			over = append(over, x)
			continue
		}
		if x.Boot != clock.Boot || clock.SinceBoot-x.At >= every {
			x.Boot, x.At, x.Left = clock.Boot, clock.SinceBoot, left
			out.Changed = true
		}
		if soon := min(left, every); next == 0 || soon < next {
			next = soon
		}
		still = append(still, x)
	}
	r.Restrictions = still
	for _, x := range over {
		out.Changed = true
		out.Facts = append(out.Facts, r.restrictionFact(&restriction.Change{Did: restriction.Expired, Reason: x.Restriction.String()}, now))
	}
	return out, next
}

// SetWaits records what the restrictions of the node keep from being carried out: of each deployment the first that is named.
func (r *Record) SetWaits(now time.Time, waits []restriction.Wait) Outcome {
	slices.SortStableFunc(waits, func(a, b restriction.Wait) int { return cmp.Compare(a.Deployment, b.Deployment) })
	waits = slices.CompactFunc(waits, func(a, b restriction.Wait) bool { return a.Deployment == b.Deployment })
	waits = waits[:min(len(waits), restriction.MaxWaits)]
	if slices.Equal(r.Waits, waits) {
		return Outcome{}
	}
	r.Waits = slices.Clone(waits)
	return Outcome{Changed: true, Facts: []Fact{r.restrictionFact(nil, now)}}
}

// Restricted returns the restriction of some kinds that is in force; nil: there is none.
func (r *Record) Restricted(kinds ...restriction.Kind) *Restriction {
	i := slices.IndexFunc(r.Restrictions, func(x Restriction) bool { return slices.Contains(kinds, x.Kind) })
	if i < 0 {
		return nil
	}
	return &r.Restrictions[i]
}

// HeldBy says, for people, which person holds the node and why; "": it is not held.
func (r *Record) HeldBy() string {
	if x := r.Restricted(restriction.Hold); x != nil {
		return x.String()
	}
	return ""
}

// RestrictionReport is all that restricts the node.
func (r *Record) RestrictionReport() restriction.Report {
	m := restriction.Report{V: protocol.Version, Waits: r.Waits}
	for _, x := range r.Restrictions {
		m.Restrictions = append(m.Restrictions, x.Restriction)
	}
	return m
}

// RestrictionsLost is the fact of a record that was lost: nothing restricts the node any more.
func (r *Record) RestrictionsLost(now time.Time) Fact {
	return r.restrictionFact(&restriction.Change{Did: restriction.Lost}, now)
}

// restrictionFact is the event of the node's restrictions. An event without a change, or with the end of a restriction by time, may be
// replaced by a later one; an action of a person must reach the CO.
func (r *Record) restrictionFact(change *restriction.Change, now time.Time) Fact {
	m := r.RestrictionReport()
	m.Change = change
	f := fact(protocol.NodeRestrictions, r.Node, &m, now)
	if change == nil {
		f.Key = "restrictions/" + string(r.Node)
	}
	return f
}

// replayRestrictions adopts the restrictions of the journal. The remaining time of one that the record does not have counts from now
// on: the time since the event is unknown.
func (r *Record) replayRestrictions(m *restriction.Report) {
	var list []Restriction
	for _, x := range m.Restrictions {
		i := slices.IndexFunc(r.Restrictions, func(have Restriction) bool { return have.Restriction == x })
		if i >= 0 {
			list = append(list, r.Restrictions[i])
			continue
		}
		list = append(list, Restriction{Restriction: x, Left: time.Duration(x.ForMillis) * time.Millisecond})
	}
	if m.Change != nil {
		r.noteCommand(command.ID(m.Change.Command))
	}
	r.Restrictions, r.Waits = list, m.Waits
}
