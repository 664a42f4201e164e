package lo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
	"github.com/colonyfleet/colony/protocol/topic"
)

// Above its bound a queue drops the oldest and says how many. The CO gets a snapshot of
// what is retained, for the messages that are lost may have been retained.
func TestOldestIsDropped(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "r", Topics: []string{"#"}, MaxBytes: datarule.MinQueueBytes})
	a := startApp(t, l, "app")
	a.publish(client.Message{Topic: "gone", Payload: []byte("1"), QoS: 1, Retain: true})
	eventually(t, "it is retained", func() bool { return len(c.stream("r").retained) == 1 })
	eventually(t, "the LO knows", func() bool { return streamOf(t, l, "r").Queued == 0 }) // else it counts as lost, too
	cut(t, c, l)
	a.publish(client.Message{Topic: "gone", QoS: 1, Retain: true})
	a.publish(client.Message{Topic: "new", Payload: []byte("1"), QoS: 1, Retain: true})
	const sent = 300
	for i := range sent {
		a.publish(text("bulk", fmt.Sprintf("%d %s", i, strings.Repeat("x", 1000))))
	}
	eventually(t, "a loss is marked", func() bool {
		_, err := os.Stat(filepath.Join(l.opts.StateDir, "stale", "r"))
		return err == nil
	})
	// The mark survives a restart.
	o := l.opts
	stopLO(t, l)
	o.Registerer = nil
	l = startLO(t, o)
	if st := l.data.Status()[0]; st.Bytes > 2*datarule.MinQueueBytes || st.Queued == 0 {
		t.Errorf("status %+v", st)
	}
	c.start()
	eventually(t, "the CO holds what the site does", func() bool { return cmp.Equal(map[string]string{"new": "1"}, c.stream("r").retained) })
	eventually(t, "the mark is removed", func() bool {
		_, err := os.Stat(filepath.Join(l.opts.StateDir, "stale", "r"))
		return os.IsNotExist(err)
	})
	got := c.payloads("r", "bulk")
	first := sent - len(got)
	for i, p := range got {
		if !strings.HasPrefix(p, fmt.Sprintf("bulk=%d ", first+i)) {
			t.Fatalf("message %d of %d is %.20s: not the newest ones in order", i, len(got), p)
		}
	}
	lost := uint64(0)
	for _, e := range c.stream("r").events {
		if e.Kind != protocol.DataLost {
			continue
		}
		var m protocol.Loss
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		lost += m.Records
	}
	// The two retained messages were in front of the bulk.
	if first == 0 || lost != uint64(first)+2 {
		t.Errorf("%d records are reported as lost; %d of the bulk did not come", lost, first)
	}
}

func TestTimeIsUp(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "r", Topics: []string{"#"}, TTLMillis: 300})
	a := startApp(t, l, "app")
	linked(t, l, true)
	cut(t, c, l)
	a.publish(text("old", "1"))
	a.publish(text("old", "2"))
	eventually(t, "their time is up", func() bool { return l.data.Status()[0].OldestSeconds > 0.4 })
	c.start()
	eventually(t, "the CO knows", func() bool { return c.count("r", protocol.DataExpired) == 2 })
	if got := c.payloads("r", ""); len(got) != 0 {
		t.Errorf("%v delivered though their time was up", got)
	}
	eventually(t, "it is counted", func() bool { return l.data.Status()[0].Expired == 2 })
}

func TestSampling(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t,
		protocol.DataRule{Name: "last", Topics: []string{"last/#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 200}},
		protocol.DataRule{Name: "slow", Topics: []string{"slow/#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}},
		protocol.DataRule{Name: "change", Topics: []string{"change"}, Sample: protocol.Sample{Mode: protocol.SampleChange}},
		protocol.DataRule{Name: "band", Topics: []string{"band"}, Sample: protocol.Sample{Mode: protocol.SampleDeadband, Deadband: 5, Field: "/v"}},
	)
	a := startApp(t, l, "app")
	for i := range 10 {
		a.publish(text("slow/x", fmt.Sprint(i)))
		a.publish(text("change", fmt.Sprint(i/5)))
		a.publish(text("band", fmt.Sprintf(`{"v":%d}`, i)))
	}
	a.publish(client.Message{Topic: "change", Payload: []byte("1"), QoS: 1, Retain: true}) // never left out
	a.publish(text("slow/y", "only"))
	a.publish(client.Message{Topic: "slow/y", Payload: []byte("retained"), QoS: 1, Retain: true})
	for i := range 5 {
		a.publish(text("last/x", fmt.Sprint(i)))
	}
	eventually(t, "the period ends", func() bool {
		got := c.payloads("last", "")
		return len(got) > 0 && got[len(got)-1] == "last/x=4"
	})
	eventually(t, "changes cross", func() bool { return len(c.payloads("change", "")) >= 3 && len(c.payloads("band", "")) >= 2 })
	eventually(t, "a retained message crosses", func() bool { return len(c.payloads("slow", "")) > 0 })
	for rule, want := range map[string][]string{
		"change": {"change=0", "change=1", "change=1"},
		"band":   {`band={"v":0}`, `band={"v":5}`},
		"slow":   {"slow/y=retained"},
	} {
		if diff := cmp.Diff(want, c.payloads(rule, "")); diff != "" {
			t.Errorf("stream %s (-want +got):\n%s", rule, diff)
		}
	}
	for rule, want := range map[string]uint64{"change": 8, "band": 8, "slow": 10} {
		if got := streamOf(t, l, rule).SampledOut; got != want {
			t.Errorf("stream %s: %d left out, want %d", rule, got, want)
		}
	}
	// An orderly stop holds nothing back.
	stopLO(t, l)
	o := l.opts
	o.Registerer = nil
	l = startLO(t, o)
	eventually(t, "what was held crosses", func() bool { return len(c.payloads("slow", "")) >= 2 })
	if diff := cmp.Diff([]string{"slow/y=retained", "slow/x=9"}, c.payloads("slow", "")); diff != "" {
		t.Errorf("stream slow after a stop (-want +got):\n%s", diff)
	}
	if held := onDisk(t, l, "slow"); len(held) != 0 {
		t.Errorf("on disk: %+v", held)
	}
}

// A rule that stops sampling gives out what it held.
func TestSamplingEnds(t *testing.T) {
	t.Parallel()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}}
	c, l := dataSite(t, rule)
	a := startApp(t, l, "app")
	a.publish(text("x", "1"))
	a.publish(text("x", "2"))
	a.publish(text("y", "1"))
	linked(t, l, true)
	a.publish(client.Message{Topic: "y", Payload: []byte("2")}) // of QoS 0: replaces the one on disk
	eventually(t, "three are held", func() bool { return streamOf(t, l, "r").SampledOut == 2 })
	eventually(t, "one of them is on disk, as the other was replaced by one of QoS 0", func() bool {
		held := onDisk(t, l, "r")
		return len(held) == 1 && string(held[0].Data.Payload) == "2"
	})
	rule.Sample = protocol.Sample{}
	m := rules(2, rule)
	c.want(m)
	inForce(t, l, m)
	a.publish(text("x", "3"))
	eventually(t, "all cross", func() bool { return len(c.payloads("r", "")) >= 3 })
	if diff := cmp.Diff([]string{"x=2", "y=2", "x=3"}, c.payloads("r", "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(l.opts.StateDir, "samples", "r")); !os.IsNotExist(err) {
		t.Errorf("the directory of samples: %v", err)
	}
}

// A queue that cannot be opened must refuse, and what a refused message said must
// pass when it is sent again.
func TestQueueFails(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	c.release()
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	path := filepath.Join(o.StateDir, "data", "r")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil { // a file where the queue's directory belongs
		t.Fatal(err)
	}
	l := startLO(t, o)
	m := rules(1, protocol.DataRule{Name: "r", Topics: []string{"#"}, Sample: protocol.Sample{Mode: protocol.SampleChange}})
	c.want(m)
	inForce(t, l, m)
	a := startApp(t, l, "app")
	name := topic.ForTail(topic.Data, "s1", "x")
	if err := a.try(text(name, "1")); err == nil {
		t.Fatal("acknowledged without a queue")
	}
	if err := a.try(client.Message{Topic: name, Payload: []byte("1"), QoS: 1, Retain: true}); err == nil {
		t.Fatal("acknowledged without a queue")
	}
	if _, ok := l.data.Retained().Get(name); ok {
		t.Error("a retained message that was refused is stored")
	}
	eventually(t, "the fault is shown", func() bool { return strings.Contains(l.status().DataFault, "data rule r") })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue opens", func() bool { return l.status().DataFault == "" })
}

func TestForeignText(t *testing.T) {
	t.Parallel()
	_, l := dataSite(t, protocol.DataRule{Name: "r", Topics: []string{"#"}})
	for _, m := range []broker.Message{
		{Topic: "colony/v1/s1/data/\xff"},
		{Topic: "colony/v1/s1/data/x", ContentType: "\xff"},
		{Topic: "colony/v1/s1/data/x", ResponseTopic: "\xff"},
		{Topic: "colony/v1/s1/data/x", Properties: []broker.Property{{Key: "k", Value: "\xff"}}},
	} {
		m.QoS = 1
		if err := l.data.Accept(t.Context(), "", m); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("accept %+v: %v, want kind invalid: the CO could never decode it", m, err)
		}
	}
}

func TestStatusShowsStreams(t *testing.T) {
	t.Parallel()
	c, l := dataSite(t, protocol.DataRule{Name: "r", Topics: []string{"#"}})
	a := startApp(t, l, "app")
	a.publish(text("x", "123"))
	eventually(t, "it crosses", func() bool { return len(c.payloads("r", "")) == 1 })
	probes := c.stream("r").probes
	ask := protocol.Ack{V: protocol.Version, Ask: true}
	if err := c.b.Publish(t.Context(), broker.Message{Topic: topic.ForSite(topic.Ack, "s1"), Payload: protocol.Marshal(&ask), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream answers", func() bool { return c.stream("r").probes > probes })
	b := c.stream("r").last
	if b.Count != 0 {
		t.Errorf("the answer has %d events, want none", b.Count)
	}
	if b.Backlog.Last != 1 {
		t.Errorf("the answer's last sequence is %d, want 1", b.Backlog.Last)
	}
	if b.Backlog.RTTMicros == 0 {
		t.Error("the answer has no round-trip time")
	}
	cut(t, c, l)
	a.publish(text("x", "456"))
	time0 := time.Now()
	eventually(t, "it has an age", func() bool { return l.data.Status()[0].OldestSeconds > 0 })
	body := func(path string) string {
		resp := get(t, l, path)
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		return string(b)
	}
	var s Status
	if err := json.Unmarshal([]byte(body("/status")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Data) != 1 {
		t.Fatalf("streams %+v, want one", s.Data)
	}
	got := s.Data[0]
	if most := time.Since(time0).Seconds() + 1; got.OldestSeconds <= 0 || got.OldestSeconds > most {
		t.Errorf("oldestSeconds %g, want more than 0 and up to %g", got.OldestSeconds, most)
	}
	if got.Bytes == 0 {
		t.Error("bytes 0, want those of a queued message")
	}
	if got.RTTSeconds <= 0 {
		t.Errorf("rttSeconds %g, want more than 0", got.RTTSeconds)
	}
	want := data.StreamStatus{Rule: "r", Queued: 1, MaxBytes: 256 << 20, Accepted: 2, AcceptedBytes: 6, Acked: 1}
	got.OldestSeconds, got.Bytes, got.RTTSeconds, got.BytesPerSecond = 0, 0, 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stream (-want +got):\n%s", diff)
	}
	metrics := body("/metrics")
	metricstest.Check(t, []byte(metrics), "colony_lo_", "colony_broker_")
	for _, line := range []string{
		`colony_lo_data_accepted_total{rule="r"} 2`, `colony_lo_data_queued{rule="r"} 1`, `colony_lo_data_dropped_total{rule="r"} 0`,
		`colony_lo_data_expired_total{rule="r"} 0`, `colony_lo_data_sampled_out_total{rule="r"} 0`, `colony_lo_data_oldest_seconds{rule="r"} `,
		`colony_lo_data_queue_bytes{rule="r"} `,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %s in the metrics", line)
		}
	}
}

// onDisk returns the samples that a kill of the LO would leave.
func onDisk(t *testing.T, l *LO, rule string) []retained.Message {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(l.opts.StateDir, "samples", rule))); err != nil {
		t.Fatal(err)
	}
	s, err := retained.Open(dir, retained.Options{Identity: statefile.Identity{Role: "lo/samples", Name: rule}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	return s.All()
}
