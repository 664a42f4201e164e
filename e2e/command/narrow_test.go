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

var narrowEvents = flag.Int("narrow-events", 10, "how many events TestFollowOverNarrowLink measures with the log that is followed, and without")

// TestFollowOverNarrowLink follows the log of a container that writes as fast as it can over 64 kbit/s with 600 ms and 3 % loss: lines arrive, what is missing
// is counted, and events arrive beside them. How long they take is logged; TestBulkDelaysNoEvents in lo/uplink holds the bound, in virtual time.
func TestFollowOverNarrowLink(t *testing.T) {
	t.Parallel()
	daemon, registry, c := containerdtest.Start(t), containerdtest.NewRegistry(t), newCO(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	proxy, err := impair.Listen(c.addr, impair.Profile{Rate: 8000, Delay: 290 * time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.03, Mode: impair.Forward}, 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
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
	id := c.send(c.command(command.Logs, command.LogRequest{Subject: command.Subject{Deployment: "app"}, Follow: true, Tail: 100, Stream: "stdout"}, "n1"))
	credit := func() {
		c.mu.Lock()
		read := uint64(0)
		for _, f := range c.frames[id] {
			read += uint64(len(f.Data)) + f.LostBytes
		}
		due := read != c.credited || time.Since(c.renewed) > 2*time.Second
		if due {
			c.credited, c.renewed = read, time.Now()
		}
		c.mu.Unlock()
		if due {
			c.credit(id, command.Credit{Bytes: read + 64<<10})
		}
	}
	testpart.Eventually(t, "lines arrive", func() bool {
		credit()
		lines, _ := c.lines(id)
		return len(lines) > 20
	})
	with50, with90 := measure(credit)
	lines, end := c.lines(id)
	lost := uint64(0)
	for _, l := range lines {
		lost += l.LostBytes
	}
	t.Logf("events alone: p50 %s, p90 %s; beside the log: %s, %s; %d lines arrived, %d bytes are counted as missing", alone50, alone90, with50, with90, len(lines), lost)
	if end != "" || len(lines) < 50 {
		t.Errorf("%d lines, %s", len(lines), end)
	}
	c.credit(id, command.Credit{Bytes: 1, End: true})
	c.ends(id, "n1", command.Done, "")
}
