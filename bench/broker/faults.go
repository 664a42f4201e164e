package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	cuts     = 20  // of a link, for each of its two ends
	underWay = 100 // messages of a sender
	silence  = 3 * time.Second
	sickAck  = 10 * time.Millisecond
)

// faults counts acknowledged messages that are lost when links, clients, the broker and its disk fail. The power cut is
// a test: TestCrashes of broker/sessions.
func (s size) faults(ctx context.Context, p *process, report reporter) error {
	if err := s.linkCuts(p.addr, report); err != nil {
		return fmt.Errorf("link cuts: %w", err)
	}
	name := fmt.Sprintf("%d acknowledged for a client that is away: ", s.faulty)
	lost, _, err := s.away(p.addr, "away", func() (string, error) { return p.addr, nil })
	if err != nil {
		return fmt.Errorf("absent subscriber: %w", err)
	}
	report(name+"lost", float64(lost), "")
	var back *process
	lost, took, err := s.away(p.addr, "killed", func() (string, error) {
		p.kill()
		back, err = p.restart(ctx)
		if err != nil {
			return "", err
		}
		context.AfterFunc(ctx, back.kill)
		return back.addr, nil
	})
	if err != nil {
		return fmt.Errorf("kill -9: %w", err)
	}
	report(name+"stored", float64(s.faulty)/took.Seconds(), "/s")
	report(name+"lost by kill -9", float64(lost), "")
	if err := s.fullDisk(ctx, back, report); err != nil {
		return fmt.Errorf("full disk: %w", err)
	}
	return nil
}

// fullDisk publishes to a subscriber that is away, and lets no file of the broker grow from the middle on. Then the broker
// is to end, and starts again with room. A client of MQTT 3.1.1 whose message is refused is disconnected.
func (s size) fullDisk(ctx context.Context, p *process, report reporter) error {
	k := newKeeper("full")
	c, err := k.connect(p.addr, true)
	if err != nil {
		return err
	}
	_ = c.Close() // the session stays
	publisher := &sender{addr: p.addr, id: "full-sender", topic: k.topic}
	if err := publisher.run(s.faulty/2, 0); err != nil {
		return err
	}
	if err := p.fill(ctx); err != nil {
		return err
	}
	_ = publisher.run(s.faulty, 0) // until it is refused
	p.terminate()
	back, err := p.restart(ctx)
	if err != nil {
		return err
	}
	defer back.kill()
	acknowledged := int(publisher.next) - len(publisher.unsure)
	if err := k.collect(back.addr, false, acknowledged, 0); err != nil {
		return err
	}
	lost := 0
	for n := range publisher.next {
		if !k.seen[n] && !slices.Contains(publisher.unsure, n) {
			lost++
		}
	}
	name := fmt.Sprintf("%d for a client that is away, the disk full behind the first half, SIGTERM: ", s.faulty)
	report(name+"acknowledged", float64(acknowledged), "")
	report(name+"lost", float64(lost), "")
	return nil
}

// A sender publishes numbered messages of QoS 1 with a session that outlives its connection, and sends again what is not
// acknowledged when it is back.
type sender struct {
	addr, id, topic string
	*peer
	next   uint32
	unsure []uint32 // sent, and not acknowledged, in order
}

func packetID(n uint32) uint16 { return uint16(1 + n%60_000) }

// connect begins the next connection.
func (s *sender) connect() (err error) {
	if s.peer, _, err = dialAs(s.addr, s.id, "", 0); err != nil {
		return err
	}
	for _, n := range s.unsure {
		if err := s.send(n, 0x08); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) send(n uint32, dup byte) error {
	m := message(s.topic, binary.BigEndian.AppendUint32(make([]byte, payloadBytes-4), n), 1, packetID(n), false)
	m[0] |= dup
	_, err := s.Write(m)
	return err
}

// acknowledged waits until no more than so many are unsure.
func (s *sender) acknowledged(most int) error {
	for len(s.unsure) > most {
		head, body, err := s.peer.next()
		if err != nil {
			return err
		}
		if head>>4 != puback {
			continue
		}
		id := binary.BigEndian.Uint16(body)
		if at := slices.IndexFunc(s.unsure, func(n uint32) bool { return packetID(n) == id }); at >= 0 {
			s.unsure = slices.Delete(s.unsure, at, at+1)
		}
	}
	return nil
}

// run sends up to a number, and cuts its link every so many; 0: never.
func (s *sender) run(upTo, cutEvery int) error {
	if err := s.connect(); err != nil {
		return err
	}
	for int(s.next) < upTo {
		if cutEvery > 0 && s.next > 0 && int(s.next)%cutEvery == 0 {
			_ = s.Close() // with what is under way
			if err := s.connect(); err != nil {
				return err
			}
		}
		if err := s.acknowledged(underWay - 1); err != nil {
			return err
		}
		s.unsure = append(s.unsure, s.next)
		if err := s.send(s.next, 0); err != nil {
			return err
		}
		s.next++
	}
	defer func() { _ = s.Close() }() // of no more use
	return s.acknowledged(0)
}

// A keeper is a subscriber with a session that outlives its connection. It notes which numbers come, and in which order.
type keeper struct {
	id, topic        string
	seen             map[uint32]bool
	highest          int64
	twice, disorders int
}

func newKeeper(id string) *keeper {
	return &keeper{id: id, topic: "fault/" + id, seen: map[uint32]bool{}, highest: -1}
}

// connect begins a connection, and subscribes on the first one.
func (k *keeper) connect(addr string, first bool) (*peer, error) {
	p, present, err := dialAs(addr, k.id, "", 0)
	if err != nil {
		return nil, err
	}
	if first || !present {
		return p, p.subscribe(k.topic, 1)
	}
	return p, nil
}

// collect takes messages until it has so many, or nothing comes for a while; it cuts its link every so many.
func (k *keeper) collect(addr string, first bool, want, cutEvery int) error {
	p, err := k.connect(addr, first)
	if err != nil {
		return err
	}
	left := cuts
	for n := 1; len(k.seen) < want; n++ {
		_ = p.SetReadDeadline(time.Now().Add(silence)) // a dead connection shows at the read
		head, body, err := p.next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
		if head>>4 != publish {
			continue
		}
		k.note(binary.BigEndian.Uint32(body[len(body)-4:]))
		if cutEvery > 0 && n%cutEvery == 0 && left > 0 { // without an acknowledgement
			left--
			_ = p.Close()
			if p, err = k.connect(addr, false); err != nil {
				return err
			}
			continue
		}
		at := 2 + int(binary.BigEndian.Uint16(body))
		if _, err := p.Write([]byte{puback << 4, 2, body[at], body[at+1]}); err != nil {
			return err
		}
	}
	return p.Close()
}

func (k *keeper) note(n uint32) {
	switch {
	case k.seen[n]:
		k.twice++
	case int64(n) < k.highest: // the first time, behind a later one
		k.disorders++
	}
	k.seen[n] = true
	k.highest = max(k.highest, int64(n))
}

// linkCuts cuts the links of a publisher and of a subscriber with sessions, while messages are under way.
func (s size) linkCuts(addr string, report reporter) error {
	k := newKeeper("cut")
	p, err := k.connect(addr, true)
	if err != nil {
		return err
	}
	_ = p.Close() // the session stays
	begun := time.Now()
	var g errgroup.Group
	var sent time.Duration
	g.Go(func() error {
		err := (&sender{addr: addr, id: "cutting", topic: k.topic}).run(s.faulty, s.faulty/cuts)
		sent = time.Since(begun)
		return err
	})
	g.Go(func() error { return k.collect(addr, false, s.faulty, s.faulty/cuts) })
	if err := g.Wait(); err != nil {
		return err
	}
	name := fmt.Sprintf("%d of QoS 1 over %d cuts of both links: ", s.faulty, cuts)
	report(name+"lost", float64(s.faulty-len(k.seen)), "")
	report(name+"out of order", float64(k.disorders), "")
	report(name+"twice", float64(k.twice), "")
	report(name+"sent", float64(s.faulty)/sent.Seconds(), "/s")
	return nil
}

// away publishes to a subscriber that is away, and that comes back to the address of then. It returns how many
// messages the subscriber misses, and how long their acknowledgements took.
func (s size) away(addr, id string, then func() (string, error)) (lost int, took time.Duration, err error) {
	k := newKeeper(id)
	p, err := k.connect(addr, true)
	if err != nil {
		return 0, 0, err
	}
	_ = p.Close() // the session stays
	begun := time.Now()
	if err := (&sender{addr: addr, id: id + "-sender", topic: k.topic}).run(s.faulty, 0); err != nil {
		return 0, 0, err
	}
	took = time.Since(begun)
	if addr, err = then(); err != nil {
		return 0, 0, err
	}
	err = k.collect(addr, false, s.faulty, 0)
	return s.faulty - len(k.seen), took, err
}

// slowSubscriber compares the rate at which one gets messages alone, and beside one that acknowledges slowly. It takes
// some seconds, as the first of them may be for the slow one.
func (s size) slowSubscriber(ctx context.Context, p *process, report reporter) error {
	addr := p.addr
	many := 15 * s.faulty
	rate := func(id string) (float64, error) {
		p, err := dial(addr, id, "")
		if err != nil {
			return 0, err
		}
		defer func() { _ = p.Close() }() // of no more use
		if err := p.subscribe("fault/both", 1); err != nil {
			return 0, err
		}
		n, begun := 0, time.Now()
		var g errgroup.Group
		g.Go(func() error {
			return (&sender{addr: addr, id: id + "-sender", topic: "fault/both"}).run(many, 0)
		})
		g.Go(func() error { return p.receive(func() bool { n++; return n < many }) })
		err = g.Wait()
		return float64(n) / time.Since(begun).Seconds(), err
	}
	alone, err := rate("alone")
	if err != nil {
		return err
	}
	sick, err := dial(addr, "sick", "")
	if err != nil {
		return err
	}
	if err := sick.subscribe("fault/both", 1); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(sickAck)
		defer tick.Stop()
		_ = sick.receive(func() bool { <-tick.C; return ctx.Err() == nil }) // until it is cut off, or the run ends
	}()
	beside, err := rate("beside")
	_ = sick.Close()
	<-ended
	report(fmt.Sprintf("rate beside one that acknowledges every %s, of that alone", sickAck), 100*beside/alone, "%")
	return err
}
