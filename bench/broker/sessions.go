package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// storedSessions stores messages for many clients that are away, kills the broker, and measures
// its way back.
func (s size) storedSessions(ctx context.Context, p *process, report reporter) error {
	if !p.flushes {
		return nil
	}
	empty, err := p.resident()
	if err != nil {
		return err
	}
	if err := s.eachSession(p.addr, func(i int, q *peer, _ bool) error { return q.subscribe(fmt.Sprint("to/", i), 1) }); err != nil {
		return err
	}
	idle, err := p.resident()
	if err != nil {
		return err
	}
	report(fmt.Sprintf("%d sessions that are away, with a subscription: RSS of each", s.sessions), (idle-empty)/1024/float64(s.sessions), "kB")
	took, err := s.fill(p.addr)
	if err != nil {
		return err
	}
	full, err := p.resident()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d messages for them, QoS 1, ", s.queued)
	report(name+"flushed before PUBACK: stored", float64(s.queued)/took.Seconds(), "/s")
	report(name+"waiting: RSS of each", (full-idle)/1024/float64(s.queued), "kB")
	p.kill()
	begun := time.Now()
	back, err := p.restart(ctx)
	if err != nil {
		return err
	}
	defer back.kill()
	report(name+"waiting: kill -9, and the broker is back after", float64(time.Since(begun).Milliseconds()), "ms")
	begun = time.Now()
	each := s.queued / s.sessions
	err = s.eachSession(back.addr, func(_ int, q *peer, present bool) error {
		if !present {
			return errors.New("the session is lost")
		}
		n := 0
		return q.receive(func() bool { n++; return n < each })
	})
	report(name+"waiting: delivered", float64(s.queued)/time.Since(begun).Seconds(), "/s")
	return err
}

// eachSession connects each client with its session, does something, and leaves.
func (s size) eachSession(addr string, do func(i int, p *peer, present bool) error) error {
	var g errgroup.Group
	g.SetLimit(32)
	for i := range s.sessions {
		g.Go(func() error {
			p, present, err := dialAs(addr, fmt.Sprint("session", i), "", 0)
			if err != nil {
				return err
			}
			defer func() { _ = p.Close() }() // the session stays
			return do(i, p, present)
		})
	}
	return g.Wait()
}

// fill publishes a different message for each place in the queues.
func (s size) fill(addr string) (took time.Duration, err error) {
	const publishers, underWay = 20, 500
	begun := time.Now()
	var g errgroup.Group
	for n := range publishers {
		g.Go(func() error {
			p, err := dial(addr, fmt.Sprint("fill", n), "")
			if err != nil {
				return err
			}
			defer func() { _ = p.Close() }() // of no more use
			w, payload := newWindow(p, underWay), make([]byte, payloadBytes)
			for i := n; i < s.queued; i += publishers {
				if err := w.publish(fmt.Sprint("to/", i%s.sessions), payload, 1, uint16(1+i/publishers%60_000)); err != nil {
					return err
				}
			}
			return w.drain()
		})
	}
	err = g.Wait()
	return time.Since(begun), err
}
