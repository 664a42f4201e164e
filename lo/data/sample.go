package data

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/data/sampler"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// accept samples or queues one message that is not retained. topic is where it was
// published, m what is to be delivered. With keep it is on disk when accept returns nil.
func (s *stream) accept(ctx context.Context, topic string, node protocol.NodeID, m protocol.DataMessage, keep bool) error {
	now := s.queue.Now().UnixMilli()
	body := s.event(now, node, m)
	if s.held != nil && len(m.Payload) > 0 {
		return s.hold(sample{topic: topic, body: body}, retained.Message{Topic: topic, UnixMillis: now, Node: node, Data: m}, keep)
	}
	if s.held != nil {
		return s.forward(ctx, topic, nil, body, keep) // an empty message has no value to hold
	}
	s.mu.Lock()
	verdict := s.sampler.Offer(topic, m.Payload, sample{}, time.Now())
	s.mu.Unlock()
	if verdict == sampler.Leave {
		s.counts.sampledOut.Add(1)
		return nil
	}
	if err := s.put(ctx, topic, body, keep); err != nil {
		s.forget(topic)
		return err
	}
	return nil
}

// forward queues an encoded event that sampling may not leave out. It replaces the sample
// of its topic that is held.
func (s *stream) forward(ctx context.Context, topic string, payload, body []byte, keep bool) error {
	s.mu.Lock()
	old, replaced := s.sampler.Passed(topic, payload, time.Now())
	s.mu.Unlock()
	if err := s.put(ctx, topic, body, keep); err != nil {
		s.forget(topic)
		if replaced {
			s.mu.Lock()
			s.sampler.Restore(topic, old, time.Now())
			s.mu.Unlock()
		}
		s.sooner.Notify()
		return err
	}
	if replaced {
		s.counts.sampledOut.Add(1)
		s.drop(old)
	}
	return nil
}

// drop removes a sample from the disk.
func (s *stream) drop(m sample) {
	if m.ref == 0 {
		return
	}
	if err := s.held.Drop(m.topic, m.ref); err != nil {
		s.forwarder.log.Warn("sample may be sent again after a crash", "rule", s.rule.Name, "err", err)
	}
}

// hold gives a message to the sampler, after it is on disk: the last acknowledged message
// of a period must survive a crash.
func (s *stream) hold(one sample, m retained.Message, keep bool) error {
	if keep || len(one.body) > smallBody { // on disk they are bounded by bytes
		var err error
		if one.ref, err = s.held.Put(m); err != nil {
			s.counts.refused.Add(1)
			return fmt.Errorf("data rule %s: hold message until its period ends: %w", s.rule.Name, err)
		}
	}
	s.mu.Lock()
	old, replaced := s.sampler.Held(one.topic)
	s.sampler.Offer(one.topic, nil, one, time.Now())
	s.mu.Unlock()
	if replaced {
		s.counts.sampledOut.Add(1)
		s.drop(old) // also where one is not on disk: after a crash old would be sent as the last
	}
	s.sooner.Notify()
	return nil
}

// release appends the samples whose period has ended, or with all every sample. What
// cannot be appended is held for another period, and stays on disk.
func (s *stream) release(all bool) {
	now := time.Now()
	s.mu.Lock()
	out := s.sampler.Due(now)
	if all {
		out = append(out, s.sampler.Flush()...)
	}
	s.mu.Unlock()
	for len(out) > 0 {
		n, bytes := 0, 0
		var entries []journal.Entry
		for ; n < len(out) && n < appendRecords && bytes < s.pieceBytes(); n++ {
			entries = append(entries, journal.Entry{Class: journal.Data, Body: out[n].body})
			bytes += len(out[n].body)
		}
		if _, err := s.queue.Append(context.Background(), entries...); err != nil {
			s.forwarder.log.Warn("samples wait for room in the queue", "rule", s.rule.Name, "samples", len(out), "err", err)
			s.mu.Lock()
			for _, one := range out {
				if !s.sampler.Restore(one.topic, one, now) {
					s.counts.sampledOut.Add(1)
				}
			}
			s.mu.Unlock()
			return
		}
		for _, one := range out[:n] {
			s.drop(one)
		}
		out = out[n:]
	}
}

// openHeld queues what the sampler held when the LO was killed, even if its period has not ended.
func (s *stream) openHeld() error {
	dir := s.forwarder.heldDir(s.rule.Name)
	if _, err := s.forwarder.o.Disk.Stat(dir); err != nil && s.rule.Sample.Mode != protocol.SampleLast {
		return nil // there never was any
	}
	store, err := retained.Open(dir, retained.Options{
		Disk: s.forwarder.o.Disk, Identity: statefile.Identity{Role: "lo/samples", Name: s.rule.Name},
		MaxTopics: 2 * sampledTopics, MaxBytes: s.maxBytes(), Now: s.queue.Now, Logger: s.forwarder.log,
	})
	if err != nil {
		return fmt.Errorf("open samples of data rule %s: %w", s.rule.Name, err)
	}
	s.forwarder.damage(store.Damage())
	if err := s.recover(store); err != nil {
		return errors.Join(fmt.Errorf("recover samples of data rule %s: %w", s.rule.Name, err), store.Close())
	}
	if s.rule.Sample.Mode != protocol.SampleLast {
		if err := store.Close(); err != nil {
			return err
		}
		return disk.RemoveAll(s.forwarder.o.Disk, dir)
	}
	s.held = store
	return nil
}

// recover moves the samples in a store to the queue. A crash in between queues some twice.
func (s *stream) recover(store *retained.Store) error {
	for all := store.All(); len(all) > 0; {
		n, bytes := 0, 0
		var entries []journal.Entry
		var removed []retained.Message
		for ; n < len(all) && n < appendRecords && bytes < s.pieceBytes(); n++ {
			entries = append(entries, journal.Entry{Class: journal.Data, Body: s.event(all[n].UnixMillis, all[n].Node, all[n].Data)})
			removed = append(removed, retained.Message{Topic: all[n].Topic})
			bytes += len(entries[n].Body)
		}
		if _, err := s.queue.Append(context.Background(), entries...); err != nil {
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
func (s *stream) event(unixMillis int64, node protocol.NodeID, m protocol.DataMessage) []byte {
	return protocol.Marshal(protocol.Event{
		UnixMillis: unixMillis, Kind: protocol.DataEvent, Node: node, Body: protocol.Marshal(&m), Unsynced: s.forwarder.o.Unsynced(),
	})
}
