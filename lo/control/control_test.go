package control

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/lo/control/trim"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// TestTransitionsOutliveACrash accepts reports whose record is not stored at once, and
// starts again: from the journal, and, once the journal has forgotten them, from
// the record.
func TestTransitionsOutliveACrash(t *testing.T) {
	t.Parallel()
	for name, trimmed := range map[string]bool{"journal": false, "record": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, store := openJournal(t), openStore(t)
			open := func() *Site { return openSite(t, j, store, nil) }
			s := open()
			for seq := range uint64(9) {
				m := protocol.DeploymentStatus{V: 1, Node: "n1", Deployment: "d", Agent: "a", Seq: seq + 1, Actor: lifecycle.EN, State: lifecycle.Installed, Digest: "x"}
				if seq%2 == 1 {
					m.State, m.Code = lifecycle.Failed, protocol.CrashLoop
				}
				if err := s.acceptReport(t.Context(), m, time.UnixMilli(int64(seq)+1)); err != nil {
					t.Fatal(err)
				}
			}
			if s.node("n1").firstUnsaved == 0 {
				t.Error("each report stored its record")
			}
			if trimmed {
				k := trim.New(j, s, s.log)
				if err := errors.Join(k.Trim(j.Last()), k.TrimAcked()); err != nil || j.Trimmed() != j.Last() {
					t.Fatalf("trim through %d: %v, trimmed through %d", j.Last(), err, j.Trimmed())
				}
			}
			if diff := cmp.Diff(encoded(t, s), encoded(t, open())); diff != "" {
				t.Errorf("the record before and after the crash:\n%s", diff)
			}
		})
	}
}

func encoded(t *testing.T, s *Site) string {
	t.Helper()
	b, err := json.MarshalIndent(s.node("n1").rec, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWillIsRecordedLater refuses a last will, which comes once only, because the
// journal accepts nothing at that moment.
func TestWillIsRecordedLater(t *testing.T) {
	t.Parallel()
	j, store := openJournal(t), openStore(t)
	closed := openJournal(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	s := openSite(t, j, store, nil)
	now := s.began
	l := NewLoop(s, nil)
	// Another node was online before the start and has time to come back.
	if err := s.acceptPresence(t.Context(), "early", protocol.Presence{Online: true, Session: "1"}, now); err != nil {
		t.Fatal(err)
	}
	s.node("early").seen = false
	if err := s.acceptPresence(t.Context(), "n1", protocol.Presence{Online: true, Session: "1"}, now); err != nil {
		t.Fatal(err)
	}
	s.journal = eventJournal{closed}
	if err := s.acceptPresence(t.Context(), "n1", protocol.Presence{Session: "1"}, now); err == nil {
		t.Fatal("the will was accepted without a journal")
	}
	if retry := l.expire(t.Context(), now); !retry.Equal(now.Add(retryDelay)) || !s.node("n1").rec.Online() {
		t.Fatalf("retry at %s, want it in %s, and the node online until then", retry, retryDelay)
	}
	s.journal = eventJournal{j}
	if retry := l.expire(t.Context(), now.Add(retryDelay)); !retry.IsZero() || s.node("n1").rec.Online() {
		t.Errorf("retry at %s, node online %t: want it recorded as offline", retry, s.node("n1").rec.Online())
	}
	if !s.node("early").rec.Online() {
		t.Error("a node is offline before its time to come back is over")
	}
	if err := s.acceptPresence(t.Context(), "n1", protocol.Presence{Online: true, Session: "2"}, now); err != nil {
		t.Fatal(err)
	}
	s.willsUnsaved.Store(true)
	if l.expire(t.Context(), now); !s.node("n1").rec.Online() {
		t.Error("a node that came back is offline because of the earlier will")
	}
}
