package command_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

var (
	narrowEvents = flag.Int("narrow-events", 10, "how many events TestFollowOverNarrowLink measures with the log that is followed, and without")
	narrowRate   = flag.Int("narrow-rate", 8000, "bytes per second of its link")
	narrowDelay  = flag.Duration("narrow-delay", 290*time.Millisecond, "delay of its link, one way")
	narrowLoss   = flag.Float64("narrow-loss", 0.03, "part of the segments that its link loses")
	narrowTime   = flag.Duration("narrow-time", 0, "for how long it follows the log at least")
)

// narrow is a link to an address: narrow and slow, with losses.
func narrow(t *testing.T, to string, seed uint64) *impair.Proxy {
	t.Helper()
	proxy, err := impair.Listen(to, impair.Profile{Rate: *narrowRate, Delay: *narrowDelay, Jitter: *narrowDelay / 15, Loss: *narrowLoss, Mode: impair.Forward}, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return proxy
}

// TestFollowOverNarrowLink follows the log of a container that writes as fast as it can over 64 kbit/s with 600 ms and 3 % loss: lines arrive, what is missing
// is counted, and events arrive beside them. How long they take is logged, and how much of the log arrives and how old it is then; TestBulkDelaysNoEvents in
// lo/uplink and TestFollowerSeesNow in en/command/kinds/logs hold the bounds, in virtual time.
func TestFollowOverNarrowLink(t *testing.T) {
	t.Parallel()
	daemon, registry, c := containerdtest.Start(t), containerdtest.NewRegistry(t), newCO(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	proxy := narrow(t, c.addr, 5)
	s := newSite(t, c, func(o *lo.Options) { o.CO.MQTT = []string{"tcp://" + proxy.Addr()} })
	s.on(daemon, "n1", "10.95.0.0/16")
	c.desire(1, protocol.Container{Name: "count", Image: image, Command: []string{"count"}, Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	measure := func(beside func()) (p50, p90 time.Duration) {
		c.mu.Lock()
		from := len(c.delays)
		c.mu.Unlock()
		for range *narrowEvents {
			id := c.send(c.command(command.Inventory, nil, "n1"))
			testpart.Eventually(t, "the result arrives", func() bool {
				beside()
				return c.last(id, "n1").State == command.Done
			})
		}
		c.mu.Lock()
		took := slices.Sorted(slices.Values(c.delays[from:]))
		c.mu.Unlock()
		return took[len(took)/2], took[len(took)*9/10]
	}
	alone50, alone90 := measure(func() {})
	id := c.send(c.command(command.Logs, command.LogRequest{Subject: command.Subject{Deployment: "app"}, Follow: true, Tail: 10, Stream: "stdout"}, "n1"))
	began := time.Now()
	credit := func() {
		c.mu.Lock()
		read, lost := uint64(0), uint64(0)
		for _, f := range c.frames[id] {
			read += uint64(len(f.Data)) + f.LostBytes
			lost += f.LostBytes
		}
		due := read != c.credited || time.Since(c.renewed) > 2*time.Second
		if due {
			c.credited, c.renewed = read, time.Now()
		}
		c.mu.Unlock()
		if due {
			arrives := float64(read-min(read, lost)) / time.Since(began).Seconds()
			c.credit(id, command.Credit{Bytes: read + uint64(min(max(8<<10, 1.5*arrives), 1<<20))}) // about as the CO does
		}
	}
	testpart.Eventually(t, "lines arrive", func() bool {
		credit()
		lines, _ := c.lines(id)
		return len(lines) > 20
	})
	with50, with90 := measure(credit)
	testpart.Eventually(t, "the time is over", func() bool {
		credit()
		return time.Since(began) > *narrowTime
	})
	lines, end := c.lines(id)
	lost := uint64(0)
	for _, l := range lines {
		lost += l.LostBytes
	}
	t.Logf("events alone: p50 %s, p90 %s; beside the log: %s, %s; %d lines arrived, %d bytes are counted as missing", alone50, alone90, with50, with90, len(lines), lost)
	carried, age50, age90 := c.ages(id)
	t.Logf("%d bytes of the log arrived in %s, %.0f a second of %d; lines were %s old then, %s of ten", carried, time.Since(began).Truncate(time.Second), float64(carried)/time.Since(began).Seconds(), *narrowRate, age50, age90)
	if end != "" || len(lines) < 50 {
		t.Errorf("%d lines, %s", len(lines), end)
	}
	c.credit(id, command.Credit{Bytes: 1, End: true})
	c.ends(id, "n1", command.Done, "")
}

// ages returns how many bytes of a log arrived, and how old its lines were then: the median, and what nine of ten were at most.
func (c *co) ages(id command.ID) (bytes int, p50, p90 time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ages []time.Duration
	for i, f := range c.frames[id] {
		bytes += len(f.Data)
		for b := f.Data; len(b) > 0; {
			n := command.FirstItem(b)
			var l command.LogLine
			if err := protocol.Unmarshal(b[:n], &l); err != nil {
				c.t.Fatal(err)
			}
			b = b[n:]
			if l.UnixMillis > 0 {
				ages = append(ages, c.came[id][i].Sub(time.UnixMilli(l.UnixMillis)).Truncate(time.Millisecond))
			}
		}
	}
	if len(ages) == 0 {
		return bytes, 0, 0
	}
	slices.Sort(ages)
	return bytes, ages[len(ages)/2], ages[len(ages)*9/10]
}
