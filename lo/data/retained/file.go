package retained

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/protocol"
)

// A record is the hash of the topic of the record before it, 8 bytes, and a CBOR
// message. So a record that is lost names its topic in the one behind it.
const chainBytes = 8

// recordBytes is about what the log adds to a message.
const recordBytes = 16 + chainBytes

// chained returns the record of a message, and the hash for the next one.
func chained(last uint64, topic string, message []byte) (record []byte, next uint64) {
	return append(binary.LittleEndian.AppendUint64(nil, last), message...), hashOf(topic)
}

func hashOf(topic string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(topic)) // a hash never fails
	return h.Sum64()
}

// load reads the log, or begins a new one. The messages of damaged records are given
// up, and so is what an earlier record says of the same topics.
func (s *Store) load() error {
	located := uint64(0) // lost records whose position is known
	log, found, err := recordlog.Open(recordlog.Options{
		Disk: s.opts.Disk, Identity: s.opts.Identity, Path: s.path, MaxRecord: protocol.MaxMessage + chainBytes,
	}, func(b []byte, lost uint64) error {
		located += lost
		if len(b) < chainBytes {
			return errors.New("it is too short")
		}
		s.missed(lost, binary.LittleEndian.Uint64(b))
		var m Message
		if err := protocol.Unmarshal(b[chainBytes:], &m); err != nil {
			return err
		}
		s.written++
		s.apply(m, int64(len(b)-chainBytes), s.written)
		s.last = hashOf(m.Topic)
		return nil
	})
	if err != nil {
		return err
	}
	s.log, s.damage, s.synced = log, found.Damage, s.written
	s.lost = found.New || found.Damage != nil
	if found.Damage != nil {
		if found.Damage.Lost > located {
			s.missed(found.Damage.Lost-located, 0)
		}
		s.opts.Logger.Error("stored messages are damaged; those of the topics concerned are missing until they are published again", "err", found.Damage)
	}
	if !log.Broken() {
		return nil
	}
	if err := s.rewrite(); err != nil && !disk.IsFull(err) { // else the next write tries again
		return err
	}
	return nil
}

// missed gives up the topics of lost records: the last of these had the topic with
// this hash; of others nothing is known. 0: it is not known either.
func (s *Store) missed(lost, topic uint64) {
	if lost == 0 {
		return
	}
	for name, e := range s.topics {
		if lost > 1 || topic == 0 || hashOf(name) == topic {
			s.bytes -= e.size
			delete(s.topics, name)
		}
	}
}

// historic reports that the log is mostly history.
func (s *Store) historic() bool {
	return s.log.Size() > slack+2*(s.bytes+recordBytes*int64(len(s.topics)))
}

// tidy rewrites the log where it is broken, or mostly history.
func (s *Store) tidy() error {
	s.mu.Lock()
	due := s.log != nil && (s.log.Broken() || s.historic())
	s.mu.Unlock()
	if !due {
		return nil
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil || !s.log.Broken() && !s.historic() {
		return nil // another one was faster
	}
	if err := s.rewrite(); err != nil {
		if !s.log.Broken() {
			s.opts.Logger.Warn("history of stored messages is kept for now", "path", s.path, "err", err)
			return nil
		}
		return protocol.Errorf(protocol.Unavailable, "rewrite store of messages: %w", err)
	}
	return nil
}

// rewrite replaces the log by one without history. The caller holds both locks, or
// is Open.
func (s *Store) rewrite() error {
	now := s.opts.Now()
	var records [][]byte
	var last uint64
	for _, topic := range slices.Sorted(maps.Keys(s.topics)) {
		e := s.topics[topic]
		if _, ok := e.message.ExpiresIn(now); !ok {
			s.bytes -= e.size
			delete(s.topics, topic)
			continue
		}
		var record []byte
		record, last = chained(last, topic, protocol.Marshal(&e.message))
		records = append(records, record)
	}
	if err := s.log.Replace(records); err != nil {
		return err
	}
	s.last, s.synced = last, s.written
	return nil
}
