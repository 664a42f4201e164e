package sampler

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(millis int) time.Time { return start.Add(time.Duration(millis) * time.Millisecond) }

// offers returns which payloads of one topic pass when they come every 100 ms.
func offers(rule protocol.Sample, payloads ...string) []string {
	s := New[string](rule, 10)
	var out []string
	for i, p := range payloads {
		if s.Offer("t", []byte(p), p, at(100*i)) == Forward {
			out = append(out, p)
		}
	}
	return out
}

func TestModes(t *testing.T) {
	t.Parallel()
	band := func(of float64, percent bool, field string) protocol.Sample {
		return protocol.Sample{Mode: protocol.SampleDeadband, Deadband: of, Percent: percent, Field: field}
	}
	slow := band(10, false, "")
	slow.PeriodMillis = 300
	for _, tt := range []struct {
		name     string
		rule     protocol.Sample
		in, want string // words
	}{
		{"all", protocol.Sample{}, "a a b", "a a b"},
		{"change", protocol.Sample{Mode: protocol.SampleChange}, "a a b b a", "a b a"},
		{"change, longest silence", protocol.Sample{Mode: protocol.SampleChange, PeriodMillis: 200}, "a a a a a", "a a a"},
		{"deadband", band(2, false, ""), "10 11 11.9 12 13 11 10", "10 12 10"},
		{"deadband drifts from what passed", band(2, false, ""), "0 1 2 3 4 5", "0 2 4"},
		{"percent", band(10, true, ""), "100 109 110 120 121 -121", "100 110 121 -121"},
		{"percent of zero", band(10, true, ""), "0 0 0.001 0 0", "0 0.001 0"},
		{"no number passes", band(5, false, ""), "1 bad bad 1 2 NaN 2 1e999 2", "1 bad bad 1 NaN 2 1e999 2"},
		{"longest silence", slow, "1 1 1 2 2 2 2", "1 2 2"},
		{"field", band(5, false, "/a/1/x~1y"), `{"a":[0,{"x/y":1}]} {"a":[9,{"x/y":2}]} {"a":[9,{"x/y":6}]}`, `{"a":[0,{"x/y":1}]} {"a":[9,{"x/y":6}]}`},
		{"field missing", band(5, false, "/b"), `{"a":1} {"a":1} {"b":"1"} {"b":1} {"b":1}`, `{"a":1} {"a":1} {"b":"1"} {"b":1}`},
	} {
		got := strings.Join(offers(tt.rule, strings.Fields(tt.in)...), " ")
		if got != tt.want {
			t.Errorf("%s: %q passes of %q; want %q", tt.name, got, tt.in, tt.want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		payload, field string
		want           float64
		ok             bool
	}{
		{" 1.5\n", "", 1.5, true},
		{"", "", 0, false},
		{"1 2", "", 0, false},
		{strings.Repeat("1", 100), "", 0, false},
		{"Inf", "", 0, false},
		{`[1,2]`, "/1", 2, true},
		{`[1,2]`, "/01", 0, false},
		{`[1,2]`, "/2", 0, false},
		{`[1,2]`, "/-", 0, false},
		{`{"":3}`, "/", 3, true},
		{`{"~":3}`, "/~0", 3, true},
		{`{"~1":3}`, "/~01", 3, true},
		{`{"a":null}`, "/a", 0, false},
		{`3`, "/a", 0, false},
		{`{"a":`, "/a", 0, false},
	} {
		got, ok := number([]byte(tt.payload), tt.field)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("number(%q, %q) = %v, %v; want %v, %v", tt.payload, tt.field, got, ok, tt.want, tt.ok)
		}
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	s := New[string](protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 1000}, 10)
	var verdicts []Verdict
	for i, m := range []string{"a1", "b1", "a2", "a3"} {
		verdicts = append(verdicts, s.Offer(m[:1], nil, m, at(100*i)))
	}
	if diff := cmp.Diff([]Verdict{Hold, Hold, Replace, Replace}, verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if m, ok := s.Held("a"); !ok || m != "a3" {
		t.Errorf("%q is held, %v", m, ok)
	}
	if next, ok := s.Next(); !ok || !next.Equal(at(1000)) {
		t.Errorf("next %v, %v", next, ok)
	}
	if got := s.Due(at(999)); len(got) != 0 {
		t.Errorf("%v before the end of the period", got)
	}
	if diff := cmp.Diff([]string{"a3"}, s.Due(at(1000))); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	s.Offer("a", nil, "a4", at(1050))
	if diff := cmp.Diff([]string{"b1", "a4"}, s.Flush()); diff != "" {
		t.Errorf("flush (-want +got):\n%s", diff)
	}
	if _, ok := s.Next(); ok || s.Topics() != 0 || len(s.Due(at(9000))) != 0 {
		t.Error("something is left after the flush")
	}
}

func TestPassedUnasked(t *testing.T) {
	t.Parallel()
	last := New[string](protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 1000}, 10)
	last.Offer("t", nil, "old", at(0))
	if old, ok := last.Passed("t", nil, at(1)); !ok || old != "old" || len(last.Flush()) != 0 {
		t.Error("an older value would come after the retained one")
	}
	if !last.Restore("t", "old", at(2)) || last.Restore("t", "older", at(2)) {
		t.Error("want the one that was put back first")
	}
	if diff := cmp.Diff([]string{"old"}, last.Due(at(1002))); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	change := New[string](protocol.Sample{Mode: protocol.SampleChange}, 10)
	change.Passed("t", []byte("x"), at(0))
	if v := change.Offer("t", []byte("x"), "x", at(1)); v != Leave {
		t.Errorf("verdict %v for what is known already", v)
	}
	change.Passed("t", []byte("y"), at(2))
	if v := change.Offer("t", []byte("x"), "x", at(3)); v != Forward {
		t.Errorf("verdict %v for a change", v)
	}
	change.Forget("t")
	if v := change.Offer("t", []byte("x"), "x", at(4)); v != Forward {
		t.Errorf("verdict %v after what passed could not go on", v)
	}
}

// Forgetting a topic may only let more pass, and loses nothing that is held.
func TestBounded(t *testing.T) {
	t.Parallel()
	const topics, most = 50, 8
	last := New[string](protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 1000}, most)
	change := New[string](protocol.Sample{Mode: protocol.SampleChange}, most)
	var want, got []string
	for i := range topics {
		name := fmt.Sprintf("t%02d", i)
		want = append(want, name)
		last.Offer(name, nil, name, at(i))
		got = append(got, last.Due(at(i))...)
		if v := change.Offer(name, nil, name, at(i)); v != Forward {
			t.Errorf("the first message of %s: verdict %v", name, v)
		}
		if last.Topics() > most || change.Topics() > most {
			t.Fatalf("%d and %d topics, want at most %d", last.Topics(), change.Topics(), most)
		}
		change.Offer("t00", nil, "t00", at(i)) // in use, so it stays known
	}
	got = append(got, last.Flush()...)
	if !slices.Equal(got, want) {
		t.Errorf("held messages came back as %v", got)
	}
	if v := change.Offer("t00", nil, "", at(topics)); v != Leave {
		t.Error("the topic in use was forgotten")
	}
	if v := change.Offer("t01", nil, "", at(topics)); v != Forward {
		t.Error("a forgotten topic did not pass")
	}
}

func FuzzNumber(f *testing.F) {
	f.Add([]byte(`{"a":[1,2]}`), "/a/1")
	f.Fuzz(func(t *testing.T, payload []byte, field string) {
		if field != "" && field[0] != '/' {
			return
		}
		if n, ok := number(payload, field); ok && math.IsNaN(n) {
			t.Error("NaN is a number")
		}
	})
}
