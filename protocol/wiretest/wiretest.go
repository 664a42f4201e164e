// Package wiretest reads the constants of the protocol from its source, for tests that want each of them
// handled: one that was added and forgotten is found by no other test.
package wiretest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Constant is one of a type whose values are texts.
type Constant struct {
	Name, Value string
	// Comment is what stands behind it in its line.
	Comment string
}

// Constants returns the constants of a type that a file of Go declares, in its order.
func Constants(t testing.TB, file, typ string) (all []Constant) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typ || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Constant{spec.Names[0].Name, text, strings.TrimSpace(spec.Comment.Text())})
		return true
	})
	return all
}

// ways are the directions that the comment of a kind of topic names, before its QoS.
var ways = regexp.MustCompile(`^[^0-9:]+`)

// Kinds returns the kinds of topics that go a way, such as "EN → LO", by protocol/topic/topic.go, which file is.
func Kinds(t testing.TB, file, way string) (kinds []topic.Kind) {
	t.Helper()
	all := Constants(t, file, "Kind")
	if len(all) < 16 {
		t.Errorf("%d kinds of topics found in %s: want each with one constant", len(all), file)
	}
	for _, c := range all {
		if slices.ContainsFunc(strings.Split(ways.FindString(c.Comment), ","), func(w string) bool {
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(w), "and ")) == way
		}) {
			kinds = append(kinds, topic.Kind(c.Value))
		}
	}
	if len(kinds) == 0 {
		t.Errorf("no kind of topic in %s goes %s", file, way)
	}
	return kinds
}

// CommandID stands in topics for the id of a command.
const CommandID = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"

// ForNode returns a topic of a kind that is between a node of a site and its LO.
func ForNode(kind topic.Kind, site protocol.SiteID, node protocol.NodeID) string {
	switch kind {
	case topic.Revocations:
		return topic.ForSite(kind, site)
	case topic.Status:
		return topic.ForStatus(site, node, "hello")
	case topic.NodeLive, topic.NodeCommand, topic.NodeCredit, topic.NodeInput:
		return topic.ForNodeCommand(kind, site, node, CommandID)
	}
	return topic.ForNode(kind, site, node)
}

// ForSite returns a topic of a kind that is between a site and the CO.
func ForSite(kind topic.Kind, site protocol.SiteID) string {
	switch kind {
	case topic.SiteLive, topic.SiteCommand, topic.SiteCredit, topic.SiteInput:
		return topic.ForCommand(kind, site, CommandID)
	}
	return topic.ForSite(kind, site)
}

// Filter returns what the receiver of a topic of ForNode or ForSite subscribes to.
func Filter(name string) string {
	return strings.Replace(name, CommandID, topic.AnyCommand, 1)
}
