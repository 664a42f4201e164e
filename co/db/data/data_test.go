package datadb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream/streamtest"
)

// arrival is when the messages of the tests came to their site.
const arrival = int64(1_700_000_000_000)

// A streamHelper is one queue of machine data of site home, with the CO's side of it.
type streamHelper struct {
	t     testing.TB
	s     *record
	db    *pgx.Conn
	rule  string
	epoch string

	mu        sync.Mutex
	delivered []fleet.Delivery
	// refuse makes deliver fail, after it has the messages.
	refuse error
}

// newStreamHelper returns streams of a store of their own whose rules, but for one that is
// named unknown, store their messages.
func newStreamHelper(t testing.TB, rules ...string) (*record, []*streamHelper) {
	t.Helper()
	url := pgtest.New(t)
	s := openURL(t, url)
	var data fleet.SiteData
	for _, r := range rules {
		if r != "unknown" {
			data.Rules = append(data.Rules, fleet.DataRule{DataRule: protocol.DataRule{Name: r, Topics: []string{"#"}}, Store: true})
		}
	}
	setRules(t, s, data)
	pool, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close(context.Background()) })
	var streams []*streamHelper
	for _, r := range rules {
		streams = append(streams, &streamHelper{t: t, s: s, db: pool, rule: r, epoch: "a"})
	}
	return s, streams
}

func setRules(t testing.TB, s *record, data fleet.SiteData) {
	t.Helper()
	if _, _, err := s.sites.SaveDesired(t.Context(), "home", "c", nil, data); err != nil {
		t.Fatal(err)
	}
}

func (l *streamHelper) deliver(_ context.Context, list []fleet.Delivery) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered = append(l.delivered, list...)
	return l.refuse
}

func (l *streamHelper) batch(first int, events []protocol.Event) protocol.Batch {
	return protocol.Batch{V: 1, Epoch: l.epoch, Stream: protocol.DataStream(l.rule), First: uint64(first), Count: uint32(len(events)), SentMillis: arrival + 1000}
}

// send commits events from the sequence first on.
func (l *streamHelper) send(first int, events ...protocol.Event) protocol.Ack {
	l.t.Helper()
	return testpart.Must[protocol.Ack](l.t)(l.commit(l.t.Context(), l.batch(first, events), events))
}

func (l *streamHelper) commit(ctx context.Context, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	return l.s.CommitData(ctx, "home", b, append([]protocol.Event(nil), events...), l.deliver)
}

// said returns what was delivered since the last call, each as topic=payload, with
// ! where it is to be retained.
func (l *streamHelper) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, d := range l.delivered {
		text := d.Message.Topic + "=" + string(d.Message.Payload)
		if d.Message.Retain {
			text += "!"
		}
		out = append(out, text)
	}
	l.delivered = nil
	return strings.Join(out, " ")
}

// stored returns the rule's rows in their order, each as topic=payload.
func (l *streamHelper) stored() string {
	l.t.Helper()
	rows, err := l.db.Query(l.t.Context(), `select topic || '=' || convert_from(payload, 'UTF8') from data_messages
		where site = 'home' and rule = $1 order by era, seq`, l.rule)
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.Join(testpart.Must[[]string](l.t)(pgx.CollectRows(rows, pgx.RowTo[string])), " ")
}

// retained returns what the store would publish anew, as said does.
func (l *streamHelper) retained() string {
	l.t.Helper()
	l.said()
	if err := l.s.RepublishRetained(l.t.Context(), l.deliver); err != nil {
		l.t.Fatal(err)
	}
	return l.said()
}

// feed returns the events of the site's feed, each as kind: message.
func (l *streamHelper) feed() []string {
	l.t.Helper()
	var out []string
	for _, e := range testpart.Must[[]fleet.Event](l.t)(l.s.sites.Events(l.t.Context(), fleet.EventFilter{Site: "home"})) {
		if e.Kind != fleet.DataRulesChanged {
			out = append(out, e.Kind+": "+e.Message)
		}
	}
	return out
}

func (l *streamHelper) want(what, got, want string) {
	l.t.Helper()
	if got != want {
		l.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func event(kind protocol.EventKind, body any) protocol.Event {
	e := protocol.Event{UnixMillis: arrival, Kind: kind}
	if body != nil {
		e.Body = protocol.Marshal(body)
	}
	return e
}

// msg is a message of a topic with a payload; with ! at its end it is retained.
func msg(text string) protocol.Event {
	name, payload, _ := strings.Cut(text, "=")
	m := protocol.DataMessage{V: 1, Topic: name, QoS: 1}
	payload, m.Retain = strings.CutSuffix(payload, "!")
	m.Payload = []byte(payload)
	return event(protocol.DataEvent, m)
}

func msgs(texts ...string) (out []protocol.Event) {
	for _, t := range texts {
		out = append(out, msg(t))
	}
	return out
}

// TestStreamContract plays the arrivals that every receiver of a stream must pass.
func TestStreamContract(t *testing.T) {
	t.Parallel()
	cases := streamtest.Cases()
	var rules []string
	for i := range cases {
		rules = append(rules, fmt.Sprintf("r%d", i))
	}
	_, streams := newStreamHelper(t, rules...)
	for i, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			l := streams[i]
			c.Play(t, streamtest.Receiver{Receive: func(t *testing.T, b protocol.Batch, n int) (protocol.Ack, []uint64) {
				var events []protocol.Event
				for range n {
					events = append(events, msg("x=1"))
				}
				b.Stream, b.SentMillis = protocol.DataStream(l.rule), arrival+1000
				ack := testpart.Must[protocol.Ack](t)(l.commit(t.Context(), b, events))
				l.mu.Lock()
				defer l.mu.Unlock()
				var got []uint64
				for _, d := range l.delivered {
					got = append(got, d.Seq)
				}
				l.delivered = nil
				return ack, got
			}})
		})
	}
}

func TestContractOfAStream(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "temps")
	l := streams[0]
	for _, step := range []struct {
		name    string
		epoch   string
		first   int
		trimmed uint64
		texts   string
		want    string // position
		said    string
	}{
		{"probe of a new stream", "a", 1, 0, "", " 0", ""},
		{"undeclared beginning", "a", 4, 0, "x=4", " 0", ""},
		{"first", "a", 1, 0, "x=1 x=2", "a 2", "x=1 x=2"},
		{"the same", "a", 1, 0, "x=1 x=2", "a 2", ""},
		{"one missing", "a", 4, 0, "x=4", "a 2", ""},
		{"overlap", "a", 2, 0, "x=2 x=3", "a 3", "x=3"},
		{"not at the gap's end", "a", 7, 5, "x=7", "a 3", ""},
		{"gap", "a", 6, 5, "x=6", "a 6", "x=6"},
		{"probe of another epoch", "b", 1, 0, "", "a 6", ""},
		{"undeclared epoch", "b", 2, 0, "y=2", "a 6", ""},
		{"new epoch", "b", 1, 0, "y=1 y=2", "b 2", "y=1 y=2"},
		{"the old one again", "a", 7, 6, "x=7", "b 2", ""},
		{"no epoch", "", 3, 0, "y=3", "b 2", ""},
		{"on", "b", 3, 0, "y=3", "b 3", "y=3"},
	} {
		l.epoch = step.epoch
		events := msgs(strings.Fields(step.texts)...)
		b := l.batch(step.first, events)
		b.Trimmed = step.trimmed
		ack := testpart.Must[protocol.Ack](t)(l.commit(t.Context(), b, events))
		l.want(step.name+": position", fmt.Sprintf("%s %d", ack.Epoch, ack.Seq), step.want)
		l.want(step.name+": stream", ack.Stream, "data/temps")
		l.want(step.name+": delivered", l.said(), step.said)
	}
	l.want("stored", l.stored(), "x=1 x=2 x=3 x=6 y=1 y=2 y=3")
	if diff := cmp.Diff([]string{
		"journal_gap: rule temps: 2 messages will never arrive",
		"journal_gap: rule temps: the site began a new stream: what the old one held after message 6 is lost",
	}, l.feed()); diff != "" {
		t.Error(diff)
	}
}

// Whatever is lost, doubled, reordered and cut differently, and however many streams
// write at once, beside a database that takes back what was delivered: the table
// has each message once, and the broker each at least once, the first time in order.
func TestAnyDeliveryOfDataIsStoredOnce(t *testing.T) {
	t.Parallel()
	const n = 200
	_, streams := newStreamHelper(t, "one", "two", "three")
	var g errgroup.Group
	for i, l := range streams {
		events := make([]protocol.Event, n)
		for j := range events {
			events[j] = msg(fmt.Sprintf("t%d=%d", j%3, j))
		}
		r := rand.New(rand.NewPCG(11, uint64(i)))
		g.Go(func() error {
			for at := 0; at < n; {
				first := r.IntN(min(n, at+20)) // beyond the position: one before it was lost
				sent := events[first:min(n, first+1+r.IntN(30))]
				ctx, cancel := context.WithCancel(t.Context())
				l.mu.Lock()
				if l.refuse = nil; r.IntN(4) == 0 {
					l.refuse = errors.New("broken off after the delivery")
				}
				l.mu.Unlock()
				ack, err := l.commit(ctx, l.batch(first+1, sent), sent)
				cancel()
				if err == nil {
					at = int(ack.Seq)
				} else if !errors.Is(err, l.refuse) {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, l := range streams {
		var want []string
		for j := range n {
			want = append(want, fmt.Sprintf("t%d=%d", j%3, j))
		}
		if diff := cmp.Diff(want, strings.Fields(l.stored())); diff != "" {
			t.Errorf("rule %s: %s", l.rule, diff)
		}
		var first []string
		seen := map[string]bool{}
		for _, text := range strings.Fields(l.said()) {
			if !seen[text] {
				first = append(first, text)
			}
			seen[text] = true
		}
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("delivered by rule %s: %s", l.rule, diff)
		}
	}
}

// A CO that ends between the delivery and the commit delivers again, and stores once.
func TestEndBetweenDeliveryAndCommit(t *testing.T) {
	t.Parallel()
	s, streams := newStreamHelper(t, "temps")
	l := streams[0]
	ctx, cancel := context.WithCancel(t.Context())
	events := msgs("x=1", "y=2!")
	_, err := s.CommitData(ctx, "home", l.batch(1, events), events, func(ctx context.Context, list []fleet.Delivery) error {
		cancel()
		return l.deliver(ctx, list)
	})
	if err == nil {
		t.Fatal("committed though the program ended")
	}
	l.want("delivered", l.said(), "x=1 y=2!")
	l.want("stored", l.stored(), "")
	l.want("retained", l.retained(), "")
	if ack := l.send(1, events...); ack.Seq != 2 {
		t.Errorf("ack %+v", ack)
	}
	l.want("delivered again", l.said(), "x=1 y=2!")
	l.want("stored once", l.stored(), "x=1 y=2")
	l.want("retained", l.retained(), "y=2!")
}

func TestRetainedIsSwept(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "temps", "other")
	l, other := streams[0], streams[1]
	other.send(1, msgs("o=1!")...)
	l.send(1, msgs("a=1!", "b=1!", "c=1!", "d=1!", "e=1")...)
	l.send(6, msgs("d=!", "c=2!")...)
	l.want("retained", l.retained(), "a=1! b=1! c=2! o=1!")

	begin, end := event(protocol.RetainedBegin, nil), event(protocol.RetainedEnd, nil)
	l.said()
	same := msg("a=1!")
	same.UnixMillis++ // the site's clocks are no better
	begin.UnixMillis += 10
	l.send(8, begin, same, msg("c=3!"))
	l.want("only what is new is delivered", l.said(), "c=3!")
	l.send(11, msg("f=1!"), msg("g=1"), end, msg("h=1"))
	l.want("in order, with what was not named deleted", l.said(), "f=1! g=1 b=! h=1")
	l.want("retained after the sweep", l.retained(), "a=1! c=3! f=1! o=1!")
	l.want("stored", l.stored(), "a=1 b=1 c=1 d=1 e=1 d= c=2 c=3 f=1 g=1 h=1")

	// An end alone sweeps nothing, nor one with a gap or a loss since its begin.
	l.send(15, end, begin, msg("a=1!"))
	b := l.batch(20, []protocol.Event{end})
	b.Trimmed = 19
	testpart.Must[protocol.Ack](t)(l.commit(t.Context(), b, []protocol.Event{end}))
	l.send(21, begin, event(protocol.DataLost, protocol.Loss{V: 1, Class: "bytes", Records: 3, Bytes: 70}), end)
	l.want("nothing is swept where something was lost", l.retained(), "a=1! c=3! f=1! o=1!")

	// In a new epoch the numbers are lower, and yet the sweep finds what is old.
	l.epoch = "b"
	l.send(1, begin, msg("a=1!"), end)
	l.want("swept in a new epoch", l.said(), "c=! f=!")
	l.want("retained in a new epoch", l.retained(), "a=1! o=1!")
	if feed := l.feed(); !strings.Contains(strings.Join(feed, "\n"), "data_lost: rule temps: 3 messages (70 bytes) dropped under the limit of their stream") {
		t.Errorf("feed: %q", feed)
	}
	// Without the end, which was never written, a message that says the same again
	// is one of its own.
	same.UnixMillis += 100
	l.send(4, begin)
	l.send(5, same)
	l.want("the same again", l.said(), "a=1!")
	// Another stream takes a topic over: the sweep of the first leaves it alone.
	other.send(2, msg("a=2!"))
	l.send(6, begin, end)
	l.want("taken over", l.retained(), "a=2! o=1!")
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "temps")
	l := streams[0]
	message := func(name string, expiry uint64, retain bool) protocol.Event {
		return event(protocol.DataEvent, protocol.DataMessage{V: 1, Topic: name, Payload: []byte("1"), ExpiryMillis: expiry, Retain: retain})
	}
	l.send(1, msg("r=0!"))
	l.said()
	// The batch was sent a second after the messages had come.
	l.send(2, message("a", 1000, false), message("b", 61_000, false), message("r", 400, true), event(protocol.DataExpired, nil), message("s", 61_000, true))
	l.mu.Lock()
	list := l.delivered
	l.delivered = nil
	l.mu.Unlock()
	if len(list) != 3 || list[0].Message.Topic != "b" || list[0].ExpiresIn != time.Minute || list[1].Message.Topic != "r" ||
		len(list[1].Message.Payload) != 0 || list[2].ExpiresIn != time.Minute {
		t.Fatalf("delivered %+v", list)
	}
	if err := l.s.RepublishRetained(t.Context(), l.deliver); err != nil {
		t.Fatal(err)
	}
	if len(l.delivered) != 1 || l.delivered[0].ExpiresIn <= 50*time.Second || l.delivered[0].ExpiresIn > time.Minute || !l.delivered[0].Time.Equal(time.UnixMilli(arrival)) {
		t.Errorf("retained %+v", l.delivered)
	}
	if _, err := l.db.Exec(t.Context(), `update data_retained set expires_at = now() - interval '1 s'`); err != nil {
		t.Fatal(err)
	}
	l.want("retained after its time", l.retained(), "")
}

// TestRepublishingHoldsUpNoEvents commits events of a site while what it holds
// retained is handed over.
func TestRepublishingHoldsUpNoEvents(t *testing.T) {
	t.Parallel()
	s, streams := newStreamHelper(t, "temps")
	streams[0].send(1, msg("a=1!"))
	commit := func(first uint64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ack, err := s.sites.CommitBatch(ctx, "home", protocol.Batch{V: 1, Epoch: "e", First: first, Count: 1, Backlog: protocol.Backlog{Last: first}},
			[]protocol.Event{event(protocol.NodeOnlineEvent, protocol.Presence{V: 1, Online: true})})
		if err != nil || ack.Seq != first {
			t.Errorf("ack %+v, %v", ack, err)
		}
	}
	commit(1)
	err := s.RepublishRetained(t.Context(), func(context.Context, []fleet.Delivery) error {
		commit(2)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBadMessagesDoNotHoldUpAStream(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "temps")
	l := streams[0]
	bad := func(m protocol.DataMessage) protocol.Event { m.V = 1; return event(protocol.DataEvent, m) }
	events := []protocol.Event{
		msg("a=1"), bad(protocol.DataMessage{Topic: "a/#"}), bad(protocol.DataMessage{Topic: ""}), bad(protocol.DataMessage{Topic: "a\x00b"}),
		bad(protocol.DataMessage{Topic: strings.Repeat("x", 65530)}), bad(protocol.DataMessage{Topic: "q", QoS: 3}),
		bad(protocol.DataMessage{Topic: "p", Properties: []string{"odd"}}), bad(protocol.DataMessage{Topic: "c", ContentType: "a\x00"}),
		bad(protocol.DataMessage{Topic: "r", ResponseTopic: "a/+"}), event(protocol.NodeOnlineEvent, protocol.Presence{V: 1}),
		{Kind: protocol.DataEvent, Body: []byte{0xff}},
		{Kind: "unread\x00able", Body: []byte{1}},
		{Kind: protocol.DataLost, Body: []byte{1}},
		msg("b=2"),
	}
	if ack := l.send(1, events...); ack.Seq != uint64(len(events)) {
		t.Errorf("ack %+v", ack)
	}
	l.want("delivered", l.said(), "a=1 b=2")
	l.want("stored", l.stored(), "a=1 b=2")
	feed := l.feed()
	if len(feed) != 11 || feed[0] != `anomaly: rule temps: topic "a/#": want a topic name without wildcards` ||
		feed[10] != "anomaly: rule temps: 2 more messages of the same batch could not be delivered" {
		t.Errorf("feed: %q", feed)
	}
	var bodies int
	if err := l.db.QueryRow(t.Context(), `select count(*) from anomalies where site = 'home' and journal_epoch = 'a' and journal_seq > 1`).Scan(&bodies); err != nil || bodies != 10 {
		t.Errorf("%d anomalies: %v", bodies, err)
	}
}

func TestARuleThatIsNotKnownIsDeliveredAndNotStored(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "unknown")
	streams[0].send(1, msgs("a=1", "b=1!")...)
	streams[0].want("delivered", streams[0].said(), "a=1 b=1!")
	streams[0].want("stored", streams[0].stored(), "")
	streams[0].want("retained", streams[0].retained(), "b=1!")
}
