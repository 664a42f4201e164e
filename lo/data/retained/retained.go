// Package retained keeps the last message of each topic on disk: what a site's
// broker retains, which the broker itself forgets, and what a sampling rule holds.
//
// It is a log with one record per change, rewritten when it is mostly history. A
// change is on disk when Put returns; concurrent ones share one fsync. The change
// that a crash left unfinished is cut off by the next Open. A damaged record costs
// its topic and no other: what an earlier record says of it may be outdated, and so
// is not given back.
package retained

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

const (
	fileName = "messages.log"
	dirPerm  = 0o700
	// slack is how much history is always left alone, in bytes.
	slack = 1 << 20
)

// A Message is the last one of its topic.
type Message struct {
	// Topic is the whole topic at the site's broker.
	Topic string `cbor:"1,keyasint"`
	// Stream is the one by which the CO sent it, and empty for what was published at
	// the site.
	Stream string `cbor:"2,keyasint,omitempty"`
	// UnixMillis is when it arrived, by the clock of the Options.
	UnixMillis int64           `cbor:"3,keyasint"`
	Node       protocol.NodeID `cbor:"4,keyasint,omitempty"`
	// Data without a payload removes the topic. Its Topic is not used.
	Data protocol.DataMessage `cbor:"5,keyasint"`
}

// ExpiresIn returns how long the message is still of use; ok is false when its time is
// up. 0 and true mean for ever.
func (m *Message) ExpiresIn(now time.Time) (left time.Duration, ok bool) {
	if m.Data.ExpiryMillis == 0 {
		return 0, true
	}
	age := uint64(max(0, now.UnixMilli()-m.UnixMillis)) // a clock that was set back ages nothing
	if age >= m.Data.ExpiryMillis {
		return 0, false
	}
	return time.Duration(min(m.Data.ExpiryMillis-age, 1<<43)) * time.Millisecond, true
}

// Options of a Store.
type Options struct {
	// Identity says what the store is for. Without a Role it is "lo/data/retained".
	Identity  statefile.Identity
	MaxTopics int   // 0 means 100,000
	MaxBytes  int64 // of the messages as they are stored; 0 means 64 MiB
	// Disk is where the state is; nil: the file system of the machine.
	Disk disk.FS
	// Now is the clock; nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil: none
}

// Stats is a picture of a Store.
type Stats struct {
	Topics    int   `json:"topics"`    // retained messages
	Bytes     int64 `json:"bytes"`     // of the messages
	FileBytes int64 `json:"fileBytes"` // size of the files
}

// A Store is the last message of each topic. One process may have its directory
// open at a time. Its methods may be called concurrently.
type Store struct {
	path string
	opts Options

	syncing sync.Mutex // held while the file is synced, and to replace the file; acquired before mu

	mu      sync.Mutex     // protects what follows
	log     *recordlog.Log // nil after Close
	last    uint64         // hash of the topic of the last record
	written uint64         // records appended, which is also the name of the last one
	synced  uint64         // how many of them are on disk
	topics  map[string]entry
	bytes   int64 // of entries
	lost    bool  // Open found less than was stored
	damage  *statefile.Damage
}

type entry struct {
	message Message
	size    int64
	ref     uint64
}

// Open opens the store in dir, which it makes where it does not exist.
func Open(dir string, o Options) (*Store, error) {
	if o.MaxTopics <= 0 {
		o.MaxTopics = 100_000
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Identity.Role == "" {
		o.Identity.Role = "lo/data/retained"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Disk = disk.Or(o.Disk)
	if err := o.Disk.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create store of messages: %w", err)
	}
	if err := atomicfile.Clean(o.Disk, dir); err != nil {
		return nil, fmt.Errorf("clean store of messages: %w", err)
	}
	s := &Store{path: filepath.Join(dir, fileName), opts: o, topics: map[string]entry{}}
	if err := s.load(); err != nil {
		if s.log != nil {
			err = errors.Join(err, s.log.Close())
		}
		return nil, fmt.Errorf("open store of messages %s: %w", s.path, err)
	}
	return s, nil
}

// Put makes each message the last one of its topic, and removes the topics of
// those without a payload. When it returns nil that is on disk. ref names the last
// message for Drop.
//
// It fails with kind Unavailable when there is no room, in the store or on the
// disk, and with kind Invalid for a message that can never be stored; nothing has
// changed then. With any other error it is not known what is on disk.
func (s *Store) Put(messages ...Message) (ref uint64, err error) {
	ref, err = s.write(messages)
	if err != nil {
		return 0, err
	}
	return ref, s.sync(ref)
}

// Drop removes the message that Put gave a ref for, unless a later one has
// replaced it. It does not wait for the disk: a power cut may bring the message back.
func (s *Store) Drop(topic string, ref uint64) error {
	s.mu.Lock()
	e, ok := s.topics[topic]
	s.mu.Unlock()
	if !ok || e.ref != ref {
		return nil
	}
	_, err := s.write([]Message{{Topic: topic}})
	return err
}

func (s *Store) write(messages []Message) (ref uint64, err error) {
	encoded := make([][]byte, len(messages))
	for i := range messages {
		m := &messages[i]
		if m.Topic == "" {
			return 0, protocol.Errorf(protocol.Invalid, "message without a topic")
		}
		if encoded[i] = protocol.Marshal(m); len(encoded[i]) > protocol.MaxMessage {
			return 0, protocol.Errorf(protocol.Invalid, "message of %d bytes on %s: the limit is %d", len(encoded[i]), m.Topic, protocol.MaxMessage)
		}
	}
	if err := s.tidy(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return 0, protocol.Errorf(protocol.Unavailable, "store of messages: closed")
	}
	if err := s.room(messages, encoded); err != nil {
		return 0, err
	}
	last := s.last
	for i := range encoded {
		encoded[i], last = chained(last, messages[i].Topic, encoded[i])
	}
	if err := s.log.Append(encoded...); err != nil {
		return 0, protocol.Errorf(protocol.Unavailable, "store message: %w", err)
	}
	s.last = last
	for i := range messages {
		s.written++
		s.apply(messages[i], int64(len(encoded[i])-chainBytes), s.written)
	}
	return s.written, nil
}

// apply makes m the last message of its topic. The caller holds mu.
func (s *Store) apply(m Message, size int64, ref uint64) {
	s.bytes -= s.topics[m.Topic].size
	if len(m.Data.Payload) == 0 {
		delete(s.topics, m.Topic)
		return
	}
	s.topics[m.Topic] = entry{message: m, size: size, ref: ref}
	s.bytes += size
}

// room returns an error where the messages do not fit. The caller holds mu.
func (s *Store) room(messages []Message, encoded [][]byte) error {
	grows := func() (topics int, bytes int64) {
		topics, bytes = len(s.topics), s.bytes
		sizes := map[string]int64{} // of those that were changed; 0: not there
		for i, m := range messages {
			had, known := sizes[m.Topic]
			if !known {
				had = s.topics[m.Topic].size
			}
			has := int64(len(encoded[i]))
			if len(m.Data.Payload) == 0 {
				has = 0
			}
			sizes[m.Topic], bytes = has, bytes+has-had
			switch {
			case had == 0 && has > 0:
				topics++
			case had > 0 && has == 0:
				topics--
			}
		}
		return topics, bytes
	}
	fits := func() bool {
		topics, bytes := grows()
		return topics <= s.opts.MaxTopics && bytes <= s.opts.MaxBytes
	}
	if !slices.ContainsFunc(messages, func(m Message) bool { return len(m.Data.Payload) > 0 }) || fits() {
		return nil
	}
	now := s.opts.Now()
	for topic, e := range s.topics {
		if _, ok := e.message.ExpiresIn(now); !ok {
			s.bytes -= e.size
			delete(s.topics, topic)
		}
	}
	if fits() {
		return nil
	}
	return protocol.Errorf(protocol.Unavailable,
		"no room for a retained message on %s: %d topics with %d bytes are stored, the limits are %d topics and %d bytes; delete those that are not needed, or raise retainedTopics and retainedBytes in the configuration",
		messages[0].Topic, len(s.topics), s.bytes, s.opts.MaxTopics, s.opts.MaxBytes)
}

// sync returns when record ref is on disk.
func (s *Store) sync(ref uint64) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	log, through, done := s.log, s.written, s.synced >= ref
	s.mu.Unlock()
	if done {
		return nil
	}
	if log == nil {
		return protocol.Errorf(protocol.Unavailable, "store of messages: closed")
	}
	if err := log.Sync(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = through
	return nil
}

// Get returns the last message of a topic, if its time is not up.
func (s *Store) Get(topic string) (Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.topics[topic]
	if ok {
		_, ok = e.message.ExpiresIn(s.opts.Now())
	}
	if !ok {
		return Message{}, false
	}
	return e.message, true
}

// All returns all messages whose time is not up, in the order of their topics.
func (s *Store) All() []Message {
	return s.list(func(*Message) bool { return true })
}

// Stream returns those of All that have a stream.
func (s *Store) Stream(stream string) []Message {
	return s.list(func(m *Message) bool { return m.Stream == stream })
}

// Streams returns the streams that messages have, the empty one left out, in no order.
func (s *Store) Streams() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := map[string]bool{}
	for _, e := range s.topics {
		streams[e.message.Stream] = true
	}
	delete(streams, "")
	return slices.Sorted(maps.Keys(streams))
}

func (s *Store) list(keep func(*Message) bool) []Message {
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Message
	for _, e := range s.topics {
		if _, ok := e.message.ExpiresIn(now); ok && keep(&e.message) {
			out = append(out, e.message)
		}
	}
	slices.SortFunc(out, func(a, b Message) int { return strings.Compare(a.Topic, b.Topic) })
	return out
}

// Lost reports that Open found no file, or one that was damaged: what was stored
// before may be missing.
func (s *Store) Lost() bool { return s.lost }

// Damage returns what Open found damaged; nil for nothing. Its Lost counts messages
// and deletions.
func (s *Store) Damage() *statefile.Damage { return s.damage }

// Stats returns what is stored.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Topics: len(s.topics), Bytes: s.bytes}
	if s.log != nil {
		st.FileBytes = s.log.Size()
	}
	return st
}

// Close makes everything durable and closes the file.
func (s *Store) Close() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	if log == nil {
		return nil
	}
	s.log = nil
	return log.Close()
}
