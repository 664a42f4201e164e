package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/internal/retry"
)

// A scenario puts one kind of load on a fresh broker and reports what it measures.
type scenario struct {
	name string
	run  func(ctx context.Context, p *process, report func(what string, value float64, unit string)) error
}

type reporter = func(what string, value float64, unit string)

const payloadBytes = 200

func scenarios(s size) []scenario {
	list := []scenario{{"idle connections", s.idleConnections}}
	for qos := range byte(2) {
		list = append(list,
			scenario{fmt.Sprint("fan-in, QoS ", qos), func(ctx context.Context, p *process, r reporter) error { return s.fanIn(ctx, p, qos, r) }},
			scenario{fmt.Sprint("flat out, QoS ", qos), func(ctx context.Context, p *process, r reporter) error { return s.flatOut(ctx, p, qos, r) }})
	}
	list = append(list, scenario{"fan-out", s.fanOutOne}, scenario{"last wills", s.lastWills})
	for _, n := range s.retained {
		list = append(list, scenario{fmt.Sprint("retained replay, ", n), func(ctx context.Context, p *process, r reporter) error { return replay(ctx, p, n, r) }})
	}
	return append(list, scenario{"sessions", s.storedSessions}, scenario{"faults", s.faults}, scenario{"slow subscriber", s.slowSubscriber}, scenario{"TLS", s.secured})
}

// crowd connects n clients, a few at a time.
func crowd(ctx context.Context, addr, name string, n int, then func(i int, p *peer) error) ([]*peer, error) {
	peers := make([]*peer, n)
	g, _ := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range peers {
		g.Go(func() error {
			will := ""
			if name == "will" {
				will = fmt.Sprint("will/", i)
			}
			p, err := dial(addr, fmt.Sprint(name, i), will)
			if err != nil {
				return err
			}
			peers[i] = p
			if then == nil {
				return nil
			}
			return then(i, p)
		})
	}
	err := g.Wait()
	if err != nil {
		hangUp(peers)
	}
	return peers, err
}

func hangUp(peers []*peer) {
	for _, p := range peers {
		if p != nil {
			_ = p.Close() // of no more use
		}
	}
}

// idleConnections holds connections that only send a ping every 60 s.
func (s size) idleConnections(ctx context.Context, p *process, report reporter) error {
	empty, err := p.resident()
	if err != nil {
		return err
	}
	peers, err := crowd(ctx, p.addr, "idle", s.idle, nil)
	if err != nil {
		return err
	}
	defer hangUp(peers)
	each := func(what string) error {
		now, err := p.resident()
		report(fmt.Sprintf("RSS of each of %d idle connections, %s", s.idle, what), (now-empty)/1024/float64(s.idle), "kB")
		return err
	}
	if err := each("at once"); err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	pings, stop := context.WithTimeout(ctx, s.watch)
	defer stop()
	next := time.NewTicker(time.Minute / time.Duration(s.idle))
	defer next.Stop()
	for order := rand.Perm(s.idle); pings.Err() == nil; {
		select {
		case <-next.C:
			i := order[0]
			order = append(order[1:], i)
			if _, err := peers[i].Write([]byte{0xc0, 0}); err != nil {
				return err
			}
		case <-pings.Done():
		}
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	report(fmt.Sprintf("CPU of %d idle connections with a ping a minute", s.idle), 100*(after-before).Seconds()/s.watch.Seconds(), "% of a core")
	return each(fmt.Sprintf("%.0f s later", s.watch.Seconds()))
}

// fanIn sends at a steady rate from many publishers to one subscriber.
func (s size) fanIn(ctx context.Context, p *process, qos byte, report reporter) error {
	got, wait, err := collect(ctx, p.addr, "in/#", qos)
	if err != nil {
		return err
	}
	peers, err := crowd(ctx, p.addr, "pub", s.publishers, nil)
	if err != nil {
		return err
	}
	defer hangUp(peers)
	windows := make([]*window, len(peers))
	for i, q := range peers {
		windows[i] = newWindow(q, 20)
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	sent, begun, payload := 0, time.Now(), make([]byte, payloadBytes)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Since(begun) < s.steady {
		for due := int(time.Since(begun).Seconds() * float64(s.rate)); sent < due; sent++ {
			w := windows[sent%len(windows)]
			if err := w.publish(fmt.Sprint("in/", sent%len(windows)), payload, qos, uint16(1+sent/len(windows)%60_000)); err != nil {
				return err
			}
		}
		<-tick.C
	}
	took := time.Since(begun)
	wait(sent)
	after, err := p.cpu()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d → 1, %d/s, QoS %d: ", s.publishers, s.rate, qos)
	report(name+"broker's CPU per message", (after-before).Seconds()*1e6/float64(sent), "µs")
	report(name+"lost", 100*(1-float64(got.Load())/float64(sent)), "%")
	if late := float64(sent) / took.Seconds(); late < 0.97*float64(s.rate) {
		report(name+"rate reached", late, "/s")
	}
	return nil
}

// collect counts what a subscriber gets. wait returns when that is want, or
// nothing has come for 3 s.
func collect(ctx context.Context, addr, filter string, qos byte) (got *atomic.Int64, wait func(want int) time.Time, err error) {
	sub, err := dial(addr, "sub", "")
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { _ = sub.Close() }) // of no more use
	if err := sub.subscribe(filter, qos); err != nil {
		return nil, nil, err
	}
	got = new(atomic.Int64)
	var last atomic.Int64
	go func() { // ends with the connection
		_ = sub.receive(func() bool {
			got.Add(1)
			last.Store(time.Now().UnixNano())
			return true
		})
	}()
	return got, func(want int) time.Time {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		quiet, before := time.Now(), int64(-1)
		for n := got.Load(); n < int64(want) && time.Since(quiet) < 3*time.Second; n = got.Load() {
			if n != before {
				quiet, before = time.Now(), n
			}
			<-tick.C
		}
		return time.Unix(0, last.Load())
	}, nil
}

// flatOut lets many publishers send to one subscriber as fast as they can.
func (s size) flatOut(ctx context.Context, p *process, qos byte, report reporter) error {
	got, wait, err := collect(ctx, p.addr, "out/#", qos)
	if err != nil {
		return err
	}
	peers, err := crowd(ctx, p.addr, "pub", s.publishers, nil)
	if err != nil {
		return err
	}
	defer hangUp(peers)
	begun, payload := time.Now(), make([]byte, payloadBytes)
	var g errgroup.Group
	for i, q := range peers {
		g.Go(func() error {
			w, topic := newWindow(q, 20), fmt.Sprint("out/", i)
			for n := range s.burst {
				if err := w.publish(topic, payload, qos, uint16(1+n)); err != nil {
					return err
				}
			}
			if qos == 0 {
				return nil
			}
			return w.drain()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	sent := s.publishers * s.burst
	end := wait(sent)
	name := fmt.Sprintf("%d → 1, %d as fast as they go, QoS %d: ", s.publishers, sent, qos)
	report(name+"lost", 100*(1-float64(got.Load())/float64(sent)), "%")
	report(name+"delivered", float64(got.Load())/end.Sub(begun).Seconds(), "/s")
	return nil
}

// fanOutOne sends one message to many subscribers, some times, and then a
// different one to each.
func (s size) fanOutOne(ctx context.Context, p *process, report reporter) error {
	var got sync.WaitGroup
	peers, err := crowd(ctx, p.addr, "sub", s.fanOut, func(i int, q *peer) error {
		if err := q.subscribe("all", 1); err != nil {
			return err
		}
		if err := q.subscribe(fmt.Sprint("one/", i), 1); err != nil {
			return err
		}
		go func() { _ = q.receive(func() bool { got.Done(); return true }) }() // ends with the connection
		return nil
	})
	if err != nil {
		return err
	}
	defer hangUp(peers)
	pub, err := dial(p.addr, "pub", "")
	if err != nil {
		return err
	}
	defer func() { _ = pub.Close() }() // of no more use
	w := newWindow(pub, 1000)
	timed := func(send func() error) (time.Duration, error) {
		begun, done := time.Now(), make(chan struct{})
		got.Add(s.fanOut)
		if err := send(); err != nil {
			return 0, err
		}
		go func() { got.Wait(); close(done) }() // waits for this round only
		select {
		case <-done:
			return time.Since(begun), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	var one, each []time.Duration
	payload := make([]byte, payloadBytes)
	for range s.rounds {
		d, err := timed(func() error { return w.publish("all", payload, 1, 1) })
		if err != nil {
			return fmt.Errorf("one message to all: %w", err)
		}
		one = append(one, d)
		if d, err = timed(func() error {
			for i := range s.fanOut {
				if err := w.publish(fmt.Sprint("one/", i), payload, 1, uint16(1+i)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return fmt.Errorf("a message to each: %w", err)
		}
		each = append(each, d)
	}
	report(fmt.Sprintf("1 → %d, QoS 1: the last has it after", s.fanOut), median(one), "ms")
	report(fmt.Sprintf("%d different messages to %d subscribers: last after", s.fanOut, s.fanOut), median(each), "ms")
	return nil
}

func median(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Microseconds()) / 1000
}

// lastWills cuts all connections at once.
func (s size) lastWills(ctx context.Context, p *process, report reporter) error {
	got, wait, err := collect(ctx, p.addr, "will/#", 1)
	if err != nil {
		return err
	}
	peers, err := crowd(ctx, p.addr, "will", s.wills, nil)
	if err != nil {
		return err
	}
	begun := time.Now()
	hangUp(peers)
	end := wait(s.wills)
	name := fmt.Sprintf("%d last wills at once, QoS 1: ", s.wills)
	report(name+"last after", float64(end.Sub(begun).Milliseconds()), "ms")
	report(name+"lost", float64(int64(s.wills)-got.Load()), "")
	return nil
}

// replay subscribes to many retained messages.
func replay(ctx context.Context, p *process, n int, report reporter) error {
	empty, err := p.resident()
	if err != nil {
		return err
	}
	pub, err := dial(p.addr, "pub", "")
	if err != nil {
		return err
	}
	w := newWindow(pub, 100)
	payload := make([]byte, payloadBytes)
	for i := range n {
		if _, ok := <-w.free; ok {
			if _, err := w.Write(message(fmt.Sprintf("kept/%d/%d", i%100, i), payload, 1, uint16(1+i%60_000), true)); err != nil {
				return err
			}
		}
	}
	if err := w.drain(); err != nil {
		return err
	}
	_ = pub.Close() // of no more use
	full, err := p.resident()
	if err != nil {
		return err
	}
	report(fmt.Sprintf("%d retained: RSS of each", n), (full-empty)/1024/float64(n), "kB")
	before, err := p.cpu()
	if err != nil {
		return err
	}
	if err := retry.Sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	report(fmt.Sprintf("%d retained: idle CPU", n), 100*(after-before).Seconds()/3, "% of a core")
	for qos := range byte(2) {
		if err := replayOnce(ctx, p, n, qos, report); err != nil {
			return err
		}
	}
	return nil
}

func replayOnce(ctx context.Context, p *process, n int, qos byte, report reporter) error {
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := time.Now()
	got, wait, err := collect(bound, p.addr, "kept/#", qos)
	if err != nil {
		return err
	}
	end := wait(n)
	name := fmt.Sprintf("%d retained, QoS %d: ", n, qos)
	report(name+"replayed", float64(got.Load()), "")
	report(name+"last after", float64(end.Sub(begun).Milliseconds()), "ms")
	return nil
}
