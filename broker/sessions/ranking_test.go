package sessions

import (
	"fmt"
	"runtime"
	"testing"
)

// TestTotalBoundOfManySessions stores messages for all of many sessions, with as many stored as may be: each loses its
// oldest, no more are dropped than must be, and what that takes does not grow with the square of the sessions. The
// memory that it allocates shows this, as a look at all sessions for each message would be a list of them each time.
func TestTotalBoundOfManySessions(t *testing.T) {
	const many, each = 5000, 2
	r := newRig(t, Limits{TotalMessages: many * each, PerAddress: many})
	var all []*Session
	for i := range many {
		one, err := r.Create(fmt.Sprint("c", i), Owner{Name: fmt.Sprint("o", i), Identity: "i"}, Never)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	for i := range each {
		r.mustPublish(fmt.Sprint(i), 1, all...)
	}
	before := allocated()
	r.mustPublish("2", 1, all...)
	r.mustPublish("3", 1, all[0])
	if got := allocated() - before; got > 32<<20 {
		t.Errorf("%d MB are allocated to store a message for %d sessions at the bound, want at most 32", got>>20, many)
	}
	if n := r.Stats().Messages; n != many*each || r.dropped[DroppedTotal] != many+1 {
		t.Errorf("%d messages are stored and %d dropped, want %d and %d", n, r.dropped[DroppedTotal], many*each, many+1)
	}
	want(t, "the session that held most", receive(all[0].Attach(to(10), Never)), "3:2", "4:3")
	want(t, "another one", receive(all[1].Attach(to(10), Never)), "2:1", "3:2")
	for _, one := range all { // those that have ended do not stay in the ranking
		one.End()
	}
	s := r.session("last", 3600)
	for range many*each + 1 {
		r.Publish(&Publish{Body: Body{Topic: "t"}, To: []Target{{Session: s, Delivery: Delivery{QoS: 1}}}}, nil)
	}
	r.flush()
	if n := s.Len(); n != many*each {
		t.Errorf("the session holds %d messages, want %d", n, many*each)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestRankingOfEnded: a ranking that lasts does not keep sessions that have ended.
func TestRankingOfEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{TotalMessages: 100})
	heavy := r.session("heavy", 3600)
	for range 100 {
		r.mustPublish("x", 1, heavy)
	}
	for i := range 50 {
		light := r.session(fmt.Sprint("light", i), 3600)
		r.mustPublish("x", 1, light)
		light.End()
		r.mustPublish("y", 1, heavy)
	}
	if r.byMessages == nil {
		t.Fatal("there is no ranking: the test shows nothing")
	}
	if n := r.byMessages.Len(); n > 2*r.number()+1 {
		t.Errorf("the ranking has %d sessions, and there are %d", n, r.number())
	}
}
