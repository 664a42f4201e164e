package command_test

import (
	"flag"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

var (
	echoKeys  = flag.Int("echo-keys", 5, "how many keys TestEchoOverNarrowLink types")
	echoPause = flag.Duration("echo-pause", 300*time.Millisecond, "the time between two of them")
)

// TestEchoOverNarrowLink types at a program over 64 kbit/s with 600 ms and 3 % loss, and beside it over a plain TCP connection through a link of the same kind:
// each key comes back. How long that takes is logged, for both.
func TestEchoOverNarrowLink(t *testing.T) {
	t.Parallel()
	daemon, registry, c := containerdtest.Start(t), containerdtest.NewRegistry(t), newCO(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	proxy := narrow(t, c.addr, 5)
	s := newSite(t, c, func(o *lo.Options) { o.CO.MQTT = []string{"tcp://" + proxy.Addr()} })
	s.on(daemon, "n1", "10.98.0.0/16")
	c.desire(1, protocol.Container{Name: "web", Image: image, Command: []string{"wait"}, Restart: protocol.Restart{Policy: protocol.RestartAlways}})
	c.installed("n1")
	r := program("copy")
	r.Input = true
	v := c.visit(t.Context(), r)
	testpart.Eventually(t, "the program runs", func() bool { return v.of(command.Began) != "" })
	ours := typeKeys(t, v.text, func() int { return len(v.of(command.Stdout)) })
	v.types(command.Record{Kind: command.StdinEnd})
	v.ends(t, "exited", 0, "")
	if got := v.of(command.Stdout); got != strings.Repeat("k", *echoKeys) {
		t.Errorf("what came back: %q", got)
	}
	plain := plainEcho(t)
	t.Logf("%d keys: a session p50 %s, p90 %s, p99 %s; plain TCP p50 %s, p90 %s, p99 %s", *echoKeys,
		part(ours, 0.5), part(ours, 0.9), part(ours, 0.99), part(plain, 0.5), part(plain, 0.9), part(plain, 0.99))
}

func part(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Truncate(time.Millisecond)
}

// typeKeys types keys at their pace, and returns how long each took to come back, sorted.
func typeKeys(t *testing.T, text func(string), came func() int) []time.Duration {
	t.Helper()
	typed := make([]time.Time, 0, *echoKeys)
	var took []time.Duration
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	next, deadline := time.Now(), time.Now().Add(5*time.Minute)
	for now := range tick.C {
		for n := came(); len(took) < n; {
			took = append(took, now.Sub(typed[len(took)]))
		}
		if len(took) == *echoKeys {
			break
		}
		if len(typed) < *echoKeys && !now.Before(next) {
			typed, next = append(typed, time.Now()), now.Add(*echoPause)
			text("k")
		}
		if now.After(deadline) {
			t.Fatalf("%d of %d keys came back", len(took), *echoKeys)
		}
	}
	slices.Sort(took)
	return took
}

// plainEcho is the same over a TCP connection.
func plainEcho(t *testing.T) []time.Duration {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", narrow(t, l.Addr().String(), 6).Addr())
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan int, *echoKeys+1)
	go func() {
		b := make([]byte, 64)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			came <- n
		}
	}()
	t.Cleanup(func() { _ = conn.Close() })
	total := 0
	return typeKeys(t, func(s string) {
		if _, err := conn.Write([]byte(s)); err != nil {
			t.Error(err)
		}
	}, func() int {
		for {
			select {
			case n := <-came:
				total += n
			default:
				return total
			}
		}
	})
}
