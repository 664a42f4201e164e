package filter

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Matches is held against bySpec on random filters and names, empty levels and
// topics with $ among them. [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-4.7.3-4]
func TestMatches(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	words := []string{"a", "b", "", "$x", "+", "#"}
	hits := 0
	for range 100_000 {
		var filter, name []string
		for n := 1 + rnd.IntN(4); len(filter) < n; {
			w := words[rnd.IntN(6)]
			filter = append(filter, w)
			if w == "#" {
				break
			}
		}
		for n := 1 + rnd.IntN(4); len(name) < n; {
			name = append(name, words[rnd.IntN(4)])
		}
		f, n := strings.Join(filter, "/"), strings.Join(name, "/")
		if f == "" || n == "" {
			continue
		}
		want := bySpec(f, n) && !(n[0] == '$' && strings.ContainsAny(f[:1], "+#"))
		if got := Matches(f, n); got != want {
			t.Fatalf("%q matches %q: got %v, want %v", f, n, got, want)
		}
		if want {
			hits++
		}
	}
	if hits < 1000 {
		t.Errorf("only %d of the pairs match: the test shows nothing", hits)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]string{
		"a": "a", "#": "#", "+": "+", "a/+/b": "a/+/b", "a/#": "a/#", "/": "/", "/+": "/+", "$SYS/#": "$SYS/#",
		"$share/g/a/#": "a/#", "$share/g//": "/", "$shared/a": "$shared/a",
		"": "", "a#": "", "#/a": "", "a+": "", "+a/b": "", "a/#/b": "", "a\x00b": "",
		"$share": "$share", "$share/": "", "$share/g": "", "$share/g/": "", "$share//a": "", "$share/g+/a": "", "$share/#/a": "", "$SHARE/g/a": "",
	} {
		got, ok := Plain(filter)
		if got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", filter, got, ok, want)
		}
	}
}

// Covers is held against its definition, on every filter and topic of up to
// three levels of a small alphabet.
func TestCovers(t *testing.T) {
	t.Parallel()
	var filters, topics []string
	var grow func(prefix []string)
	grow = func(prefix []string) {
		for _, w := range []string{"a", "b", "+", "#"} {
			f := append(append([]string(nil), prefix...), w)
			s := strings.Join(f, "/")
			filters = append(filters, s)
			if !strings.ContainsAny(s, "+#") {
				topics = append(topics, s)
			}
			if w != "#" && len(f) < 3 {
				grow(f)
			}
		}
	}
	grow(nil)
	for _, allowed := range filters {
		for _, filter := range filters {
			if !Covers(allowed, filter) {
				if allowed == filter || allowed == "#" {
					t.Errorf("%q does not cover %q", allowed, filter)
				}
				continue
			}
			for _, topic := range topics {
				if bySpec(filter, topic) && !bySpec(allowed, topic) {
					t.Errorf("%q covers %q, but does not match %q", allowed, filter, topic)
				}
			}
		}
	}
}

// bySpec is MQTT's own rule, written down apart from Covers and Matches.
func bySpec(filter, topic string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(topic, "/")
	for i, w := range f {
		if w == "#" {
			return true
		}
		if i >= len(n) || w != "+" && w != n[i] {
			return false
		}
	}
	return len(f) == len(n)
}
