package datadb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// A dataWriter commits messages of rules of the site home.
type dataWriter struct {
	t     *testing.T
	store *record
	seq   map[string]uint64
	epoch string
}

// newDataWriter makes the site home with rules that store their messages.
func newDataWriter(t *testing.T, s *record, rules ...fleet.DataRule) *dataWriter {
	t.Helper()
	for i := range rules {
		rules[i].Store = true
	}
	if _, _, err := s.sites.SaveDesired(t.Context(), "home", "c", nil, fleet.SiteData{Commit: "c", Rules: rules}); err != nil {
		t.Fatal(err)
	}
	return &dataWriter{t: t, store: s, seq: map[string]uint64{}, epoch: "e"}
}

func (w *dataWriter) write(rule string, messages ...protocol.DataMessage) {
	w.t.Helper()
	b := protocol.Batch{V: 1, Stream: protocol.DataStream(rule), Epoch: w.epoch, First: w.seq[rule] + 1, Count: uint32(len(messages)), Trimmed: w.seq[rule]}
	var events []protocol.Event
	for _, m := range messages {
		m.V = 1
		events = append(events, protocol.Event{Kind: protocol.DataEvent, UnixMillis: 1_700_000_000_000 + int64(w.seq[rule]), Body: protocol.Marshal(m)})
		w.seq[rule]++
	}
	ack, err := w.store.CommitData(w.t.Context(), "home", b, events, func(context.Context, []fleet.Delivery) error { return nil })
	if err != nil || ack.Seq != w.seq[rule] {
		w.t.Fatalf("%+v, %v", ack, err)
	}
}

func says(topic, text string) protocol.DataMessage {
	return protocol.DataMessage{Topic: topic, Payload: []byte(text), QoS: 1}
}

func texts(p fleet.MessagePage) (all []string) {
	for _, m := range p.Messages {
		all = append(all, m.Rule+" "+m.Message.Topic+" "+string(m.Message.Payload))
	}
	return all
}

func TestMessages(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	w := newDataWriter(t, s, rule("a"), rule("b"), rule("c"))
	whole := protocol.DataMessage{
		Topic: "a/1", Payload: []byte{0, 0xff}, QoS: 2, ContentType: "x/y", ResponseTopic: "r", CorrelationData: []byte{1}, Properties: []string{"k", "v"},
	}
	w.write("a", whole, says("a/2", "two"))
	w.write("b", says("b", "three"))
	middle := time.Now()
	w.write("a", says("a/1/x", "four"), says("a.1", "five"))
	w.write("b", says("b/1", "six"))

	all := testpart.Must[fleet.MessagePage](t)(s.Messages(ctx, fleet.MessageFilter{Site: "home"}))
	desired := []string{"a a/1 \x00\xff", "a a/2 two", "b b three", "a a/1/x four", "a a.1 five", "b b/1 six"}
	if d := cmp.Diff(desired, texts(all)); d != "" || all.More {
		t.Errorf("more %t; %s", all.More, d)
	}
	first := all.Messages[0]
	whole.V = 1
	if d := cmp.Diff(whole, first.Message); d != "" || first.Site != "home" || first.Position != (fleet.Position{Seq: 1}) ||
		first.SiteTime.UnixMilli() != 1_700_000_000_000 || time.Since(first.Received) > time.Minute {
		t.Errorf("%+v\n%s", first, d)
	}
	if d := cmp.Diff(fleet.Positions{"a": {Seq: 4}, "b": {Seq: 2}}, all.Read); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(all.Read, testpart.Must[fleet.Positions](t)(s.LastMessages(ctx, "home"))); d != "" {
		t.Error(d)
	}
	for name, tt := range map[string]struct {
		filter fleet.MessageFilter
		want   []string
	}{
		"rule":               {fleet.MessageFilter{Rule: "b"}, []string{desired[2], desired[5]}},
		"unknown rule":       {fleet.MessageFilter{Rule: "x"}, nil},
		"everything":         {fleet.MessageFilter{Topic: "#"}, desired},
		"one":                {fleet.MessageFilter{Topic: "a/1"}, desired[:1]},
		"and below":          {fleet.MessageFilter{Topic: "a/1/#"}, []string{desired[0], desired[3]}},
		"one level":          {fleet.MessageFilter{Topic: "+/1"}, []string{desired[0], desired[5]}},
		"a level in between": {fleet.MessageFilter{Topic: "a/+/x"}, desired[3:4]},
		"no pattern":         {fleet.MessageFilter{Topic: "a.1"}, desired[4:5]},
		"newest":             {fleet.MessageFilter{Newest: true, Limit: 2}, desired[4:]},
		"newest of a topic":  {fleet.MessageFilter{Newest: true, Limit: 1, Topic: "a/#"}, desired[3:4]},
		"since":              {fleet.MessageFilter{Since: middle}, desired[3:]},
		"until":              {fleet.MessageFilter{Until: middle}, desired[:3]},
		"after":              {fleet.MessageFilter{After: fleet.Positions{"a": {Seq: 3}, "b": {Seq: 2}}}, desired[4:5]},
		"other site":         {fleet.MessageFilter{Site: "away"}, nil},
	} {
		if tt.filter.Site == "" {
			tt.filter.Site = "home"
		}
		if d := cmp.Diff(tt.want, texts(testpart.Must[fleet.MessagePage](t)(s.Messages(ctx, tt.filter)))); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

// TestMessagesByPages reads pages while more comes, over a queue that begins anew.
func TestMessagesByPages(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	w := newDataWriter(t, s, rule("a"), rule("b"))
	want := map[string][]string{}
	n := 0
	add := func(rule string, count int) {
		var messages []protocol.DataMessage
		for range count {
			n++
			messages = append(messages, says(rule, fmt.Sprint(n)))
			want[rule] = append(want[rule], fmt.Sprint(n))
		}
		w.write(rule, messages...)
	}
	got := map[string][]string{}
	var at fleet.Positions
	read := func() (more bool) {
		page := testpart.Must[fleet.MessagePage](t)(s.Messages(ctx, fleet.MessageFilter{Site: "home", After: at, Limit: 3}))
		for _, m := range page.Messages {
			got[m.Rule] = append(got[m.Rule], string(m.Message.Payload))
		}
		at = testpart.Must[fleet.Positions](t)(fleet.ParsePositions(page.Read.String()))
		return page.More
	}
	add("a", 5)
	add("b", 2)
	read()
	add("a", 1)
	read()
	w.epoch, w.seq = "f", map[string]uint64{} // the site lost its disk
	add("a", 2)
	add("b", 1)
	for read() {
	}
	add("b", 4)
	for read() {
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if read() || len(got["a"]) != len(want["a"]) {
		t.Error("something came again")
	}
	// Large messages make shorter pages, and never an empty one.
	large := protocol.DataMessage{Topic: "a", Payload: make([]byte, 900<<10)}
	for range 4 { // a batch has its own bound
		w.write("a", large, large, large)
	}
	w.write("a", says("a", "end"))
	for _, desired := range []int{10, 3} {
		page := testpart.Must[fleet.MessagePage](t)(s.Messages(ctx, fleet.MessageFilter{Site: "home", After: at}))
		if at = page.Read; len(page.Messages) != desired {
			t.Errorf("a page of %d messages, want %d", len(page.Messages), desired)
		}
	}
}

func TestReaders(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	metric := rule("a", func(r *fleet.DataRule) { r.Metric, r.Fields = "m", []string{"/x"} })
	w := newDataWriter(t, s, metric, rule("b"))
	rules := func() []fleet.MetricRule { return testpart.Must[[]fleet.MetricRule](t)(s.MetricRules(ctx, "r")) }
	if got := rules(); len(got) != 0 {
		t.Errorf("nothing is stored yet, got %+v", got)
	}
	w.write("a", says("a", "1"), says("a", "2"))
	w.write("b", says("b", "1"))
	want := []fleet.MetricRule{{Site: "home", Rule: "a", Metric: "m", Fields: []string{"/x"}}}
	if d := cmp.Diff(want, rules()); d != "" {
		t.Error(d)
	}
	for _, seq := range []uint64{1, 2} {
		if err := s.SaveRead(ctx, "r", "home", fleet.Positions{"a": {Seq: seq}}); err != nil {
			t.Fatal(err)
		}
		if seq == 1 {
			want[0].After = fleet.Positions{"a": {Seq: 1}}
			if d := cmp.Diff(want, rules()); d != "" {
				t.Error(d)
			}
		}
	}
	if got := rules(); len(got) != 0 {
		t.Errorf("all is read, got %+v", got)
	}
	// The queue is behind the reader: it was forgotten, and began anew.
	if err := s.SaveRead(ctx, "r", "home", fleet.Positions{"a": {Era: 1, Seq: 1}}); err != nil {
		t.Fatal(err)
	}
	if got := rules(); len(got) != 1 || got[0].After != nil {
		t.Errorf("a stream that began anew: %+v", got)
	}
	if got := testpart.Must[[]fleet.MetricRule](t)(s.MetricRules(ctx, "another")); len(got) != 1 || got[0].After != nil {
		t.Errorf("another reader: %+v", got)
	}
}
