package sessions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A reader is a client with a session as a model has it: what it must still get, in order.
type reader struct {
	session *Session
	link    *Link // nil while it is away
	due     []string
	acked   map[string]bool // since the last crash but one: a crash may bring them back
	sent    map[uint16]string
}

// TestCrashes lets random clients come and go, publishes to them, cuts the power again and again, with a log of
// small segments, so that checkpoints and copies happen all the time. Whatever was confirmed arrives, in
// order; what comes in addition was acknowledged shortly before a crash.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			r := newRig(t, Limits{})
			r.segment = 4 << 10
			r.reopen()
			readers := make([]*reader, 4)
			for i := range readers {
				readers[i] = &reader{session: r.session(fmt.Sprint("c", i), 3600), acked: map[string]bool{}}
			}
			r.flush()
			for n := range 1500 {
				one := readers[rng.IntN(len(readers))]
				switch op := rng.IntN(100); {
				case op < 45:
					publishToSome(t, r, rng, readers, n)
				case op < 60 && one.link == nil:
					one.link, one.sent = one.session.Attach(to(1+rng.IntN(5)), 3600), map[uint16]string{}
				case op < 85 && one.link != nil:
					one.takeSome(t, rng)
				case op < 95 && one.link != nil:
					one.link.Detach(3600, nil)
					one.link = nil
				case op == 99:
					if r.crash(); rng.IntN(3) == 0 {
						r.reopen()
					}
					for i, one := range readers {
						if one.session, one.link = r.Get(fmt.Sprint("c", i)), nil; one.session == nil {
							t.Fatalf("session %d is lost", i)
						}
					}
				}
			}
			r.crash()
			for i, one := range readers {
				one.session = r.Get(fmt.Sprint("c", i))
				one.link, one.sent = one.session.Attach(to(10_000), 3600), map[uint16]string{}
				one.takeAll(t)
			}
			if st := r.Stats(); st.Messages != 0 || st.Bytes != 0 || st.Damaged != 0 {
				t.Errorf("at the end %+v, want nothing", st)
			}
		})
	}
}

// publishToSome publishes to some readers and waits until that is confirmed.
func publishToSome(t *testing.T, r *rig, rng *rand.Rand, readers []*reader, n int) {
	payload := fmt.Sprint(n, "-", string(make([]byte, rng.IntN(300))))
	var to []*Session
	for _, one := range readers {
		if rng.IntN(2) == 0 {
			to = append(to, one.session)
			one.due = append(one.due, payload)
		}
	}
	r.mustPublish(payload, 1, to...)
}

// takeSome takes some messages, and acknowledges some of those that were taken.
func (one *reader) takeSome(t *testing.T, rng *rand.Rand) {
	for range rng.IntN(5) {
		if s, ok := one.link.next(time.Now()); ok {
			one.note(t, s)
		}
	}
	for id, payload := range one.sent {
		if rng.IntN(3) > 0 {
			one.acknowledge(id, payload)
		}
	}
}

func (one *reader) takeAll(t *testing.T) {
	for {
		s, ok := one.link.next(time.Now())
		if !ok {
			break
		}
		one.note(t, s)
	}
	for id, payload := range one.sent {
		one.acknowledge(id, payload)
	}
	if len(one.due) > 0 {
		t.Errorf("%d messages did not come, the first is %.20q", len(one.due), one.due[0])
	}
}

// note checks that a message is the next one that is due on this connection, or one that was acknowledged.
func (one *reader) note(t *testing.T, s outgoing) {
	payload := string(s.Payload)
	if !one.acked[payload] {
		under := 0 // due ones that are under way on this connection come before it
		for _, p := range one.sent {
			if !one.acked[p] {
				under++
			}
		}
		if i := slices.Index(one.due, payload); i < 0 || i > under {
			t.Fatalf("got %.20q, which is number %d of what is due, with %d under way", payload, i, under)
		}
	}
	one.sent[s.ID] = payload
}

func (one *reader) acknowledge(id uint16, payload string) {
	one.link.Acknowledged(id, Puback)
	delete(one.sent, id)
	one.acked[payload] = true
	one.due = slices.DeleteFunc(one.due, func(p string) bool { return p == payload })
}
