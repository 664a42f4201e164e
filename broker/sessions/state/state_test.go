package state

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// every has a record of each kind.
func every() []Record {
	body := Body{Topic: "t/1", Properties: []byte{1, 1}, Payload: []byte("payload")}
	return []Record{
		Begin{1, "c", "owner", "identity\x00x", 3600},
		Begin{2, "d", "o", "", Never},
		Subscribe{1, "f/#", Subscription{Identifier: 1 << 20, QoS: 2, NoLocal: true, RetainAsPublished: true}},
		Subscribe{2, "g", Subscription{}},
		Unsubscribe{2, "g"},
		Connected{Session: 2, Expiry: 60},
		Connected{2, 60, &Will{At: 7e9, Body: body, QoS: 1, Retain: true, Expiry: 8}},
		&Publish{Body: body, Expires: 99, To: []Target{{1, 0, Delivery{QoS: 2, Retain: true, Identifiers: []int{1, 300}}}, {2, 5, Delivery{QoS: 1}}}},
		&Publish{Body: Body{Topic: "u", Payload: []byte{}}, To: []Target{{1, 1, Delivery{QoS: 1}}, {77, 1, Delivery{QoS: 1}}}, From: 2, ID: 65535},
		Recorded{1, 0},
		Removed{[]Position{{1, 1}, {2, 9}, {3, 1}}},
		Finished{2, 9},
		Copied{Ref{1, 2, 3}},
		Time{5, 6},
		Away{Session: 1, At: 50, Expiry: 3600, SentBelow: 1, WillAt: 60, Will: body, WillFlags: 6, WillExpiry: 7},
		Away{Session: 2, At: 51},
		End{9},
	}
}

// TestRecords encodes and decodes each kind of record, and refuses each of its beginnings.
func TestRecords(t *testing.T) {
	t.Parallel()
	for _, r := range every() {
		b := r.Append(nil)
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", r, diff)
		}
		for n := range b {
			if short, err := Decode(b[:n]); err == nil && cmp.Equal(short, r) {
				t.Errorf("%T: %d of %d bytes are read as all of it", r, n, len(b))
			}
		}
	}
	if _, err := Decode([]byte{200, 1}); err == nil {
		t.Error("an unknown kind is read")
	}
}

// fold applies the records, each in a segment of its own.
func fold(st *State, list []Record) {
	for i, r := range list {
		st.Apply(r, Ref{Segment: uint32(i + 1), At: 32, Size: uint32(len(r.Append(nil)))})
	}
}

// checkpoint is what the store writes of a state.
func checkpoint(st *State) []byte {
	ids := make([]SessionID, 0, len(st.Sessions))
	for id := range st.Sessions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	b := AppendHead(nil, st.Time, st.LastID, len(ids))
	for _, id := range ids {
		b = st.Sessions[id].Append(b)
	}
	return b
}

// TestWillOfConnection is kept over a crash, with its delay from then on, and not over the connection's end, also by way of
// a checkpoint. A release that does not know it reads the rest of the record.
func TestWillOfConnection(t *testing.T) {
	t.Parallel()
	will := func(delay int64) *Will { return &Will{At: delay, Body: Body{Topic: "t", Payload: []byte("p")}, QoS: 1} }
	st := New()
	fold(st, []Record{
		Begin{Session: 1, Client: "crash"},
		Connected{1, 60, will(5)},
		Begin{Session: 2, Client: "left"},
		Connected{2, 60, will(5)},
		Away{Session: 2, At: 50, Expiry: 60},
		Begin{Session: 3, Client: "again"},
		Connected{3, 60, will(5)},
		Connected{3, 60, will(6)},
		Begin{Session: 4, Client: "none"},
		Connected{4, 60, will(5)},
		Connected{Session: 4, Expiry: 60},
	})
	st, err := Load(checkpoint(st))
	if err != nil {
		t.Fatal(err)
	}
	st.Finish(100, false)
	for id, want := range map[SessionID]int64{1: 105, 2: 0, 3: 106, 4: 0} {
		s := st.Sessions[id]
		if got := s.Will; (got == nil) != (want == 0) || got != nil && (got.At != want || string(got.Body.Payload) != "p") {
			t.Errorf("%s: will %+v, want one that is due at %d", s.Client, got, want)
		}
	}
	with, without := Connected{1, 60, will(5)}.Append(nil), Connected{Session: 1, Expiry: 60}.Append(nil)
	if !bytes.HasPrefix(with, without) {
		t.Errorf("% x does not begin with % x", with, without)
	}
}

// TestCheckpointAndReplay gets to the same state by all records, and by a checkpoint in between and the rest; also where
// the rest begins before the checkpoint, as its records may be in it already.
func TestCheckpointAndReplay(t *testing.T) {
	t.Parallel()
	all := every()
	whole := New()
	fold(whole, all)
	if s := whole.Sessions[1]; s.Queue.Len() != 1 || s.Will == nil || s.Will.QoS != 2 || !s.Will.Retain || s.Due() != 50+3600e9 || len(s.Subscriptions) != 1 {
		t.Errorf("session 1: %+v", s)
	}
	if s := whole.Sessions[2]; s.Queue.Len() != 1 || len(s.Received) != 1 || s.Due() != 51 || len(s.Subscriptions) != 0 {
		t.Errorf("session 2: %+v", s)
	}
	for cut := range all {
		part := New()
		fold(part, all[:cut])
		loaded, err := Load(checkpoint(part))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range all[cut:] {
			loaded.Apply(r, Ref{Segment: uint32(cut + i + 1), At: 32, Size: uint32(len(r.Append(nil)))})
		}
		if got, want := checkpoint(loaded), checkpoint(whole); !bytes.Equal(got, want) {
			t.Errorf("a checkpoint behind %d records leads to\n%x\nwant\n%x", cut, got, want)
		}
	}
	if _, err := Load(append(checkpoint(whole), 0)); err == nil {
		t.Error("a checkpoint with something behind it is read")
	}
}

// TestFinish ends the connections that the log has, and marks what may have been sent.
func TestFinish(t *testing.T) {
	t.Parallel()
	st := New()
	st.Apply(Begin{1, "c", "o", "", 60}, Ref{})
	st.Apply(Begin{2, "d", "o", "", 60}, Ref{})
	for i := range uint64(MaxWindow + 10) {
		st.Apply(&Publish{To: []Target{{1, i, Delivery{QoS: 1}}, {2, i, Delivery{QoS: 1}}}}, Ref{1, uint32(i), 9})
	}
	st.Apply(Away{Session: 2, At: 5, Expiry: 60, SentBelow: 3}, Ref{})
	st.Finish(1000, false)
	for id, want := range map[SessionID]struct {
		away int64
		sent uint64
	}{1: {1000, MaxWindow}, 2: {5, 3}} {
		s := st.Sessions[id]
		if first, _ := s.Queue.Oldest(); s.Away != want.away || first != want.sent {
			t.Errorf("session %d: away since %d, %d messages may have been sent, want %+v", id, s.Away, first, want)
		}
	}
}

// TestCopies follows a message to another segment, and takes nothing for a copy that is none.
func TestCopies(t *testing.T) {
	t.Parallel()
	st := New()
	st.Apply(Begin{1, "c", "o", "", 60}, Ref{})
	p := &Publish{To: []Target{{1, 0, Delivery{QoS: 1}}}}
	from := Ref{1, 100, uint32(len(p.Append(nil)))}
	st.Apply(p, from)
	at := func() (r Ref) {
		for item := range st.Sessions[1].Queue.All {
			r = item.Message.Ref()
		}
		return r
	}
	st.Apply(Copied{from}, Ref{2, 32, 4})
	st.Apply(p, Ref{2, 500, from.Size}) // not right behind it
	if at() != from {
		t.Errorf("the message is at %v, want %v", at(), from)
	}
	st.Apply(Copied{from}, Ref{2, 600, 4})
	st.Apply(p, Ref{2, 604 + recordHead, from.Size})
	if want := (Ref{2, 604 + recordHead, from.Size}); at() != want || st.Sessions[1].Queue.Len() != 1 {
		t.Errorf("the message is at %v, want %v", at(), want)
	}
}

// TestClock counts no time that may not have passed.
func TestClock(t *testing.T) {
	t.Parallel()
	year := func(y int) int64 { return time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() }
	for name, c := range map[string]struct {
		last Time
		now  int64
		want int64
	}{
		"new":                          {Time{}, year(2027), 1},
		"an hour later":                {Time{100, year(2027)}, year(2027) + 3600e9, 100 + 3600e9},
		"the machine is in 1970":       {Time{100, year(2027)}, 10, 100},
		"the last stamp was from 1970": {Time{100, 10}, year(2027), 100},
		"a day back":                   {Time{100, year(2027)}, year(2027) - 86400e9, 100},
	} {
		now := time.Unix(0, c.now)
		clock := Resume(c.last, now)
		if got := clock.At(now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := clock.At(now.Add(time.Second)); got != c.want+1e9 {
			t.Errorf("%s: a second later %d", name, got)
		}
		if got := clock.Until(clock.Time(clock.At(now) + 5)); got != clock.At(now)+5 {
			t.Errorf("%s: there and back: %d", name, got)
		}
	}
	now := time.Now()
	clock := Resume(Time{}, now)
	last := clock.Stamp(now)
	if clock.Drifted(last, now.Add(30*time.Second)) || !clock.Drifted(last, now.Add(61*time.Second)) || !clock.Drifted(Time{last.Clock, last.Wall - 5e9}, now) {
		t.Error("a stamp is due after a minute, and when the clock was set")
	}
	if clock.Until(time.Time{}) != 0 || !clock.Time(0).IsZero() {
		t.Error("never is 0")
	}
}

// FuzzDecode reads any bytes as a record and as a checkpoint: no panic, and no memory that the input does not have.
func FuzzDecode(f *testing.F) {
	for _, r := range every() {
		f.Add(r.Append(nil))
	}
	st := New()
	fold(st, every())
	f.Add(checkpoint(st))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := Decode(b); err == nil {
			if _, err := Decode(r.Append(nil)); err != nil {
				t.Errorf("%+v is written and not read: %v", r, err)
			}
			st := New()
			st.Apply(Begin{Session: 1}, Ref{})
			st.Apply(r, Ref{Segment: 1})
			st.Finish(1, false)
		}
		_, _ = Load(b)
	})
}

// A message that the client does not acknowledge may be as far behind the others as it likes: the
// bound has dropped those between.
func TestACheckpointKeepsAQueueWithAWideGap(t *testing.T) {
	const published, kept = 200_000, 1000
	for _, more := range []int{0, 3} { // messages that wait behind the gap, or none
		s := Session{ID: 1, Client: "c"}
		push := func(seq uint64) {
			m := NewMessage(Ref{1, uint32(32 + seq*30), 10}, 0)
			m.Use(1)
			if !s.Queue.Push(seq, m, Delivery{QoS: 1}) {
				t.Fatalf("message %d is refused", seq)
			}
		}
		for seq := range uint64(published) {
			if push(seq); seq == 0 {
				s.Queue.Next(1) // sent, and not acknowledged
			}
			for s.Queue.Len() > kept*min(1, more)+1 {
				oldest, _ := s.Queue.Oldest()
				s.Queue.Remove(oldest)
			}
		}
		s.Left(1, Never, nil)
		st, err := Load(s.Append(AppendHead(nil, Time{1, 1}, 1, 1)))
		if err != nil {
			t.Fatal(err)
		}
		st.Apply(&Publish{To: []Target{{Session: 1, Seq: published, Delivery: Delivery{QoS: 1}}}}, Ref{2, 32, 10})
		st.Finish(2, false)
		got := &st.Sessions[1].Queue
		if got.Len() != s.Queue.Len()+1 || got.NextSeq() != published+1 {
			t.Errorf("%d messages before, %d with one more after; the next number is %d, want %d",
				s.Queue.Len(), got.Len(), got.NextSeq(), published+1)
		}
		if oldest, ok := got.Oldest(); !ok || oldest == 0 {
			t.Errorf("the sent message counts as unsent: oldest unsent %d, %v", oldest, ok)
		}
	}
}

func TestACheckpointWithNumbersInDisorderIsRefused(t *testing.T) {
	s := Session{ID: 1, Client: "c"}
	s.Queue.Push(5, NewMessage(Ref{1, 32, 10}, 0), Delivery{QoS: 1})
	s.Queue.Push(6, NewMessage(Ref{1, 64, 10}, 0), Delivery{QoS: 1})
	b := s.Append(AppendHead(nil, Time{1, 1}, 1, 1))
	if _, err := Load(b); err != nil {
		t.Fatal(err)
	}
	b[len(b)-7] = 0 // how much higher the second number is
	if _, err := Load(b); err == nil {
		t.Error("a checkpoint with the same number twice is read: one of the messages is lost and nobody knows")
	}
}
