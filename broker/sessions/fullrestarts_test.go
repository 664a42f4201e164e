package sessions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
)

// A trial is a store on a disk that is full over restarts, with a model of what its clients must get.
type trial struct {
	*rig
	rng     *rand.Rand
	disk    *simdisk.Disk
	room    int64 // bytes of the disk
	size    int   // bytes of a message, at most
	clients []*consumer
	named   int // messages
}

// A consumer is the client of a session as the model has it.
type consumer struct {
	name  string
	due   []string        // messages that were confirmed to their publisher and did not come
	ended map[string]bool // messages of QoS 2 whose PUBREC is stored
	over  bool            // its session has ended
}

// TestFullOverRestarts fills a disk, starts the store on it several times as a stop, a kill and a power cut leave it, while clients change
// their subscriptions, take messages, and end their sessions. Nothing that was confirmed is lost, or comes once more after its
// PUBREC was stored; when all is taken the disk has room as at first, without help.
func TestFullOverRestarts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newTrial(t, seed).run() })
		})
	}
}

func newTrial(t *testing.T, seed uint64) *trial {
	rng := rand.New(rand.NewPCG(seed, 11))
	x := &trial{rng: rng, disk: simdisk.New(seed), room: 1<<20 + rng.Int64N(1<<20), size: []int{4000, 16000}[rng.IntN(2)]}
	x.disk.Space(x.room)
	x.rig = &rig{t: t, dir: "/sessions", now: time.Now, dropped: make(map[string]int), disk: x.disk, segment: []int64{64 << 10, 128 << 10, 512 << 10}[rng.IntN(3)]}
	x.open()
	for i := range 2 + rng.IntN(3) {
		c := &consumer{name: fmt.Sprint("c", i), ended: make(map[string]bool)}
		x.clients = append(x.clients, c)
		x.session(c.name, 3600)
	}
	return x
}

func (x *trial) run() {
	defer x.close()
	stored := [2]int{}
	for round := range stored {
		for refused := 0; refused < 10; { // what is stored last may only wait for a checkpoint
			if x.publishSome() {
				stored[round]++
				continue
			}
			refused++
			time.Sleep(lazy)
		}
		for range 3 + x.rng.IntN(4) {
			x.change()
			x.restart()
		}
		x.takeAll()
		x.untilAccepted()
	}
	if stored[1] < stored[0]*2/3 {
		x.t.Errorf("the disk had room for %d messages at first, and for %d when all were consumed", stored[0], stored[1])
	}
	if st := x.Stats(); len(x.dropped) > 0 || st.Damaged > 0 {
		x.t.Errorf("dropped %v, damaged %v", x.dropped, x.damages)
	}
}

// used is how many bytes the files of the store take.
func (x *trial) used() (n int64) {
	entries, err := x.disk.List(x.dir)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			x.t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// restart starts the store anew, as a stop, a kill or a power cut leaves it.
func (x *trial) restart() {
	kind := x.rng.IntN(3)
	if kind > 0 {
		x.disk.Cut()
	}
	if err := x.Close(); err != nil && kind == 0 {
		x.t.Log("close:", err) // as where the disk takes nothing
	}
	free, _ := x.disk.Free(x.dir)
	x.disk.Restart(kind == 2)
	if kind == 2 { // a file that was removed may be there once more, and what took its room, too: as on no real disk
		x.room = max(x.room, x.used()+free)
	}
	x.disk.Space(x.room - x.used())
	x.open()
	for _, c := range x.clients {
		switch s := x.Get(c.name); {
		case s == nil && !c.over:
			x.t.Fatalf("the session of %s is lost", c.name)
		case s != nil && c.over: // its end was not written
			s.End()
		}
	}
}

// publishSome publishes a message to some sessions; false if it is refused.
func (x *trial) publishSome() bool {
	x.named++
	qos := byte(1 + x.rng.IntN(2))
	name := fmt.Sprint(x.named, "/", qos)
	var takers []*consumer
	var sessions []*Session
	for _, i := range x.rng.Perm(len(x.clients)) {
		if c := x.clients[i]; !c.over && (len(takers) == 0 || x.rng.IntN(3) == 0) {
			takers, sessions = append(takers, c), append(sessions, x.Get(c.name))
		}
	}
	if x.publish(name+"-"+strings.Repeat("x", 1+x.rng.IntN(x.size)), qos, sessions...) != nil {
		return false
	}
	for _, c := range takers {
		c.due = append(c.due, name)
	}
	return true
}

// change has clients do what they do on a full disk.
func (x *trial) change() {
	for range x.rng.IntN(20) {
		c := x.clients[x.rng.IntN(len(x.clients))]
		if c.over {
			continue
		}
		switch op := x.rng.IntN(100); {
		case op < 30:
			x.take(c, 1+x.rng.IntN(30))
		case op < 60:
			x.publishSome()
		case op < 80:
			x.Get(c.name).Subscribe(fmt.Sprint("f", x.rng.IntN(100)), Subscription{QoS: 1})
		case op < 98:
			time.Sleep(lazy)
		case c != x.clients[0]: // there is one left to publish to
			x.Get(c.name).End()
			c.over, c.due = true, nil
		}
	}
}

// take has a client take up to so many messages, and acknowledge them, a part of the last ones perhaps not.
func (x *trial) take(c *consumer, most int) {
	l := x.Get(c.name).Attach(to(1+x.rng.IntN(50)), 3600)
	defer l.Detach(3600, nil)
	var open []outgoing
	acknowledge := func(left int) bool {
		for ; len(open) > left; open = open[1:] {
			s := open[0]
			if s.QoS == 1 {
				l.Acknowledged(s.ID, Puback)
				continue
			}
			if recorded(l, s.ID) != nil {
				return false // the broker cuts the connection
			}
			c.ended[nameOf(s)] = true
			if x.rng.IntN(8) > 0 {
				l.Acknowledged(s.ID, Pubcomp)
			}
		}
		return true
	}
	for took := 0; took < most; {
		s, ok := l.next(time.Now())
		switch {
		case !ok && len(open) == 0:
			return
		case !ok:
			if !acknowledge(0) {
				return
			}
		case s.Release:
			l.Acknowledged(s.ID, Pubcomp)
		default:
			x.note(c, nameOf(s))
			took++
			if open = append(open, s); !acknowledge(x.rng.IntN(10)) {
				return
			}
		}
	}
}

func nameOf(s outgoing) string {
	name, _, _ := strings.Cut(string(s.Payload), "-")
	return name
}

// note compares a message that has come with the model.
func (x *trial) note(c *consumer, name string) {
	if c.ended[name] {
		x.t.Errorf("%s: message %s comes although its PUBREC was stored", c.name, name)
	}
	switch i := slices.Index(c.due, name); {
	case i > 0:
		x.t.Errorf("%s: message %s comes before %s", c.name, name, c.due[0])
	case i == 0:
		c.due = c.due[1:]
	}
}

// attempts is how often what a full disk refuses is tried, with restarts between.
const attempts = 200

// takeAll has the clients take all that is theirs.
func (x *trial) takeAll() {
	for range attempts {
		left := 0
		for _, c := range x.clients {
			if !c.over {
				x.take(c, 1<<20)
				left += x.Get(c.name).Len()
			}
		}
		if left == 0 {
			for _, c := range x.clients {
				if len(c.due) > 0 {
					x.t.Errorf("%s: %d messages are lost, the first is %s", c.name, len(c.due), c.due[0])
				}
			}
			return
		}
		if time.Sleep(lazy); x.rng.IntN(10) == 0 {
			x.restart()
		}
	}
	x.t.Fatalf("what the sessions have cannot be taken: %s", x.disk)
}

// untilAccepted publishes until a message is stored.
func (x *trial) untilAccepted() {
	for range attempts {
		if x.publishSome() {
			return
		}
		if time.Sleep(lazy); x.rng.IntN(10) == 0 {
			x.restart()
		}
	}
	x.t.Fatalf("nothing is stored although all was taken: %s", x.disk)
}
