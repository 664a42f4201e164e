package link

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/sim"
)

var narrowFor = flag.Duration("narrow", 0, "how long TestNarrowLink stays on the narrow link, its backlog included; 0: the short form, which drains over a wide one")

const (
	narrowNodes = 1000
	narrowRate  = 64_000 / 8
	// narrowChurn makes more than the link carries, so that there is a backlog.
	narrowChurn = 400
	// enough is a backlog that needs no more of it.
	enough = 8000
	// wordLag is the longest that what the CO knows of the site's queue may lag
	// behind, while the link is up.
	wordLag = 15 * time.Second
)

// narrow is 64 kbit/s, 600 ms there and back, and 3 % loss.
func narrow(mode impair.Mode) impair.Profile {
	return impair.Profile{Rate: narrowRate, Delay: 290 * time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.03, Mode: mode}
}

// TestNarrowLink puts a site of a thousand nodes whose deployments fail and
// recover all the time behind a link that can't carry it all. The link must be
// used to nine tenths and never so full that it breaks, what the CO says of the
// site's queue must be true throughout, and in the end everything must be there.
func TestNarrowLink(t *testing.T) {
	r := newRig(t)
	proxy, err := impair.Listen(r.coOptions.MQTT, narrow(impair.Refuse), 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	r.loOptions.CO.MQTT, r.loOptions.CO.KeepAlive = []string{"tcp://" + proxy.Addr()}, 10*time.Second
	r.startCO()
	r.desire("app")
	r.startLO()
	l := newLedger()
	f := r.fleet(sim.Options{
		Nodes: narrowNodes, Seed: 3, KeepAlive: time.Minute,
		SelfHeal: true, Acknowledged: l.acknowledged,
	})
	f.Churn(narrowChurn)
	n := &narrowLink{t: t, r: r, proxy: proxy, fleet: f}
	eventually(t, 4*time.Minute, "there is a backlog", func() error {
		if s := n.look(); s.Journal.Depth < 6000 {
			return fmt.Errorf("%d records", s.Journal.Depth)
		}
		return nil
	})
	proxy.Set(narrow(impair.Forward))
	began, window := time.Now(), 12*time.Second
	if *narrowFor > 0 {
		window = time.Minute
	}
	// A few seconds of bad luck weigh less in more windows.
	for i := 0; i < 2 || time.Since(began) < *narrowFor || i < 4 && n.use() < 0.9; i++ {
		n.outage(i)
		n.measure(window)
	}
	if n.use() < 0.9 {
		t.Errorf("%.1f %% of the link was used while records waited, want 90 %%", 100*n.use())
	}
	f.Churn(0)
	for i := range 10 { // presence that changes permanently
		if err := f.Leave(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	drain := 10 * time.Minute
	if *narrowFor == 0 {
		proxy.Set(impair.Profile{})
		drain = 2 * time.Minute
	}
	settled(t, f)
	eventually(t, drain, "the queue is empty", func() error {
		if s := n.check(); s.Journal.Depth > 0 {
			return fmt.Errorf("%d records", s.Journal.Depth)
		}
		return nil
	})
	eventually(t, time.Minute, "the CO says what is true", func() error { return state(r, f) })
	eventually(t, 20*time.Second, "the CO knows that the queue is empty", func() error {
		if q := n.show(); q.Queued > 0 {
			return fmt.Errorf("%d queued", q.Queued)
		}
		return nil
	})
	transitions, failures, faults := l.history(r)
	if len(faults) > 0 {
		t.Errorf("%d faults in the CO's history:\n%s", len(faults), strings.Join(faults[:min(10, len(faults))], "\n"))
	}
	whole(t, r)
	t.Logf("%d nodes, %d reports acknowledged, %d moves and %d failures in the CO's history, each once and in order; %d checks of what the CO says of the queue; lag of its word up to %s",
		narrowNodes, f.Stats().Acknowledged, transitions, failures, n.checks, n.lag.Round(time.Millisecond))
}

// narrowLink is one run of TestNarrowLink.
type narrowLink struct {
	t      *testing.T
	r      *rig
	proxy  *impair.Proxy
	fleet  *sim.Fleet
	seen   []sight
	checks int
	lag    time.Duration

	used    float64 // sum of the used parts of the link
	windows int
}

// use is the part of the link that was used, over all windows.
func (n *narrowLink) use() float64 { return n.used / float64(n.windows) }

// sight is the newest sequence of the site's journal at a time.
type sight struct {
	at   time.Time
	last uint64
}

// look asks the LO and notes how far its journal is. While a thousand nodes come
// at once, the answer waits for the disk.
func (n *narrowLink) look() lo.Status {
	n.t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		at := time.Now()
		s, err := n.r.status()
		if err == nil {
			n.seen = append(n.seen, sight{at, s.Uplink.Backlog.Last})
			return s
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("no status of the LO: %v", err)
		}
	}
}

// show returns what `colony site show` says of the queue of the site's events.
func (n *narrowLink) show() sitedata.Stream {
	n.t.Helper()
	resp, err := n.r.http.Get("http://" + n.r.coOptions.HTTP + "/api/v1/sites/" + site + "/link")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	var link sitedata.Link
	if err := json.Unmarshal(b, &link); err != nil || resp.StatusCode != http.StatusOK || len(link.Up) == 0 {
		n.t.Fatalf("%s: %v: %s", resp.Status, err, b)
	}
	return link.Up[0]
}

// check holds what the CO says against what the LO has, and returns the latter.
func (n *narrowLink) check() lo.Status {
	n.t.Helper()
	before := n.look()
	q := n.show()
	after := n.look()
	n.checks++
	last := n.seen[len(n.seen)-1].last
	if q.Committed < before.Uplink.Acked || q.Committed > last {
		n.t.Errorf("the CO says that it has %d; %d are acknowledged to the LO, which has %d", q.Committed, before.Uplink.Acked, last)
	}
	if q.Last > last || q.Queued != q.Last-q.Committed {
		n.t.Errorf("the CO says that %d are queued up to %d; the LO has %d", q.Queued, q.Last, last)
	}
	if q.Reported == nil {
		return after
	}
	for i := len(n.seen) - 1; i >= 0; i-- { // when had the site no more than it had reported?
		if n.seen[i].last <= q.Last {
			n.lag = max(n.lag, q.Reported.Sub(n.seen[i].at))
			if lag := q.Reported.Sub(n.seen[i].at); lag > wordLag {
				n.t.Errorf("at %s %d records were reported to the CO; the site had more for %s", q.Reported.Format(time.TimeOnly), q.Last, lag)
			}
			break
		}
	}
	return after
}

// outage breaks the link for a while, each time in another way, and waits until
// the site is connected again. The first one was there from the start.
func (n *narrowLink) outage(i int) {
	n.t.Helper()
	before := n.proxy.Stats().Accepted
	anew := true // the connection does not survive the outage
	switch {
	case i == 0:
		anew = false
	case i%4 == 0:
		anew = false
		n.proxy.Set(narrow(impair.Stall))
		<-time.After(4 * time.Second)
		n.proxy.Set(narrow(impair.Forward))
	case i%4 == 1:
		n.proxy.Reset()
	case i%4 == 2:
		n.proxy.Set(narrow(impair.Refuse))
		<-time.After(5 * time.Second)
		n.proxy.Set(narrow(impair.Forward))
	default:
		n.proxy.Strand()
	}
	for {
		// Until the LO has noticed the loss, it says of the link what it said before.
		eventually(n.t, 2*time.Minute, "the site is in step with the CO again", func() error {
			connections := n.proxy.Stats().Accepted
			if s := n.look(); !s.Uplink.Synced || anew && connections == before {
				return errNotYet
			}
			return nil
		})
		connections := n.proxy.Stats().Accepted
		<-time.After(2 * time.Second) // what filled before the outage has left
		if s := n.look(); s.Uplink.Synced && n.proxy.Stats().Accepted == connections {
			return
		}
	}
}

// measure checks that the link is used, and stays up, while there is a backlog.
func (n *narrowLink) measure(window time.Duration) {
	n.t.Helper()
	first := n.look()
	from, began := n.proxy.Stats(), time.Now()
	end := time.NewTimer(window)
	defer end.Stop()
	tick := time.NewTicker(1500 * time.Millisecond)
	defer tick.Stop()
	slowest, least, most := time.Duration(0), first.Journal.Depth, 0
	for done := false; !done; {
		select {
		case <-end.C:
			done = true
		case <-tick.C:
		}
		s := n.check()
		churn := float64(narrowChurn)
		if s.Journal.Depth > enough {
			churn /= 8 // so that the end is not an hour away
		}
		n.fleet.Churn(churn)
		slowest, least, most = max(slowest, s.Uplink.AckLatency), min(least, s.Journal.Depth), max(most, s.Uplink.InFlightBytes)
		if !s.Uplink.Connected {
			n.t.Errorf("the link is down, %s after the outage ended", time.Since(began).Round(time.Millisecond))
		}
	}
	to, took := n.proxy.Stats(), time.Since(began)
	use := float64(to.Up.Wire-from.Up.Wire) / took.Seconds() / narrowRate
	n.t.Logf("%s: %.1f %% of the link used, at least %d records waiting, up to %d bytes on their way, acknowledged within %s", took.Round(time.Second), 100*use, least, most, slowest.Round(time.Millisecond))
	if least == 0 {
		n.t.Error("there was no backlog, so this says nothing about the link")
	}
	n.used, n.windows = n.used+use, n.windows+1
	if use < 0.8 {
		n.t.Errorf("%.1f %% of the link was used while records waited: one lost segment does not explain it", 100*use)
	}
	if to.Accepted != from.Accepted {
		n.t.Errorf("the link broke %d times by itself", to.Accepted-from.Accepted)
	}
}
