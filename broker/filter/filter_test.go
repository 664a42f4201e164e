package filter

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/topic/topictest"
)

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
				if topictest.Matches(filter, topic) && !topictest.Matches(allowed, topic) {
					t.Errorf("%q covers %q, but does not match %q", allowed, filter, topic)
				}
			}
		}
	}
}
