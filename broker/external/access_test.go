package external_test

import (
	"os"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/topic"
	"github.com/colonyfleet/colony/protocol/wiretest"
)

// TestDocumentedAccess holds the access file for Mosquitto that docs/broker.md tells people to set to the topics between CO and LO: a
// broker drops, without a word, what the file forgets. Machines prove nothing to such a broker, so what is about certificates is not sent.
func TestDocumentedAccess(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/broker.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string][]string{} // read and write: filters
	for line := range strings.Lines(string(doc)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "pattern" {
			rules[fields[1]] = append(rules[fields[1]], strings.ReplaceAll(fields[2], "%u", "plant"))
		}
	}
	allowed := func(way, name string) bool {
		for _, filter := range rules[way] {
			if topic.Matches(filter, name) {
				return true
			}
		}
		return false
	}
	const topics = "../../protocol/topic/topic.go"
	for way, direction := range map[string]string{"read": "CO → LO", "write": "LO → CO"} {
		for _, kind := range wiretest.Kinds(t, topics, direction) {
			name := wiretest.ForSite(kind, "plant")
			if kind == topic.SiteTokens || kind == topic.Revocations {
				continue
			}
			if !allowed(way, name) {
				t.Errorf("an LO may not %s %s (%s): add a pattern to the file in docs/broker.md", way, name, kind)
			}
			if other := wiretest.ForSite(kind, "other"); allowed(way, other) {
				t.Errorf("the LO of plant may %s %s", way, other)
			}
		}
	}
}
