package downlink

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// Streams implements Retained.
func (s *site) Streams() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for k := range s.retained {
		stream, _, _ := strings.Cut(k, " ")
		out = append(out, stream)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mortal is a retained message that is valid for so long; in a batch it has an age
// of six seconds.
func mortal(topic, payload string, millis uint64) protocol.Event {
	m := protocol.DataMessage{V: 1, Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true, ExpiryMillis: millis}
	return protocol.Event{UnixMillis: 4_000, Kind: protocol.DataEvent, Body: protocol.Marshal(&m)}
}

// TestExpiredOnTheWay has a retained message run out of time on its way: the
// message that it replaced must not live on at the site.
func TestExpiredOnTheWay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.send(batchOf("e", 1, 0, data("a", "1", true), data("b", "1", true)))
	s.send(batchOf("e", 3, 0, mortal("a", "2", 5_000)))
	if got := s.topics(); got != "data/set b" {
		t.Errorf("retained: %s; at the CO nothing is on a", got)
	}
	// Named in a list all the same.
	s.send(batchOf("e", 4, 0, mark(protocol.RetainedBegin), mortal("b", "2", 5_000), mortal("c", "1", 60_000), mark(protocol.RetainedEnd)))
	if got := s.topics(); got != "data/set c" {
		t.Errorf("retained after a list: %s", got)
	}
}

// TestStreamWithoutAPosition loses the position of a stream, whose rule is then removed.
func TestStreamWithoutAPosition(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.send(batchOf("e", 1, 0, data("a", "1", true), mark(protocol.RetainedBegin)))
	s.restart()
	s.d.SetRules(nil)
	deadline := time.After(time.Minute)
	for s.topics() != "" {
		select {
		case <-deadline:
			t.Fatalf("still retained: %s", s.topics())
		case <-time.After(time.Millisecond):
		}
	}
}

// TestNeverNoted sends a retained message that the record never accepts, among
// others.
func TestNeverNoted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.wantPosition(s.send(batchOf("e", 1, 0, data("a", "1", true), data(refusedTopic, "1", true), data("b", "1", false), data("c", "1", true))), "e", 4)
	s.wantGot("1:a=1", "3:b=1", "4:c=1")
	if got := s.topics(); got != "data/set a, data/set c" {
		t.Errorf("retained: %s", got)
	}
}

// refusedTopic is one that the record of the tests refuses.
const refusedTopic = "too/large"
