package archtest

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol/wiretest"
)

// folders are those of the tiers, by the names that the comments of protocol/topic/topic.go have for them.
var folders = map[string]string{"EN": "en", "LO": "lo", "CO": "co"}

// fromTo is a direction in the comment of a kind of topic. A kind of the data of workloads names others, which Colony does not publish.
var fromTo = regexp.MustCompile(`\b(EN|LO|CO) → (EN|LO|CO)\b`)

// otherwiseNamed are the kinds that a tier sends or handles without their constant.
var otherwiseNamed = exceptions{
	"en.topic.Status": "topic.ForStatus builds it",
	"lo.topic.In":     "its messages are in the batches of topic.Down",
}

// TestEveryKindIsSentAndHandled wants each kind of topic named in the code of both tiers that its comment names, and each kind of event in that of
// the LO, which makes the events of a site and applies the machine data that goes down: a message that no tier sends, or that none handles, is found by no other test.
func TestEveryKindIsSentAndHandled(t *testing.T) {
	t.Parallel()
	spared := otherwiseNamed.use(t)
	named := map[string]map[string]bool{} // by tier, then package.Name
	for _, s := range sources(t) {
		tier, _, _ := strings.Cut(s.dir, "/")
		if named[tier] == nil {
			named[tier] = map[string]bool{}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok {
					named[tier][pkg.Name+"."+sel.Sel.Name] = true
				}
			}
			return true
		})
	}
	kinds := wiretest.Constants(t, root+"/protocol/topic/topic.go", "Kind")
	events := wiretest.Constants(t, root+"/protocol/journal.go", "EventKind")
	if len(kinds) < 16 || len(events) < 20 {
		t.Errorf("%d kinds of topics and %d of events found: the test looks in the wrong place", len(kinds), len(events))
	}
	for _, k := range kinds {
		for _, way := range fromTo.FindAllStringSubmatch(k.Comment, -1) {
			for _, end := range []struct{ tier, does string }{{way[1], "sends"}, {way[2], "handles"}} {
				if !named[folders[end.tier]]["topic."+k.Name] && !spared(folders[end.tier]+".topic."+k.Name) {
					t.Errorf("topic.%s goes %s, and nothing in %s %s it", k.Name, way[0], folders[end.tier], end.does)
				}
			}
		}
	}
	for _, e := range events {
		if name := "protocol." + e.Name; !named["lo"][name] {
			t.Errorf("nothing in lo sends events of kind %s, or applies them", name)
		}
	}
}
