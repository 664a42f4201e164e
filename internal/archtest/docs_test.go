package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var ref = regexp.MustCompile("`([\\w./-]+\\.go)#([A-Za-z0-9_.]+)`")

// TestDocReferences checks that every `file.go#Name` in the flow documents and the
// checklists names a declaration that exists.
func TestDocReferences(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob(root + "/docs/flows/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("no flow documents: %v", err)
	}
	docs = append(docs, root+"/docs/contributing.md")
	for _, doc := range docs {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		refs := ref.FindAllStringSubmatch(string(b), -1)
		if len(refs) == 0 {
			t.Errorf("%s: no code reference", doc)
		}
		for _, m := range refs {
			if !declares(filepath.Join(root, m[1]), m[2]) {
				t.Errorf("%s: %s does not declare %s", filepath.Base(doc), m[1], m[2])
			}
		}
	}
}

// callOrder are functions in which steps of a flow follow each other, with what they call in that order. A call with an equals sign does what the row of
// the flow says that names the declaration behind it.
var callOrder = []struct {
	doc, file, function string
	calls               []string
}{
	{"deploy.md", "co/api/write.go", "API.create", []string{"ParseSiteID", "application", "checkTarget", "Create=Create", "commit=API.commit"}},
	{"deploy.md", "co/api/write.go", "API.commit", []string{"Marshal", "check", "put"}},
	{"deploy.md", "co/desired/publish.go", "Loop.send", []string{"SaveBodies", "publish"}},
	{"deploy.md", "lo/control/loop.go", "Loop.reconcileNode", []string{"Step=Step", "commit=Loop.reconcileNode", "publishDesired"}},
	{"deploy.md", "en/agent/obey.go", "Runner.Accept", []string{"Check", "sent", "judge", "keep"}},
	{"deploy.md", "en/agent/install.go", "worker.install", []string{"pullBesideActive=worker.pull", "Vacant", "cutOver=worker.cutOver", "follow=Prober.Probe", "installed=Runner.report"}},
	{"deploy.md", "en/agent/install.go", "worker.cutOver", []string{"CutOver", "save", "clear"}},
	{"deploy.md", "lo/control/accept.go", "Site.acceptReport", []string{"ApplyReport=Record.ApplyReport", "commitAccepted=Journal.Append"}},
	{"deploy.md", "co/ingest/ingest.go", "Ingest.attempt", []string{"Events=Ingest.Accept", "commit=Journal.CommitBatch"}},
	{"status-up.md", "lo/control/accept.go", "Site.acceptReport", []string{"ApplyReport=Record.ApplyReport", "commitAccepted=Journal.Append"}},
	{"status-up.md", "co/ingest/ingest.go", "Ingest.attempt", []string{"Events=Decoder.Events", "commit=Journal.CommitBatch"}},
	{"status-up.md", "co/db/fleet/journal/commit.go", "Journal.commitAll", []string{"LockSites", "Follow=Position.Follow", "write=Journal.CommitBatch", "Ack=Position.Ack"}},
	{"status-up.md", "lo/uplink/ack.go", "link.advance", []string{"Trim=Trimmer.Trim"}},
	{"status-up.md", "lo/control/trim/trim.go", "Trimmer.TrimAcked", []string{"SaveThrough=Site.SaveThrough", "Trim=Journal.Trim"}},
	{"machine-data.md", "lo/data/accept.go", "Forwarder.Accept", []string{"Up=Table.Up", "acceptRetained=Store.Put", "accept=Sampler.Offer"}},
	{"machine-data.md", "lo/data/sample.go", "stream.accept", []string{"Offer=Sampler.Offer", "put=stream.put"}},
	{"machine-data.md", "co/db/data/data.go", "dataCommit.write", []string{"apply", "store=dataCommit.write", "deliver=Exchange.Deliver"}},
	{"machine-data.md", "co/data/downlink/send.go", "Downlink.send", []string{"Publish=Downlink.send", "sendBatch=Downlink.sendBatch"}},
	{"machine-data.md", "lo/data/downlink/downlink.go", "Downlink.follow", []string{"Follow=Downlink.follow", "deliver=Site.Put", "save=positions.save"}},
	{"machine-data.md", "lo/data/downlink/downlink.go", "Downlink.hand", []string{"Put=Site.Put", "Publish=Site.Publish"}},
}

// TestFlowOrder checks that steps come in the order in which the code takes them: each of these
// functions calls what the steps name one after the other, its flow names its file, and the rows
// of the steps stand in the same order.
func TestFlowOrder(t *testing.T) {
	t.Parallel()
	for _, o := range callOrder {
		b, err := os.ReadFile(root + "/docs/flows/" + o.doc)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile("`" + regexp.QuoteMeta(o.file) + "#").Match(b) {
			t.Errorf("%s does not name %s", o.doc, o.file)
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, o.file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		var calls, steps []string
		for _, c := range o.calls {
			call, step, _ := strings.Cut(c, "=")
			calls = append(calls, call)
			if step != "" {
				steps = append(steps, step)
			}
		}
		if missing := outOfOrder(f, o.function, calls); missing != "" {
			t.Errorf("%s#%s does not call %s, or not in the order %v: correct the steps of %s", o.file, o.function, missing, calls, o.doc)
		}
		if fault := rowsOutOfOrder(string(b), steps); fault != "" {
			t.Errorf("%s: %s; the code takes the steps in the order %v, see %s#%s", o.doc, fault, steps, o.file, o.function)
		}
	}
}

// rowsOutOfOrder returns which row of a flow stands before one that comes first in a list of what the rows name; "": all stand in order.
func rowsOutOfOrder(doc string, steps []string) string {
	last, before := 0, ""
	for _, step := range steps {
		row := strings.Index(doc, "#"+step+"`")
		if row < 0 {
			return "no row names " + step
		}
		row = strings.LastIndex(doc[:row], "\n") // several steps may stand in one row
		if row < last {
			return "the row of " + step + " stands before that of " + before
		}
		last, before = row, step
	}
	return ""
}

// outOfOrder returns the first of some calls that a function does not have after those before it;
// "": it has all of them in order.
func outOfOrder(f *ast.File, function string, calls []string) string {
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.FuncDecl)
		if !ok || functionName(d) != function {
			continue
		}
		rest := calls
		ast.Inspect(d.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(rest) > 0 && lastName(call.Fun) == rest[0] {
				rest = rest[1:]
			}
			return true
		})
		if len(rest) > 0 {
			return rest[0]
		}
		return ""
	}
	return function
}

// path is a file or folder of the repository in the checklists.
var path = regexp.MustCompile("`((?:bench|broker|cli|co|docs|e2e|en|internal|lo|migrations|protocol|scripts|sim|up)(?:/[\\w.]+)+)`")

// TestChecklistPaths checks that the files and folders that the checklists name exist.
func TestChecklistPaths(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(root + "/docs/contributing.md")
	if err != nil {
		t.Fatal(err)
	}
	found := path.FindAllStringSubmatch(string(b), -1)
	if len(found) < 40 {
		t.Errorf("%d paths found: the test does not read the checklists", len(found))
	}
	for _, m := range found {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("contributing.md names %s: %v", m[1], err)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// TestDocLinks checks that every relative link in the documentation leads to a file.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(root + "/docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(append(docs, more...), root+"/README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(doc), m[1], err)
			}
		}
	}
}

// TestLayoutNamesRooms checks that the layout in architecture.md names each room of a tier.
func TestLayoutNamesRooms(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(root + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"co", "lo", "en"} {
		line := regexp.MustCompile(`(?m)^` + tier + `/ .*$`).FindString(string(b))
		rooms, err := filepath.Glob(root + "/" + tier + "/*/*.go")
		if err != nil || len(rooms) == 0 || line == "" {
			t.Errorf("%s: %d files found, the line of the layout is %q: %v", tier, len(rooms), line, err)
		}
		missing := map[string]bool{}
		for _, file := range rooms {
			if room := filepath.Base(filepath.Dir(file)); !regexp.MustCompile(`\b` + room + `\b`).MatchString(line) {
				missing[room] = true
			}
		}
		for room := range missing {
			t.Errorf("the layout in architecture.md does not name %s/%s", tier, room)
		}
	}
}

func declares(file, name string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return false
	}
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			full := d.Name.Name
			if d.Recv != nil {
				typ := d.Recv.List[0].Type
				if s, ok := typ.(*ast.StarExpr); ok {
					typ = s.X
				}
				if g, ok := typ.(*ast.IndexExpr); ok {
					typ = g.X // a generic type
				}
				if id, ok := typ.(*ast.Ident); ok {
					full = id.Name + "." + full
				}
			}
			found = found || full == name
		case *ast.ValueSpec:
			for _, id := range d.Names {
				found = found || id.Name == name
			}
		case *ast.TypeSpec:
			found = found || d.Name.Name == name
		}
		return !found
	})
	return found
}
