package data

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/data/sampler"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// accept takes one message that is not retained. topic is where it was published,
// m what is to be delivered. keep says that it must be on disk when take returns.
func (l *stream) accept(ctx context.Context, topic string, node protocol.NodeID, m protocol.DataMessage, keep bool) error {
	now := l.queue.Now().UnixMilli()
	body := event(now, node, m)
	if l.held != nil && len(m.Payload) > 0 {
		return l.hold(sample{topic: topic, body: body}, retained.Message{Topic: topic, UnixMillis: now, Node: node, Data: m}, keep)
	}
	if l.held != nil {
		return l.forward(ctx, topic, nil, body, keep) // an empty message has no value to hold
	}
	l.mu.Lock()
	verdict := l.sampler.Offer(topic, m.Payload, sample{}, time.Now())
	l.mu.Unlock()
	if verdict == sampler.Leave {
		l.counts.sampledOut.Add(1)
		return nil
	}
	if err := l.put(ctx, topic, body, keep); err != nil {
		l.forget(topic)
		return err
	}
	return nil
}

// forward queues an encoded event that no sampling may leave out. It takes the place
// of a sample of its topic that is held.
func (l *stream) forward(ctx context.Context, topic string, payload, body []byte, keep bool) error {
	l.mu.Lock()
	old, replaced := l.sampler.Passed(topic, payload, time.Now())
	l.mu.Unlock()
	if err := l.put(ctx, topic, body, keep); err != nil {
		l.forget(topic)
		if replaced {
			l.mu.Lock()
			l.sampler.Restore(topic, old, time.Now())
			l.mu.Unlock()
		}
		l.sooner.Notify()
		return err
	}
	if replaced {
		l.counts.sampledOut.Add(1)
		l.drop(old)
	}
	return nil
}

// drop takes a sample off the disk.
func (l *stream) drop(s sample) {
	if s.ref == 0 {
		return
	}
	if err := l.held.Drop(s.topic, s.ref); err != nil {
		l.forwarder.log.Warn("sample may be sent again after a crash", "rule", l.rule.Name, "err", err)
	}
}

// hold gives a message to the sampler, and to the disk before that: of a period
// the last message may not be lost once it was acknowledged.
func (l *stream) hold(s sample, m retained.Message, keep bool) error {
	if keep || len(s.body) > smallBody { // on disk they are bounded by bytes
		var err error
		if s.ref, err = l.held.Put(m); err != nil {
			l.counts.refused.Add(1)
			return fmt.Errorf("data rule %s: hold message until its period ends: %w", l.rule.Name, err)
		}
	}
	l.mu.Lock()
	old, replaced := l.sampler.Held(s.topic)
	l.sampler.Offer(s.topic, nil, s, time.Now())
	l.mu.Unlock()
	if replaced {
		l.counts.sampledOut.Add(1)
		l.drop(old) // where s is not on disk it must not come back
	}
	l.sooner.Notify()
	return nil
}

// release appends what was held for its period, or with all whatever is held. What
// cannot be appended is held for another period, and stays on disk.
func (l *stream) release(all bool) {
	now := time.Now()
	l.mu.Lock()
	out := l.sampler.Due(now)
	if all {
		out = append(out, l.sampler.Flush()...)
	}
	l.mu.Unlock()
	for len(out) > 0 {
		n, bytes := 0, 0
		var entries []journal.Entry
		for ; n < len(out) && n < appendRecords && bytes < l.pieceBytes(); n++ {
			entries = append(entries, journal.Entry{Class: journal.Data, Body: out[n].body})
			bytes += len(out[n].body)
		}
		if _, err := l.queue.Append(context.Background(), entries...); err != nil {
			l.forwarder.log.Warn("samples wait for room in the queue", "rule", l.rule.Name, "samples", len(out), "err", err)
			l.mu.Lock()
			for _, s := range out {
				if !l.sampler.Restore(s.topic, s, now) {
					l.counts.sampledOut.Add(1)
				}
			}
			l.mu.Unlock()
			return
		}
		for _, s := range out[:n] {
			l.drop(s)
		}
		out = out[n:]
	}
}

// openHeld finds again what a sampler held when the LO was killed: it has waited
// long enough, and goes on at once.
func (l *stream) openHeld() error {
	dir := l.forwarder.heldDir(l.rule.Name)
	if _, err := os.Stat(dir); err != nil && l.rule.Sample.Mode != protocol.SampleLast {
		return nil // there never was any
	}
	store, err := retained.Open(dir, retained.Options{MaxTopics: 2 * sampledTopics, MaxBytes: l.maxBytes(), Now: l.queue.Now, Logger: l.forwarder.log})
	if err != nil {
		return fmt.Errorf("open samples of data rule %s: %w", l.rule.Name, err)
	}
	if err := l.recover(store); err != nil {
		return errors.Join(fmt.Errorf("recover samples of data rule %s: %w", l.rule.Name, err), store.Close())
	}
	if l.rule.Sample.Mode != protocol.SampleLast {
		if err := store.Close(); err != nil {
			return err
		}
		return os.RemoveAll(dir)
	}
	l.held = store
	return nil
}

// recover queues what is in a store of samples. A crash half way queues some twice.
func (l *stream) recover(store *retained.Store) error {
	for all := store.All(); len(all) > 0; {
		n, bytes := 0, 0
		var entries []journal.Entry
		var removed []retained.Message
		for ; n < len(all) && n < appendRecords && bytes < l.pieceBytes(); n++ {
			entries = append(entries, journal.Entry{Class: journal.Data, Body: event(all[n].UnixMillis, all[n].Node, all[n].Data)})
			removed = append(removed, retained.Message{Topic: all[n].Topic})
			bytes += len(entries[n].Body)
		}
		if _, err := l.queue.Append(context.Background(), entries...); err != nil {
			return err
		}
		if _, err := store.Put(removed...); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// event is an encoded event of machine data.
func event(unixMillis int64, node protocol.NodeID, m protocol.DataMessage) []byte {
	return protocol.Marshal(protocol.Event{UnixMillis: unixMillis, Kind: protocol.DataEvent, Node: node, Body: protocol.Marshal(&m)})
}
