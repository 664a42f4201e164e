package routing

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/quota"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
)

// A group is one subscriber, or the members of a shared subscription, of which one gets
// the message.
type group = []topictree.Match[*Subscriber]

// Distribute retains m if m.Retain is set, and puts it into the queues of its subscribers: first of
// those that keep up, then of those that lag behind, which w may wait for. It returns the sessions
// that m must be stored for.
func (r *Router) Distribute(m *message.Message, w *transport.Waiting) []sessions.Target {
	if m.Retain {
		r.Retain(m)
	}
	d := distributions.Get().(*distribution)
	d.r, d.f.Message = r, m
	r.tree.FindInto(&d.to, m.Topic)
	r.charge(m, &d.to)
	stored := r.separate(m, &d.to)
	for i := range d.to.Plain {
		if !local(m, &d.to.Plain[i]) {
			d.offer(d.to.Plain[i : i+1])
		}
	}
	for _, members := range d.to.Shared {
		d.offer(members)
	}
	if len(d.late) > 0 {
		d.await(w)
	}
	d.release()
	return stored
}

const (
	// freeSteps are those of a message that are not counted: it takes longer to read it.
	freeSteps = 100
	// freeStepsEach are those more that are not counted for each subscriber that gets the message: it takes longer to send it. So overlapping
	// filters of its subscribers cost a publisher nothing.
	freeStepsEach = 8
	// matchSlack is the time of which an account may have at once what it has not taken.
	matchSlack = 100 * time.Millisecond
	// matchDebt is how long an account waits at most for what it has taken: so long others of it may wait as well, such as those behind the
	// same address.
	matchDebt = 2 * time.Second
)

// charge counts the steps that it took to find the subscribers of a message for its publisher. What the owner of the broker publishes
// is not counted.
func (r *Router) charge(m *message.Message, to *topictree.Found[*Subscriber]) {
	if over := to.Steps - freeSteps - freeStepsEach*len(to.Plain); over > 0 && m.Owner != "" {
		r.steps.Take(m.Owner, over, time.Now())
	}
}

// Turn returns the place of a message in the line of its account, which has taken steps lately; nil where it waits for nothing, as it is
// free, or its account has not. Distribute ends the turn.
func (r *Router) Turn(m *message.Message) *quota.Turn {
	if !r.steps.Watched(m.Owner, time.Now()) || !r.tree.Exceeds(m.Topic, freeSteps, freeStepsEach) {
		return nil
	}
	return r.steps.Turn(m.Owner, !r.tree.Exceeds(m.Topic, r.little(), freeStepsEach))
}

// little is up to how many steps a message goes before those of its account that take more.
func (r *Router) little() int {
	const part = 100 // of a second
	return max(freeSteps, r.o.Limits.MatchRate/part)
}

// ChargeWill counts steps for a last will before it is known whether it is sent: as many as one takes, at most.
func (r *Router) ChargeWill(m *message.Message) {
	n := r.little()
	if r.tree.Exceeds(m.Topic, n, freeStepsEach) {
		n = math.MaxInt32
	}
	r.steps.Take(m.Owner, n, time.Now())
}

// local reports whether a subscriber does not want a message as it is its own. [MQTT-3.8.3-3]
func local(m *message.Message, sub *topictree.Match[*Subscriber]) bool {
	return sub.NoLocal && sub.To.Client == m.Origin
}

// A distribution is a message on its way to its subscribers.
type distribution struct {
	r     *Router
	f     message.Frames
	to    topictree.Found[*Subscriber]
	quick bool    // a subscriber that keeps up got it
	late  []group // have not got it, as they lag behind
}

// distributions are those of earlier messages: what one takes would else be allocated for each.
var distributions = sync.Pool{New: func() any { return new(distribution) }}

// retainedMatches is for how many subscribers a distribution keeps its memory.
const retainedMatches = 64

// release gives the memory back, with nothing of the message in it.
func (d *distribution) release() {
	to, late := d.to, d.late
	to.Clear()
	clear(late[:cap(late)])
	*d = distribution{late: late[:0]}
	if cap(to.Plain)+cap(to.Shared)+cap(late) <= retainedMatches {
		d.to = to
		distributions.Put(d)
	}
}

// offer delivers to a group, unless it lags behind.
func (d *distribution) offer(to group) {
	lags := -1
	for i := range to {
		sub := to[i].To.connection()
		if sub == nil || !d.r.entitled(to, i, d.f.Message.Topic) {
			continue
		}
		state := sub.Transport().State()
		if state == transport.Lags && to[i].To.Client == d.f.Message.Origin {
			state = transport.GivenUp // a client that waits for itself reads no acknowledgements
		}
		switch {
		case state == transport.KeepsUp && sub.Deliver(&d.f, deliveryFor(d.f.Message, &to[i], sub.V5())): // [MQTT-4.8.2-4]
			d.quick = true
			return
		case state == transport.Lags && lags < 0:
			lags = i
		}
	}
	if lags >= 0 {
		to[0], to[lags] = to[lags], to[0]
		d.late = append(d.late, d.r.withoutOthers(to, d.f.Message.Topic))
		return
	}
	d.deliver(d.r.withoutOthers(to, d.f.Message.Topic))
}

// entitled reports whether a member of a group may receive a topic: a matching filter is not enough, as
// devices may subscribe to anything. Where no other member is there, the delivery decides.
func (r *Router) entitled(to group, i int, topic string) bool {
	return len(to) == 1 || r.o.Access.MaySubscribe(to[i].To.ID, topic)
}

// withoutOthers are the members of a group that may receive a topic. It does not change the group.
func (r *Router) withoutOthers(to group, topic string) group {
	for i := range to {
		if r.entitled(to, i, topic) {
			continue
		}
		out := slices.Clone(to[:i])
		for j := i + 1; j < len(to); j++ {
			if r.entitled(to, j, topic) {
				out = append(out, to[j])
			}
		}
		return out
	}
	return to
}

// await delivers to the groups that lag behind. If no client has received the message yet, it waits
// until the fastest of them keeps up: publishers are slowed to its speed, and no message is lost
// that could be delivered. It waits for the others as long as the publisher's pace allows. A
// subscriber whose queue has no room then misses the message, and is disconnected.
func (d *distribution) await(w *transport.Waiting) {
	wait := func(whom string, most time.Duration, on ...*transport.Conn) time.Duration {
		begun := time.Now()
		if !transport.AwaitAny(on, most, Patience) {
			d.r.o.Metrics.Waits.Inc()
		}
		took := time.Since(begun)
		d.r.o.Metrics.Waited.WithLabelValues(whom).Add(took.Seconds())
		w.Left -= took
		return took
	}
	if most := min(w.Left, Patience); !d.quick && most > 0 {
		var all []*transport.Conn
		for _, to := range d.late {
			all = append(all, conns(to)...)
		}
		wait("fastest", most, all...)
	}
	for _, to := range d.late {
		if len(d.late) > 1 || d.quick {
			if most := min(w.Left, w.Pace.Left(time.Now())); most > 0 {
				w.Pace.Spend(wait("others", most, conns(to)...))
			}
		}
		d.deliver(to)
	}
}

// conns are the connections of a group that publishers may wait for: one of them is enough.
func conns(to group) (out []*transport.Conn) {
	for i := range to {
		if s := to[i].To.connection(); s != nil && s.Transport().State() != transport.GivenUp {
			out = append(out, s.Transport())
		}
	}
	return out
}

// deliver delivers to one of a group: if possible to one that keeps up.
func (d *distribution) deliver(to group) {
	for _, anyone := range []bool{len(to) == 1, true} {
		for i := range to {
			sub := to[i].To.connection()
			if sub != nil && (anyone || sub.Transport().State() == transport.KeepsUp) && sub.Deliver(&d.f, deliveryFor(d.f.Message, &to[i], sub.V5())) {
				return
			}
		}
	}
}

// deliveryFor is how a subscriber wants m.
func deliveryFor(m *message.Message, sub *topictree.Match[*Subscriber], v5 bool) message.Delivery {
	return message.Delivery{QoS: min(m.QoS, sub.QoS), Retain: m.Retain && sub.RetainAsPublished && v5, IDs: sub.Identifiers()}
}

// Withheld counts a message that a client subscribed to and may not get. That is as it should be for a
// device, whose wide filters are granted.
func (r *Router) Withheld(id access.Identity) {
	if !id.Device {
		r.o.Metrics.Dropped("access")
	}
}
