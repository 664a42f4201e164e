package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is an LO that counts: event n says n, and its state is the last n.
type site struct {
	t       *testing.T
	dir     string
	j       *journal.Journal
	u       *Uplink
	net     *network
	c       *fakeCO
	made    counter // events appended, ever
	opts    Options
	journal journal.Options
	// publish is the network's, unless something lies before it.
	publish func(ctx context.Context, topic string, payload []byte) (func(context.Context) error, error)

	stop context.CancelFunc
	done chan error
}

type counter struct{ atomic.Int64 }

func (c *counter) now() int { return int(c.Load()) }

// never is of a clock that is in step.
func never() bool { return false }

func newSite(t *testing.T, seed uint64) *site {
	c := &fakeCO{t: t, db: database{retired: map[string]bool{}}}
	net := &network{c: c, rng: rand.New(rand.NewPCG(seed, 3))}
	return &site{t: t, dir: filepath.Join(t.TempDir(), "journal"), net: net, c: c, publish: net.publish, journal: journal.Options{SegmentBytes: 8 << 10}}
}

// start opens the journal and runs the uplink, connected.
func (s *site) start() {
	s.t.Helper()
	j, err := journal.Open(s.dir, s.journal)
	if err != nil {
		s.t.Fatal(err)
	}
	o := s.opts
	o.Journal, o.Site, o.Publish, o.Resync = j, "plant", s.publish, Snapshots(j, s.snapshot, time.Now, never, func() {})
	o.Previous = j.Previous
	s.j, s.u = j, New(o)
	s.net.mu.Lock()
	s.net.up = s.u
	s.net.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.done = cancel, make(chan error, 1)
	go func() { s.done <- s.u.Run(ctx) }()
	s.u.Connected(true)
}

func (s *site) shut() {
	s.t.Helper()
	s.stop()
	if err := <-s.done; err != nil {
		s.t.Error(err)
	}
	s.net.wg.Wait()
	if err := s.j.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *site) snapshot() protocol.Snapshot {
	return protocol.Snapshot{Nodes: []protocol.NodeSnapshot{{Node: "n", Presence: protocol.Presence{Session: strconv.Itoa(s.made.now())}}}}
}

// produce appends n events.
func (s *site) produce(n int) {
	s.t.Helper()
	for range n {
		s.made.Add(1) // the state first, then the event
		body := protocol.Marshal(protocol.Event{
			Kind: protocol.NodeOnlineEvent, Node: "n",
			Body: protocol.Marshal(protocol.Presence{V: protocol.Version, Session: strconv.Itoa(s.made.now()), Version: strings.Repeat("v", s.made.now()%50)}),
		})
		if _, err := s.j.Append(context.Background(), journal.Entry{Class: journal.Event, Body: body}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// drain waits until the CO has everything.
func (s *site) drain() {
	s.t.Helper()
	deadline := time.Now().Add(time.Hour) // of the bubble's clock
	for {
		synctest.Wait()
		_, trimmed, last, _ := s.j.Position()
		if trimmed == last && s.u.Status().Acked == last {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the CO has %+v, the journal ends at %d; uplink %+v", s.c.seen().seq, last, s.u.Status())
		}
		<-time.After(time.Second)
	}
}

// number returns what an event says; a snapshot says the state it shows.
func number(t *testing.T, e protocol.Event) (n int, snapshot bool) {
	t.Helper()
	var session string
	switch e.Kind {
	case protocol.NodeOnlineEvent:
		var p protocol.Presence
		if err := protocol.Unmarshal(e.Body, &p); err != nil {
			t.Fatal(err)
		}
		session = p.Session
	case protocol.SnapshotEvent:
		var s protocol.Snapshot
		if err := protocol.Unmarshal(e.Body, &s); err != nil {
			t.Fatal(err)
		}
		session, snapshot = s.Nodes[0].Presence.Session, true
	default:
		t.Fatalf("event of kind %s", e.Kind)
	}
	n, err := strconv.Atoi(session)
	if err != nil {
		t.Fatal(err)
	}
	return n, snapshot
}

// check verifies the CO's log: numbers rise, none comes twice, none is
// missing but where a gap says so, and after a gap there is a snapshot.
func (s *site) check() {
	s.t.Helper()
	d := s.c.seen()
	var missing, declared uint64
	last := 0
	view := 0
	gaps := d.gaps
	needSnapshot, open := false, false // open: no event came since the gap
	for i, e := range d.log {
		atGap := false
		for len(gaps) > 0 && gaps[0].at == i {
			declared += gaps[0].lost
			gaps, needSnapshot, atGap, open = gaps[1:], true, true, true
		}
		if i > 0 && !atGap && e.epoch == d.log[i-1].epoch && e.seq != d.log[i-1].seq+1 {
			s.t.Fatalf("sequence %d after %d", e.seq, d.log[i-1].seq)
		}
		if e.event.Kind == protocol.Superseded {
			continue
		}
		n, snapshot := number(s.t, e.event)
		if snapshot {
			if n < last {
				s.t.Errorf("snapshot at %d shows %d, event %d came before it", e.seq, n, last)
			}
			view, needSnapshot = max(view, n), false
			continue
		}
		if n <= last {
			s.t.Fatalf("event %d after %d: doubled or out of order", n, last)
		}
		if n != last+1 && !open {
			s.t.Fatalf("event %d after %d, and no gap was declared", n, last)
		}
		missing += uint64(n - last - 1)
		last, view, open = n, n, false
	}
	if view != s.made.now() {
		s.t.Errorf("the CO sees %d, the site is at %d", view, s.made.now())
	}
	if missing > declared {
		s.t.Errorf("%d events are missing, %d were declared lost", missing, declared)
	}
	if needSnapshot {
		s.t.Error("no snapshot after a gap")
	}
}

// TestBadNetwork loses, doubles, delays and reorders batches and Acks, with
// reconnects and restarts of the LO: nothing is lost, doubled or reordered.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	for seed := range uint64(count(30)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, seed)
				s.opts = Options{MaxBatchEvents: 20, Window: 4, ResendAfter: 5 * time.Second}
				s.net.refuse, s.net.hang, s.net.lose, s.net.double, s.net.late = 5, 2, 5, 10, 30
				s.net.loseAck, s.net.doubleAck, s.net.lateAck = 10, 10, 20
				s.start()
				rng := rand.New(rand.NewPCG(seed, 5))
				for range 60 {
					s.produce(rng.IntN(50))
					switch rng.IntN(8) {
					case 0:
						s.u.Connected(false)
						<-time.After(time.Duration(rng.IntN(20)) * time.Second)
						s.u.Connected(true)
					case 1:
						s.u.Connected(true) // a session that was taken over
					case 2:
						s.shut()
						s.start()
					}
					<-time.After(time.Duration(rng.IntN(3000)) * time.Millisecond)
				}
				s.net.perfect()
				s.drain()
				s.shut()
				s.check()
				d := s.c.seen()
				if len(d.gaps) != 0 {
					t.Errorf("gaps without a loss of state: %+v", d.gaps)
				}
				if s.c.applied != len(d.log) {
					t.Errorf("%d applied, %d in the log", s.c.applied, len(d.log))
				}
			})
		})
	}
}

func count(n int) int {
	if testing.Short() {
		return max(1, n/10)
	}
	return n
}

// TestCOLosesState restores the CO from older backups, or sets it up
// anew, also in the middle of a connection.
func TestCOLosesState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(count(30)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, seed)
				s.opts = Options{MaxBatchEvents: 20, Window: 4, ResendAfter: 5 * time.Second}
				s.net.refuse, s.net.lose, s.net.double, s.net.late = 2, 2, 5, 20
				s.net.loseAck, s.net.lateAck = 5, 20
				s.start()
				rng := rand.New(rand.NewPCG(seed, 6))
				backup := s.c.backup()
				lost := 0
				for range 50 {
					s.produce(1 + rng.IntN(40))
					switch rng.IntN(12) {
					case 0, 1:
						backup = s.c.backup()
					case 2:
						s.c.restore(backup.clone())
						lost++
					case 3:
						s.c.restore(database{retired: map[string]bool{}})
						lost++
					case 4:
						s.u.Connected(false)
						s.u.Connected(true)
					case 5:
						s.shut()
						s.start()
					}
					<-time.After(time.Duration(rng.IntN(3000)) * time.Millisecond)
				}
				s.net.perfect()
				s.produce(5)
				s.drain()
				s.shut()
				s.check()
			})
		})
	}
}

// TestSiteLosesJournal installs the site anew: the CO receives the gap and
// gets a snapshot, and goes on.
func TestSiteLosesJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1)
		s.start()
		s.produce(100)
		s.drain()
		s.shut()
		before := s.c.seen().epoch
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		s.made.Add(7) // what happened in between is not known
		s.start()
		s.produce(10)
		s.drain()
		s.shut()
		d := s.c.seen()
		if d.epoch == before || len(d.gaps) != 1 || !d.retired[before] {
			t.Errorf("epoch %s after %s, gaps %+v", d.epoch, before, d.gaps)
		}
		last := d.log[len(d.log)-1]
		found := false
		for _, e := range d.log {
			found = found || e.epoch == d.epoch && e.event.Kind == protocol.SnapshotEvent
		}
		if last.epoch != d.epoch || !found {
			t.Errorf("the last is %+v, snapshot: %v", last, found)
		}
	})
}

// TestSiteLosesItsMark removes the trim mark alone, or cuts the end off as well: what the CO has does not come once more and is not
// counted as lost, and what it has not does come.
func TestSiteLosesItsMark(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]int64{"alone": 0, "and the end": 300} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 8)
				s.start()
				s.produce(300) // some segments, of which the first ones are removed
				s.drain()
				s.u.Connected(false)
				synctest.Wait()
				s.produce(10)
				s.shut()
				if err := os.Remove(filepath.Join(s.dir, ondisk.TrimName)); err != nil {
					t.Fatal(err)
				}
				segments, err := filepath.Glob(filepath.Join(s.dir, "*"+ondisk.SegmentExt))
				if err != nil {
					t.Fatal(err)
				}
				at, err := os.Stat(segments[len(segments)-1])
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(segments[len(segments)-1], at.Size()-cut); err != nil {
					t.Fatal(err)
				}
				had := len(s.c.seen().log)
				s.start()
				s.produce(10)
				s.drain()
				s.shut()
				d := s.c.seen()
				if len(d.gaps) != 1 || d.gaps[0].lost != 0 {
					t.Errorf("gaps %+v, want one, of which nothing is known to be lost", d.gaps)
				}
				seen := map[int]int{}
				for _, e := range d.log {
					if e.event.Kind == protocol.Superseded {
						continue
					}
					if n, snapshot := number(t, e.event); !snapshot {
						seen[n]++
					}
				}
				for n, times := range seen {
					if times != 1 {
						t.Errorf("event %d came %d times", n, times)
					}
				}
				if cut == 0 && len(seen) != 320 {
					t.Errorf("%d events came, want 320", len(seen))
				}
				if cut > 0 && len(seen) < had+10 {
					t.Errorf("%d events came, of which %d were there before the mark was lost, and 10 after it", len(seen), had)
				}
			})
		})
	}
}

// TestSiteIsPutBackFromACopy replaces the journal's directory by an older
// state: the numbers that were given since are not given again in that epoch.
func TestSiteIsPutBackFromACopy(t *testing.T) {
	t.Parallel()
	for _, produced := range []int{0, 1, 30, 200} { // before the first contact
		t.Run(fmt.Sprint(produced), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 2)
				s.start()
				s.produce(20)
				s.drain()
				s.produce(10) // in the copy, and with the CO
				s.shut()
				copied := t.TempDir()
				if err := os.CopyFS(filepath.Join(copied, "journal"), os.DirFS(s.dir)); err != nil {
					t.Fatal(err)
				}
				s.start()
				s.produce(100)
				s.drain()
				s.shut()
				before := s.c.seen()
				s.dir = filepath.Join(copied, "journal")
				s.net.mu.Lock()
				s.net.refuse = 100 // away at first
				s.net.mu.Unlock()
				s.start()
				s.produce(produced)
				s.net.perfect()
				s.drain()
				s.produce(5)
				s.drain()
				s.shut()
				s.check()
				d := s.c.seen()
				if d.epoch == before.epoch {
					t.Error("the epoch is the same")
				}
				n := map[int]int{}
				for _, e := range d.log {
					if e.event.Kind == protocol.NodeOnlineEvent {
						v, _ := number(t, e.event)
						n[v]++
					}
				}
				for i := 1; i <= s.made.now(); i++ {
					if n[i] != 1 {
						t.Errorf("event %d is there %d times", i, n[i])
					}
				}
			})
		})
	}
}

// TestRetiredEpoch starts the site on a copy of its disk that is as old as an epoch which
// the CO has given up: the site begins a new one with the first answer, without a wait, and
// says why. With a CO of an earlier release, whose answers do not say it, it takes longer.
func TestRetiredEpoch(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"said": false, "an earlier release": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 4)
				s.c.silent = silent
				s.start()
				s.produce(50)
				s.drain()
				epoch := s.j.Epoch()
				s.shut()
				s.c.restore(database{epoch: "another", seq: 9, retired: map[string]bool{epoch: true}})
				began := time.Now()
				s.start()
				s.produce(50)
				s.drain()
				if took := time.Since(began); !silent && took > 2*time.Second {
					t.Errorf("it took %v of the clock that only waits move, want 2 s at most", took)
				}
				s.shut()
				d := s.c.seen()
				if d.epoch == epoch || d.epoch == "another" {
					t.Errorf("epoch %s", d.epoch)
				}
				var causes []string
				for _, e := range d.log {
					var m protocol.Snapshot
					if e.event.Kind == protocol.SnapshotEvent && protocol.Unmarshal(e.event.Body, &m) == nil && m.Cause != "" {
						causes = append(causes, m.Cause)
					}
				}
				if len(causes) != 1 || !strings.Contains(causes[0], epoch) || !strings.Contains(causes[0], "older copy") {
					t.Errorf("the snapshots say %q, want one that names epoch %s and an older copy of the disk", causes, epoch)
				}
			})
		})
	}
}

// TestCOLacksRows has the CO lose rows of what it recorded, but not its position: it says so in
// its Acks, and gets one snapshot, without a gap. Where that does not help it gets few.
func TestCOLacksRows(t *testing.T) {
	t.Parallel()
	for name, helps := range map[string]bool{"a snapshot helps": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 1)
				s.net.perfect()
				s.start()
				s.produce(20)
				s.drain()
				s.c.mu.Lock()
				s.c.behind, s.c.never = true, !helps
				s.c.mu.Unlock()
				s.u.Ack(protocol.Ack{V: protocol.Version, Ask: true}) // as the CO does for a quiet site
				<-time.After(time.Minute)
				for range 60 {
					s.produce(1)
					<-time.After(time.Second)
				}
				s.drain()
				s.shut()
				snapshots, d := 0, s.c.seen()
				for _, e := range d.log {
					if e.event.Kind == protocol.SnapshotEvent {
						snapshots++
					}
				}
				if helps && snapshots != 1 || !helps && (snapshots < 2 || snapshots > 3) {
					t.Errorf("%d snapshots in two minutes, want 1, or one a minute where it does not help", snapshots)
				}
				if len(d.gaps) > 0 {
					t.Errorf("gaps %v were declared, want none", d.gaps)
				}
			})
		})
	}
}

// TestDamagedJournal breaks a sealed segment that is not sent yet.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 5)
		s.start()
		s.drain()
		s.u.Connected(false)
		synctest.Wait()
		s.produce(500)
		segments, err := filepath.Glob(filepath.Join(s.dir, "*.seg"))
		if err != nil || len(segments) < 4 {
			t.Fatal(segments, err)
		}
		if err := os.Truncate(segments[2], 3000); err != nil {
			t.Fatal(err)
		}
		s.u.Connected(true)
		s.drain()
		s.shut()
		d := s.c.seen()
		kinds := map[protocol.EventKind]int{}
		for _, e := range d.log {
			kinds[e.event.Kind]++
		}
		if kinds[protocol.DataLost] != 1 || kinds[protocol.Superseded] == 0 || kinds[protocol.SnapshotEvent] == 0 ||
			kinds[protocol.NodeOnlineEvent]+kinds[protocol.Superseded] != 500 {
			t.Errorf("kinds = %v", kinds)
		}
	})
}

// TestRate checks that the limit is held and used.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 6)
		s.opts.Rate = 2000
		s.start()
		s.drain()
		s.u.Connected(false)
		synctest.Wait()
		s.produceRandom(600)
		s.net.mu.Lock()
		before := s.net.out
		s.net.mu.Unlock()
		began := time.Now()
		s.u.Connected(true)
		for s.j.Trimmed() != s.j.Last() {
			<-time.After(50 * time.Millisecond)
		}
		took := time.Since(began).Seconds()
		s.net.mu.Lock()
		rate := float64(s.net.out-before) / took
		s.net.mu.Unlock()
		if rate < 1800 || rate > 2200 {
			t.Errorf("%.0f bytes/s, the limit is 2000", rate)
		}
		s.shut()
	})
}

// produceRandom appends events that do not compress.
func (s *site) produceRandom(n int) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range n {
		s.made.Add(1)
		raw := make([]byte, 100)
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		body := protocol.Marshal(protocol.Event{Kind: protocol.AnomalyEvent, Body: protocol.Marshal(raw)})
		if _, err := s.j.Append(context.Background(), journal.Entry{Class: journal.Event, Body: body}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestSlowLink sends over 8 kB/s: what is in flight stays around the target
// latency, and nothing is sent twice.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 7)
		s.start()
		s.drain()
		s.u.Connected(false)
		synctest.Wait()
		s.produceRandom(3000) // about 400 kB
		slow := &slowLink{net: s.net, rate: 8000}
		s.shut()
		s.publish = slow.publish
		s.start()
		worst := time.Duration(0)
		for s.j.Trimmed() != s.j.Last() {
			<-time.After(100 * time.Millisecond)
			if s.u.Status().Acked > 1000 {
				worst = max(worst, s.u.Status().AckLatency)
			}
		}
		if worst > 8*time.Second {
			t.Errorf("ack_seconds of a batch = %v", worst)
		}
		s.shut()
		if d := s.c.seen(); s.c.applied != len(d.log) || len(d.gaps) != 0 {
			t.Errorf("%d applied, %d in the log", s.c.applied, len(d.log))
		}
		if s.net.out > 3000*130*11/10 {
			t.Errorf("%d bytes sent", s.net.out)
		}
	})
}

// slowLink sends one byte after the other.
type slowLink struct {
	net  *network
	rate int
}

func (l *slowLink) publish(ctx context.Context, topic string, payload []byte) (func(context.Context) error, error) {
	<-time.After(time.Duration(len(payload)) * time.Second / time.Duration(l.rate))
	return l.net.publish(ctx, topic, payload)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	err := Options{Rate: -1}.Validate()
	for _, want := range []string{"Journal", "Site", "Publish", "Resync", "Rate"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 8)
		reg := prometheus.NewRegistry()
		s.opts.Registerer = reg
		s.start()
		s.produce(10)
		s.drain()
		s.shut()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if m := f.GetMetric()[0]; m.GetCounter() != nil {
				got[f.GetName()] = m.GetCounter().GetValue()
			}
		}
		if got["colony_lo_uplink_events_acked_total"] != 10 || got["colony_lo_uplink_events_sent_total"] != 10 || got["colony_lo_uplink_gaps_total"] != 0 {
			t.Errorf("metrics = %v, want 10 events and no gap", got)
		}
	})
}
