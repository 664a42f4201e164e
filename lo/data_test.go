package lo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// dataSite runs an LO that has rules in force, and a CO that accepts what it sends.
func dataSite(t *testing.T, of ...protocol.DataRule) (*fakeCO, *LO) {
	t.Helper()
	c := newFakeCO(t)
	c.release()
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	m := rules(1, of...)
	c.want(m)
	inForce(t, l, m)
	return c, l
}

// cut ends the CO, and waits until the LO knows.
func cut(t *testing.T, c *fakeCO, l *LO) {
	t.Helper()
	c.stop()
	linked(t, l, false)
}

func TestDataCrossesAnOutage(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t,
		protocol.DataRule{Name: "alarms", Topics: []string{"+/alarm"}, Priority: protocol.HighPriority, Remote: "hot/"},
		protocol.DataRule{Name: "plc", Topics: []string{"#"}, Local: "plc/", Remote: "raw/", QoS: 2, TTLMillis: 3_600_000},
		protocol.DataRule{Name: "rest", Topics: []string{"line/#"}},
	)
	a := startApp(t, l, "app")
	n := startAgent(t, "n1", l.MQTTAddr())
	<-n.up
	a.publish(text("line/up", "1"))
	eventually(t, "a message crosses", func() bool { return len(c.payloads("rest", "")) == 1 })
	cut(t, c, l)
	var want []string
	for i := range 200 {
		a.publish(text(fmt.Sprintf("line/%d", i%3), fmt.Sprint(i)))
		want = append(want, fmt.Sprintf("line/%d=%d", i%3, i))
	}
	full := client.Message{
		Topic: "plc/db1", Payload: []byte("\x00\xff"), QoS: 1, Expiry: time.Minute, ContentType: "application/x", ResponseTopic: "answer/here",
		CorrelationData: []byte{1, 2}, Properties: []client.Property{{Key: "b", Value: "1"}, {Key: "a", Value: "2"}, {Key: "b", Value: "3"}},
	}
	a.publish(full)
	a.publish(text("plc/db2", "x"))
	a.publish(text("l1/alarm", "fire"))
	a.publish(text("no/rule/matches", "x"))
	before := time.Now()
	if err := n.c.Publish(t.Context(), client.Message{Topic: topic.ForTail(topic.Data, "s1", "line/node"), Payload: []byte("1"), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	c.start()
	eventually(t, "everything crosses", func() bool {
		return len(c.payloads("rest", "")) >= 202 && len(c.payloads("plc", "")) >= 2 && len(c.payloads("alarms", "")) >= 1
	})
	if diff := cmp.Diff(append(append([]string{"line/up=1"}, want...), "line/node=1"), c.payloads("rest", "")); diff != "" {
		t.Errorf("stream rest (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"hot/l1/alarm=fire"}, c.payloads("alarms", "")); diff != "" {
		t.Errorf("stream alarms (-want +got):\n%s", diff)
	}
	plc := c.stream("plc").events
	wantMessage := protocol.DataMessage{
		V: protocol.Version, Topic: "raw/db1", Payload: full.Payload, QoS: 1, ExpiryMillis: 60_000, ContentType: full.ContentType,
		ResponseTopic: full.ResponseTopic, CorrelationData: full.CorrelationData, Properties: []string{"b", "1", "a", "2", "b", "3"},
	}
	if diff := cmp.Diff(wantMessage, decoded(t, plc[0])); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	if m := decoded(t, plc[1]); m.ExpiryMillis != 3_600_000 {
		t.Errorf("expiry %d ms; want that of the rule", m.ExpiryMillis)
	}
	last := c.stream("rest").events[201]
	if age := time.UnixMilli(last.UnixMillis).Sub(before).Abs(); last.Node != "n1" || age > patience {
		t.Errorf("event of node %q, %v from when it was sent", last.Node, age)
	}
	eventually(t, "the queues are empty", func() bool {
		return !slices.ContainsFunc(l.data.Status(), func(stream data.StreamStatus) bool { return stream.Queued > 0 })
	})
}

// What Colony delivers at the site itself matches the rules too, and must not go
// up again.
func TestNoLoop(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "all", Topics: []string{"#"}}, protocol.DataRule{Name: "down", Down: true, Topics: []string{"#"}})
	a := startApp(t, l, "app", topic.ForTail(topic.Data, "s1", "#"))
	if err := l.broker.Publish(t.Context(), client.Message{Topic: topic.ForTail(topic.Data, "s1", "set"), Payload: []byte("1"), QoS: 1, Retain: true}); err != nil {
		t.Fatal(err)
	}
	if m := a.next(); string(m.Payload) != "1" {
		t.Fatalf("message %+v", m)
	}
	a.publish(text("mark", "2"))
	eventually(t, "the mark crosses", func() bool { return len(c.payloads("all", "")) > 0 })
	if diff := cmp.Diff([]string{"mark=2"}, c.payloads("all", "")); diff != "" {
		t.Errorf("what went up (-want +got):\n%s", diff)
	}
	if n := len(l.data.Status()); n != 1 {
		t.Error("a rule that goes down has a queue up")
	}
}

func TestQoS0(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "keep", Topics: []string{"keep"}, KeepQoS0: true}, protocol.DataRule{Name: "lose", Topics: []string{"lose"}})
	a := startApp(t, l, "app")
	loose := func(name, payload string) {
		m := text(name, payload)
		m.QoS = 0
		a.publish(m)
	}
	linked(t, l, true)
	loose("keep", "1")
	loose("lose", "1")
	eventually(t, "both cross", func() bool { return len(c.payloads("keep", "")) == 1 && len(c.payloads("lose", "")) == 1 })
	cut(t, c, l)
	loose("keep", "2")
	loose("lose", "2")
	a.publish(text("keep", "3")) // behind them on the same connection
	a.publish(text("lose", "3"))
	c.start()
	eventually(t, "what was kept crosses", func() bool { return len(c.payloads("keep", "")) >= 3 && len(c.payloads("lose", "")) >= 2 })
	if diff := cmp.Diff([]string{"keep=1", "keep=2", "keep=3"}, c.payloads("keep", "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"lose=1", "lose=3"}, c.payloads("lose", "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := streamOf(t, l, "lose").NotStored; n != 1 {
		t.Errorf("%d counted as not kept, want 1", n)
	}
}

func TestRetainedIsMirrored(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "r", Topics: []string{"#"}, Remote: "x/"})
	a := startApp(t, l, "app")
	retain := func(name, payload string, qos byte) {
		a.publish(client.Message{Topic: name, Payload: []byte(payload), QoS: qos, Retain: true})
	}
	retain("a", "1", 1)
	retain("b", "1", 1)
	retain("c", "1", 0)
	eventually(t, "three are retained", func() bool { return len(c.stream("r").retained) == 3 })
	cut(t, c, l)
	retain("a", "", 1)
	retain("b", "2", 0) // while the link is down: retained messages are kept whatever their QoS
	retain("d", "1", 1)
	c.start()
	want := map[string]string{"x/b": "2", "x/c": "1", "x/d": "1"}
	eventually(t, "the change crosses", func() bool { return cmp.Equal(want, c.stream("r").retained) })

	// A CO that has lost everything gets a snapshot, and deletes what is not in it.
	c.stop()
	c.mu.Lock()
	c.streams[protocol.DataStream("r")] = &streamEnd{retained: map[string]string{"x/stale": "1"}}
	c.mu.Unlock()
	retain("c", "", 1)
	c.start()
	delete(want, "x/c")
	eventually(t, "the CO holds what the site does", func() bool { return cmp.Equal(want, c.stream("r").retained) })

	// And the site's broker has it after a restart of the LO.
	o := l.opts
	stopLO(t, l)
	o.Registerer = nil
	l = startLO(t, o)
	b := startApp(t, l, "reader", topic.ForTail(topic.Data, "s1", "#"))
	got := map[string]string{}
	for range 2 {
		m := b.next()
		got[m.Topic] = string(m.Payload)
	}
	if diff := cmp.Diff(map[string]string{"colony/v1/s1/data/b": "2", "colony/v1/s1/data/d": "1"}, got); diff != "" {
		t.Errorf("retained after a restart (-want +got):\n%s", diff)
	}
}

func TestRetainedExpiryAcrossARestart(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	dir := t.TempDir()
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	a := startApp(t, l, "app")
	a.publish(client.Message{Topic: "long", Payload: []byte("1"), QoS: 1, Retain: true, Expiry: time.Hour})
	a.publish(client.Message{Topic: "short", Payload: []byte("1"), QoS: 1, Retain: true, Expiry: time.Second})
	eventually(t, "the short one is over", func() bool {
		_, ok := l.data.Retained().Get(topic.ForTail(topic.Data, "s1", "short"))
		return !ok
	})
	stopLO(t, l)
	l = startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	got := l.broker.Retained(topic.ForTail(topic.Data, "s1", "#"))
	if len(got) != 1 {
		t.Fatalf("retained after a restart: %+v, want one message", got)
	}
	if want := "colony/v1/s1/data/long"; got[0].Topic != want {
		t.Errorf("retained after a restart: topic %s, want %s", got[0].Topic, want)
	}
	if e := got[0].Expiry; e > time.Hour || e < time.Minute {
		t.Errorf("retained after a restart: expiry %s, want what is left of an hour", e)
	}
}

func TestRulesChange(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "a", Topics: []string{"a/#"}}, protocol.DataRule{Name: "b", Topics: []string{"b/#"}})
	a := startApp(t, l, "app")
	a.publish(client.Message{Topic: "a/r", Payload: []byte("1"), QoS: 1, Retain: true})
	a.publish(client.Message{Topic: "b/r", Payload: []byte("1"), QoS: 1, Retain: true})
	a.publish(client.Message{Topic: "c/r", Payload: []byte("1"), QoS: 1, Retain: true})
	eventually(t, "two are retained", func() bool { return len(c.stream("a").retained)+len(c.stream("b").retained) == 2 })
	c.mu.Lock()
	c.hold = true
	c.mu.Unlock()
	a.publish(text("a/1", "queued"))
	a.publish(text("b/1", "queued"))
	// a is changed and has other topics at the CO, b is removed, and c is new.
	m := rules(2,
		protocol.DataRule{Name: "a", Topics: []string{"a/#"}, Remote: "moved/", MaxBytes: 1 << 20, Priority: protocol.LowPriority},
		protocol.DataRule{Name: "c", Topics: []string{"c/#"}},
	)
	c.want(m)
	inForce(t, l, m)
	a.publish(text("a/2", "later"))
	a.publish(text("b/2", "stays at the site"))
	if got := l.data.Status(); len(got) != 3 || !got[1].Draining {
		t.Errorf("streams %+v; want b to drain", got)
	}
	c.stop() // a new connection makes the LO send again at once
	c.release()
	c.start()
	eventually(t, "the queue of b is removed", func() bool {
		_, err := os.Stat(filepath.Join(l.opts.StateDir, "data", "b"))
		return os.IsNotExist(err) && len(l.data.Status()) == 2
	})
	if diff := cmp.Diff([]string{"b/r=1", "b/1=queued"}, c.payloads("b", "")); diff != "" {
		t.Errorf("stream b (-want +got):\n%s", diff)
	}
	eventually(t, "the co has what the new rule retains", func() bool { return cmp.Equal(map[string]string{"c/r": "1"}, c.stream("c").retained) })
	eventually(t, "the changed rule has moved", func() bool { return cmp.Equal(map[string]string{"moved/a/r": "1"}, c.stream("a").retained) })
	eventually(t, "all of a crosses", func() bool { return len(c.payloads("a", "moved/a/2")) == 1 })
	if got := c.payloads("a", "a/"); !slices.Equal(got, []string{"a/r=1", "a/1=queued"}) {
		t.Errorf("stream a delivered %v", got)
	}
	if len(c.stream("b").retained) != 0 {
		t.Errorf("the CO still holds %v of b", c.stream("b").retained)
	}

	// A set of rules that is not valid changes nothing.
	bad := rules(3, protocol.DataRule{Name: "BAD", Topics: []string{"#/x"}})
	c.want(bad)
	eventually(t, "the fault is shown", func() bool { return strings.Contains(l.status().DataFault, "#/x") })
	a.publish(text("a/3", "x"))
	eventually(t, "the rules before stay", func() bool { return len(c.payloads("a", "moved/a/3")) == 1 })
}

// What was acknowledged is there after a kill: the copy is what a kill leaves.
func TestKilled(t *testing.T) {
	t.Parallel()
	hour := protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}
	c, l := dataSite(t, protocol.DataRule{Name: "last", Topics: []string{"slow/#"}, Sample: hour}, protocol.DataRule{Name: "all", Topics: []string{"#"}})
	a := startApp(t, l, "app")
	cut(t, c, l)
	for i := range 50 {
		a.publish(text("fast", fmt.Sprint(i)))
		a.publish(text("slow/x", fmt.Sprint(i)))
	}
	a.publish(client.Message{Topic: "kept", Payload: []byte("1"), QoS: 1, Retain: true})
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(l.opts.StateDir)); err != nil {
		t.Fatal(err)
	}
	stopLO(t, l)
	c.start()
	l = startLO(t, localOptions(t, c, killed, "127.0.0.1:0"))
	eventually(t, "everything crosses", func() bool { return len(c.payloads("all", "")) >= 51 && len(c.payloads("last", "")) >= 1 })
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("fast=%d", i))
	}
	// Behind that comes a list of what is retained, as after any kill.
	if diff := cmp.Diff(append(want, "kept=1"), c.payloads("all", "")[:51]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	eventually(t, "the list crosses", func() bool { return c.count("all", protocol.RetainedEnd) == 1 })
	if got := c.stream("all").retained; !cmp.Equal(got, map[string]string{"kept": "1"}) {
		t.Errorf("the CO holds %v", got)
	}
	if diff := cmp.Diff([]string{"slow/x=49"}, c.payloads("last", "")); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	if got := l.broker.Retained("colony/v1/s1/data/kept"); len(got) != 1 {
		t.Errorf("retained %+v", got)
	}
}
