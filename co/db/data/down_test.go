package datadb_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// A downBench is a database with a site, and the rule of its messages.
type downBench struct {
	t    *testing.T
	s    *record
	url  string
	rule protocol.DataRule
}

func newDownBench(t *testing.T) *downBench {
	t.Helper()
	b := &downBench{t: t, url: pgtest.New(t), rule: protocol.DataRule{Name: "set", Down: true, Topics: []string{"#"}, QoS: 1}}
	b.s = openURL(t, b.url)
	testpart.Must[fleet.Site](t)(b.s.sites.CreateSite(t.Context(), "plant"))
	return b
}

func (b *downBench) message(topic, payload string) fleet.DownMessage {
	return fleet.DownMessage{Site: "plant", Rule: b.rule, Message: protocol.DataMessage{V: 1, Topic: topic, Payload: []byte(payload), QoS: 1}}
}

func (b *downBench) put(list ...fleet.DownMessage) {
	b.t.Helper()
	if err := b.s.PutDown(b.t.Context(), list); err != nil {
		b.t.Fatal(err)
	}
}

func (b *downBench) read(after uint64) fleet.DownBatch {
	b.t.Helper()
	return testpart.Must[fleet.DownBatch](b.t)(b.s.DownBatch(b.t.Context(), fleet.DownRead{Site: "plant", Rule: "set", After: after, MaxBytes: 1 << 20}))
}

func (b *downBench) ack(epoch string, seq uint64, first bool) fleet.DownStream {
	b.t.Helper()
	return testpart.Must[fleet.DownStream](b.t)(b.s.AckDown(b.t.Context(), "plant", "set", protocol.Ack{V: 1, Epoch: epoch, Seq: seq}, first))
}

func (b *downBench) exec(sql string, args ...any) {
	b.t.Helper()
	conn := testpart.Must[*pgx.Conn](b.t)(pgx.Connect(b.t.Context(), b.url))
	defer conn.Close(b.t.Context())
	if _, err := conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// show is the events of a batch, one word each.
func show(t *testing.T, b fleet.DownBatch) string {
	t.Helper()
	var out []string
	for _, e := range b.Events {
		word := fmt.Sprintf("%d:%s", e.Seq, e.Kind)
		if e.Kind == protocol.DataEvent {
			var m protocol.DataMessage
			if err := protocol.Unmarshal(e.Body, &m); err != nil {
				t.Fatal(err)
			}
			word = fmt.Sprintf("%d:%s=%s", e.Seq, m.Topic, m.Payload)
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

func (b *downBench) want(after uint64, want string, trimmed uint64) {
	b.t.Helper()
	got := b.read(after)
	if s := show(b.t, got); s != want || got.Trimmed != trimmed {
		b.t.Errorf("after %d: %q, trimmed %d; want %q, trimmed %d", after, s, got.Trimmed, want, trimmed)
	}
}

func retained(m fleet.DownMessage) fleet.DownMessage {
	m.Message.Retain = true
	return m
}

func TestDownQueue(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.put(b.message("a", "1"), b.message("b", "2"))
	b.put(b.message("a", "3"))
	b.want(0, "1:a=1 2:b=2 3:a=3", 0)
	b.want(2, "3:a=3", 0)
	if got := testpart.Must[fleet.DownBatch](t)(b.s.DownBatch(t.Context(), fleet.DownRead{Site: "plant", Rule: "set", MaxBytes: 1})); len(got.Events) != 1 {
		t.Errorf("a batch of the least size has %d events", len(got.Events))
	}
	b.ack(b.s.db.Epoch(), 2, true)
	b.want(2, "3:a=3", 2)
	if l := b.ack(b.s.db.Epoch(), 1, false); l.Acked != 2 {
		t.Errorf("an old ack moved the stream to %d", l.Acked)
	}
	l := b.ack(b.s.db.Epoch(), 3, false)
	if l.Queued() != 0 || l.Bytes != 0 {
		t.Errorf("all is acknowledged, and the stream is %+v", l)
	}
	b.want(3, "", 3)
	err := b.s.PutDown(t.Context(), []fleet.DownMessage{{Site: "nowhere", Rule: b.rule}})
	wantKind(t, err, protocol.NotFound, "does not exist")
}

// TestDownOrder has many put at once: the sequences have no gap, and the messages
// of each writer are in order.
func TestDownOrder(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	const writers, each = 4, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				other := b.message(fmt.Sprintf("w%d", w), fmt.Sprint(i))
				other.Rule.Name = "other" // in both orders, which must not lock up
				pair := []fleet.DownMessage{b.message(fmt.Sprintf("w%d", w), fmt.Sprint(i)), other}
				if w%2 == 0 {
					slices.Reverse(pair)
				}
				if err := b.s.PutDown(t.Context(), pair); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := b.read(0)
	if len(got.Events) != writers*each {
		t.Fatalf("%d messages, want %d", len(got.Events), writers*each)
	}
	next := map[string]int{}
	for i, e := range got.Events {
		var m protocol.DataMessage
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		if e.Seq != uint64(i+1) || string(m.Payload) != fmt.Sprint(next[m.Topic]) {
			t.Fatalf("message %d has sequence %d and is %s of %s, want %d", i, e.Seq, m.Payload, m.Topic, next[m.Topic])
		}
		next[m.Topic]++
	}
}

func TestDownBounds(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.rule.MaxBytes = 20_000
	for i := range 100 {
		b.put(b.message("t", fmt.Sprintf("%03d%s", i, strings.Repeat("x", 400))))
	}
	streams := testpart.Must[[]fleet.DownStream](t)(b.s.DownStreams(t.Context(), "plant"))
	got := b.read(0)
	l := streams[0]
	if l.Bytes > b.rule.MaxBytes || l.Dropped == 0 || l.Dropped+uint64(len(got.Events)) != 100 || got.Trimmed != l.Dropped || l.Stale {
		t.Errorf("after 100 messages, each a fortieth of the bound: %+v, %d events, trimmed %d", l, len(got.Events), got.Trimmed)
	}
	if last := got.Events[len(got.Events)-1].Seq; last != 100 {
		t.Errorf("the newest message is %d, want 100", last)
	}
	events := testpart.Must[[]fleet.Event](t)(b.s.sites.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.DataDropped}}))
	if len(events) != 1 || !strings.Contains(events[0].Message, "the data rule set") {
		t.Errorf("events of drops: %+v, want one that names the rule", events)
	}

	// By age.
	b.exec(`update down_queue set queued_at = now() - interval '2 hours' where seq < 99`)
	aged := testpart.Must[fleet.DownBatch](t)(b.s.DownBatch(t.Context(), fleet.DownRead{
		Site: "plant", Rule: "set", MaxBytes: 1 << 20, MaxAge: time.Hour,
	}))
	if len(aged.Events) != 2 || aged.Trimmed != 98 {
		t.Errorf("%d events are younger than an hour, trimmed %d; want 2 and 98", len(aged.Events), aged.Trimmed)
	}

	// What is retained is dropped from the queue alone: the site gets it once it is there.
	b.put(retained(b.message("state", "on")))
	b.exec(`update down_queue set queued_at = now() - interval '2 hours'`)
	testpart.Must[fleet.DownBatch](t)(b.s.DownBatch(t.Context(), fleet.DownRead{Site: "plant", Rule: "set", MaxBytes: 1, MaxAge: time.Hour}))
	if l := b.ack(b.s.db.Epoch(), 40, true); l.Stale {
		t.Errorf("the first ack after the drop left %+v", l)
	}
	b.want(101, "102:retained_begin 103:state=on 104:retained_end", 101)
}

func TestDownExpiry(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	short := b.message("a", "short")
	short.Message.ExpiryMillis = 60_000
	b.put(short, b.message("a", "ever"))
	got := b.read(0)
	age := got.Now.UnixMilli() - got.Events[0].UnixMillis
	if got.Events[0].Kind != protocol.DataEvent || age < 0 || age > 60_000 {
		t.Errorf("a fresh message: %s, %d ms old", got.Events[0].Kind, age)
	}
	b.exec(`update down_queue set expires_at = expires_at - interval '1 minute'`)
	b.want(0, "1:data_expired 2:a=ever", 0)

	// A retained one that expires removes what it replaced.
	kept := b.message("b", "short")
	kept.Message.ExpiryMillis, kept.Message.Retain = 60_000, true
	b.put(kept)
	b.exec(`update down_queue set expires_at = expires_at - interval '1 minute' where seq = 3`)
	b.want(2, "3:b=", 0)
	var m protocol.DataMessage
	if err := protocol.Unmarshal(b.read(2).Events[0].Body, &m); err != nil || !m.Retain {
		t.Errorf("%+v, %v: want a deletion", m, err)
	}
}

func TestVolatile(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	v := b.message("v", "1")
	v.Volatile = true
	b.put(v) // no site is connected
	if err := b.s.sites.SetSitePresence(t.Context(), "plant", protocol.Presence{V: 1, Online: true, Session: "s"}); err != nil {
		t.Fatal(err)
	}
	b.put(v, b.message("a", "1"))
	b.want(0, "1:v=1 2:a=1", 0)
	if err := b.s.BeginDown(t.Context(), "plant", "", []string{"set"}); err != nil {
		t.Fatal(err)
	}
	b.want(0, "1:data_expired 2:a=1", 0)
}

// TestDownFirstAck queues retained messages before the site answers for the first time,
// as on a busy machine: it gets each of them once, and only what was sent can be lost.
func TestDownFirstAck(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.put(retained(b.message("x", "1")), b.message("y", "1"))
	if l := b.ack("", 0, true); l.Last != 2 || l.Stale {
		t.Errorf("a site to which nothing was ever sent: last %d, stale %t, want 2 and false", l.Last, l.Stale)
	}
	b.want(0, "1:x=1 2:y=1", 0)
	b.ack("", 0, true) // it was sent by the read, and the site does not have it
	b.want(0, "1:x=1 2:y=1 3:retained_begin 4:x=1 5:retained_end", 0)
}

// TestDownResync covers the ways in which the two sides can have lost each other.
func TestDownResync(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	epoch := b.s.db.Epoch()
	if l := b.ack("", 0, true); l.Last != 0 {
		t.Errorf("a site that never had anything got %+v", l)
	}
	b.put(retained(b.message("x", "1")), retained(b.message("y", "1")), retained(b.message("y", "")), b.message("z", "1"), retained(b.message("x", "2")))
	b.read(0)
	b.ack(epoch, 5, false)

	// The site lost its state: all that is retained again, and it was said once.
	b.ack("", 0, true)
	b.want(5, "6:retained_begin 7:x=2 8:retained_end", 5)
	b.ack("", 0, true)
	b.want(5, "6:retained_begin 7:x=2 8:retained_end", 5)
	b.ack(epoch, 6, false)
	b.ack("", 0, true) // lost again, in the middle
	b.want(6, "7:x=2 8:retained_end 9:retained_begin 10:x=2 11:retained_end", 6)
	b.ack(epoch, 11, false)

	// The site was set back, as from a backup of its disk.
	b.ack(epoch, 3, true)
	b.want(11, "12:retained_begin 13:x=2 14:retained_end", 11)
	b.ack(epoch, 14, false)

	// A new database: what the site retains from the one before is to go.
	b.exec(`delete from down_retained`)
	b.ack("an earlier database", 900, true)
	b.want(14, "15:retained_begin 16:retained_end", 14)
	b.ack(epoch, 16, false)

	// The database was set back: the site has had 20 by now. What came since then
	// must not take sequences that the site knows.
	b.put(b.message("n", "1"), b.message("n", "2"))
	l := b.ack(epoch, 20, true)
	if l.Acked != 20 {
		t.Errorf("behind a site that has 20: %+v", l)
	}
	got := b.read(20)
	if s := show(t, got); got.Events[0].Seq <= 20 || got.Trimmed+1 != got.Events[0].Seq || !strings.Contains(s, ":n=1") || !strings.Contains(s, ":n=2") {
		t.Errorf("after a site that has 20: %q, trimmed %d", s, got.Trimmed)
	}
	if !strings.HasSuffix(show(t, got), "retained_end") {
		t.Errorf("what is retained is not sent again: %q", show(t, got))
	}
}

// TestRenewDown gives a stream a new epoch, once for each that was retired.
func TestRenewDown(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.put(retained(b.message("x", "1")), b.message("y", "1"))
	first := b.read(0).Epoch
	if first != b.s.db.Epoch() {
		t.Errorf("the epoch is %q, want the database's, %q", first, b.s.db.Epoch())
	}
	b.ack(first, 1, false)
	for range 2 {
		if err := b.s.RenewDown(t.Context(), "plant", "set", first); err != nil {
			t.Fatal(err)
		}
	}
	second := b.ack("another", 7, true).Epoch
	if second == first || second == "" {
		t.Fatalf("the epoch is %q, want a new one", second)
	}
	b.want(1, "2:y=1 3:retained_begin 4:x=1 5:retained_end", 1)
	if got := b.read(1).Epoch; got != second {
		t.Errorf("the epoch of a batch is %q, want %q", got, second)
	}
	if err := b.s.RenewDown(t.Context(), "plant", "set", first); err != nil {
		t.Fatal(err)
	}
	if l := b.ack(second, 5, true); l.Epoch != second || l.Acked != 5 {
		t.Errorf("after the ack the epoch is %q and %d is acknowledged, want %q and 5", l.Epoch, l.Acked, second)
	}
}

// TestDownResyncOfWhatIsOld sends a site retained messages that are older than the
// queue's bound of age, which is about the queue and not about them.
func TestDownResyncOfWhatIsOld(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	read := func(after uint64) string {
		t.Helper()
		return show(t, testpart.Must[fleet.DownBatch](t)(b.s.DownBatch(t.Context(), fleet.DownRead{Site: "plant", Rule: "set", After: after, MaxBytes: 1 << 20, MaxAge: time.Hour})))
	}
	b.put(retained(b.message("x", "1")), retained(b.message("y", "1")))
	b.exec(`update down_retained set accepted_at = now() - interval '2 hours' where topic = 'x'`)
	b.read(0)
	b.ack(b.s.db.Epoch(), 2, false)
	b.ack("", 0, true)
	if got := read(2); got != "3:retained_begin 4:x=1 5:y=1 6:retained_end" {
		t.Errorf("the site is sent %q", got)
	}
	b.ack(b.s.db.Epoch(), 3, false)
	if got := read(3); got != "4:x=1 5:y=1 6:retained_end" {
		t.Errorf("after the first of them: %q", got)
	}
	// A clock that was put back leaves no hole in the sequence.
	b.exec(`update down_queue set queued_at = now() - interval '2 hours' where seq in (4, 6)`)
	if got := read(3); got != "5:y=1 6:retained_end" {
		t.Errorf("the oldest is old, and one behind one that is not: %q", got)
	}
}

func TestDownRuleRemoved(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.put(b.message("a", "1"), retained(b.message("x", "1")))
	if err := b.s.BeginDown(t.Context(), "plant", "", []string{"other"}); err != nil {
		t.Fatal(err)
	}
	b.want(0, "", 2)
	b.put(b.message("a", "2")) // it is back
	b.ack(b.s.db.Epoch(), 0, true)
	b.want(0, "3:a=2 4:retained_begin 5:retained_end", 2)
}

func TestListenDown(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	other := openURL(t, b.url)
	woken := make(chan protocol.SiteID, 16)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		other.ListenDown(ctx, func(site protocol.SiteID) { woken <- site })
	}()
	for _, want := range []protocol.SiteID{"", "plant"} {
		select {
		case got := <-woken:
			if got != want {
				t.Errorf("woken for %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not woken for %q", want)
		}
		if want == "" {
			b.put(b.message("a", "1"))
		}
	}
	cancel()
	<-done
}

// TestDownSender has one replica send at a time.
func TestDownSender(t *testing.T) {
	t.Parallel()
	b := newDownBench(t)
	b.put(b.message("a", "1"))
	read := func(sender string) (busy bool, events int) {
		got := testpart.Must[fleet.DownBatch](t)(b.s.DownBatch(t.Context(), fleet.DownRead{Site: "plant", Rule: "set", MaxBytes: 1 << 20, Sender: sender}))
		return got.Busy > 0, len(got.Events)
	}
	want := func(sender string, busy bool) {
		t.Helper()
		if got, n := read(sender); got != busy || n == 0 != busy {
			t.Errorf("replica %s: busy %t with %d events, want %t", sender, got, n, busy)
		}
	}
	want("one", false)
	want("two", true)
	b.exec(`update down_streams set sender_at = sender_at - interval '31 seconds'`) // it is silent
	want("two", false)
	want("one", true)
	if err := b.s.BeginDown(t.Context(), "plant", "one", []string{"set"}); err != nil {
		t.Fatal(err)
	}
	want("one", false) // the site has connected to it
	want("two", true)
}
