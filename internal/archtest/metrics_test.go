package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// metricPrefixes are what the names of metrics begin with, by the first folder of the
// package that registers them.
var metricPrefixes = map[string]string{"co": "colony_co_", "lo": "colony_lo_", "en": "colony_en_", "broker": "colony_broker_"}

// scrapedName is the name of a metric, or the beginning of one.
var scrapedName = regexp.MustCompile(`^colony_(co|lo|en|broker)_[a-z0-9_]*$`)

// otherUnit is the end of the name of a metric that is in a unit which dashboards have to convert: times are in seconds, sizes in bytes, shares from 0 to 1.
var otherUnit = regexp.MustCompile(`_(millis|milliseconds|ms|micros|microseconds|us|nanos|nanoseconds|ns|minutes|hours|days|kb|kib|kilobytes|mb|mib|megabytes|gb|gib|gigabytes|percent)(_total)?$`)

// opaqueMetrics returns where a file makes a metric in a way that hides its name from TestMetrics.
func opaqueMetrics(s source) (faults []string) {
	refuse := func(pos token.Pos, what string) { faults = append(faults, s.fset.Position(pos).String()+": "+what) }
	imported := false
	for _, imp := range s.file.Imports {
		if p, _ := strconv.Unquote(imp.Path.Value); p == "github.com/prometheus/client_golang/prometheus" {
			if imported = true; imp.Name != nil {
				refuse(imp.Pos(), "import prometheus by its name, so that a test sees its metrics")
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, _ := textOf(n); scrapedName.MatchString(text) && otherUnit.MatchString(text) {
				refuse(n.Pos(), "the metric "+text+" is in another unit than seconds, bytes or a share from 0 to 1")
			}
		case *ast.CompositeLit:
			sel, ok := n.Type.(*ast.SelectorExpr)
			if !ok || !isPackage(sel, "prometheus") || !strings.HasSuffix(sel.Sel.Name, "Opts") {
				return true
			}
			if slices.ContainsFunc(n.Elts, func(e ast.Expr) bool { _, named := e.(*ast.KeyValueExpr); return !named }) {
				refuse(n.Pos(), "the options of a metric without the names of their fields")
			}
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				if sel, ok := to.(*ast.SelectorExpr); ok && imported && slices.Contains([]string{"Name", "Namespace", "Subsystem"}, sel.Sel.Name) {
					refuse(n.Pos(), "the name of a metric that is set later: write it into its options")
				}
			}
		}
		return true
	})
	return faults
}

// TestOpaqueMetrics plants what TestMetrics refuses by opaqueMetrics beside what it lets pass.
func TestOpaqueMetrics(t *testing.T) {
	t.Parallel()
	const imp = `import "github.com/prometheus/client_golang/prometheus"; `
	for src, want := range map[string]int{
		imp + `var o = prometheus.GaugeOpts{Name: "colony_lo_accept_seconds"}`:               0,
		imp + `var o = prometheus.GaugeOpts{Name: "colony_lo_accept_millis"}`:                1,
		imp + `var o = prometheus.CounterOpts{Name: "colony_lo_read_kib_total"}`:             1,
		imp + `var o = prometheus.CounterOpts{"", "", "x", "", nil}`:                         1,
		imp + `func f() { o.Name = "x" }`:                                                    1,
		`func f() { o.Name = "x" }`:                                                          0,
		`import p "github.com/prometheus/client_golang/prometheus"; var o = p.CounterOpts{}`: 1,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p; "+src, 0)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		if got := opaqueMetrics(source{file: file, fset: fset}); len(got) != want {
			t.Errorf("%s: %q, want %d", src, got, want)
		}
	}
}

// TestMetrics checks that metrics are named in one way: the name stands in one text as it is
// scraped, so that a search for it finds the code, and begins with the prefix of the tier. A
// counter ends with _total, and nothing else does. They are registered with the registerer
// that a package is given, never with the global one.
func TestMetrics(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.dir, "/")
		refuse := func(pos token.Pos, what string) {
			t.Errorf("%s: %s", s.fset.Position(pos), what)
		}
		for _, f := range opaqueMetrics(s) {
			t.Error(f)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				if !scrapedName.MatchString(text) {
					return true
				}
				prefix, ok := metricPrefixes[top]
				if !ok {
					return true // it reads what a tier answers
				}
				found++
				if !strings.HasPrefix(text, prefix) {
					refuse(n.Pos(), "the name of the metric does not begin with "+prefix)
				} else if strings.HasSuffix(text, "_") {
					refuse(n.Pos(), "a part of the name of a metric: write each name whole, as it is scraped")
				}
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Opts") && sel.Sel.Name != "HandlerOpts" {
					if metricPrefixes[top] == "" {
						refuse(n.Pos(), "a metric of a package that belongs to no tier")
					}
					metricOptions(sel.Sel.Name, metricPrefixes[top], n.Elts, refuse)
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				switch {
				case isPackage(sel, "prometheus") && sel.Sel.Name == "NewDesc" && !wholeName(n.Args[0]):
					refuse(n.Pos(), "the name of the metric is put together: write each name whole, as it is scraped")
				case isPackage(sel, "prometheus") && sel.Sel.Name == "NewDesc":
					if lit, ok := n.Args[0].(*ast.BasicLit); ok && !strings.HasPrefix(strings.Trim(lit.Value, "\"`"), metricPrefixes[top]) {
						refuse(n.Pos(), "the name of the metric does not begin with "+metricPrefixes[top])
					}
				case isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Register"), isPackage(sel, "promauto") && sel.Sel.Name != "With":
					refuse(n.Pos(), "a metric in the global registry: use the registerer of the options")
				}
			}
			return true
		})
	}
	for dir, files := range byPackage(sources(t)) {
		top, _, _ := strings.Cut(dir, "/")
		if prefix := metricPrefixes[top]; prefix != "" {
			for _, fault := range misnamed(files, prefix) {
				t.Error(fault)
			}
		}
	}
	if found < 80 {
		t.Errorf("%d metrics found: the test looks in the wrong place", found)
	}
}

// metricOptions checks the options of a metric of a tier with a prefix, whose type has a name such as CounterOpts.
func metricOptions(options, prefix string, fields []ast.Expr, refuse func(token.Pos, string)) {
	for _, e := range fields {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := kv.Key.(*ast.Ident); key.Name {
		case "Namespace", "Subsystem":
			refuse(kv.Pos(), key.Name+" of a metric: write the whole name in Name")
		case "Name":
			if !wholeName(kv.Value) {
				refuse(kv.Pos(), "the name of the metric is put together: write each name whole, as it is scraped")
			}
			lit, ok := kv.Value.(*ast.BasicLit)
			if !ok {
				continue
			}
			text, _ := strconv.Unquote(lit.Value)
			if strings.HasSuffix(text, "_total") != (options == "CounterOpts") {
				refuse(kv.Pos(), "a counter ends with _total, and nothing else does")
			}
			if !strings.HasPrefix(text, prefix) {
				refuse(kv.Pos(), "the name of the metric does not begin with "+prefix)
			}
		}
	}
}

// byPackage groups files by their folder.
func byPackage(all []source) map[string][]source {
	out := map[string][]source{}
	for _, s := range all {
		out[s.dir] = append(out[s.dir], s)
	}
	return out
}

// misnamed returns the names of metrics of a package that do not begin with a prefix, whatever way
// they are written: as a text, a constant, an argument of a function of the package that makes
// metrics of a kind, or a field of a table that a loop goes through.
func misnamed(files []source, prefix string) (faults []string) {
	texts := map[string]string{} // of constants
	for _, s := range files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, id := range spec.Names {
					if i < len(spec.Values) {
						if text, ok := textOf(spec.Values[i]); ok {
							texts[id.Name] = text
						}
					}
				}
			}
			return true
		})
	}
	makers := map[string]int{} // functions that are given a name, and as which argument
	for _, s := range files {
		refuse := func(at ast.Expr, what string) {
			faults = append(faults, s.fset.Position(at.Pos()).String()+": "+what)
		}
		check := func(at ast.Expr, in []ast.Node) {
			text, ok := textOf(at)
			if id, named := at.(*ast.Ident); named && !ok {
				if maker, i := parameterOf(id.Name, in); maker != "" {
					makers[maker] = i
					return
				}
				text, ok = texts[id.Name], true
			}
			if table := tableOf(at, in); table != nil {
				for _, cell := range table {
					if text, _ := textOf(cell); !strings.HasPrefix(text, prefix) {
						refuse(cell, "the name of the metric does not begin with "+prefix)
					}
				}
				return
			}
			if !ok || !strings.HasPrefix(text, prefix) {
				refuse(at, "the name of the metric does not begin with "+prefix+", or cannot be read here")
			}
		}
		inspectWithin(s.file, func(n ast.Node, in []ast.Node) {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && isPackage(sel, "prometheus") && strings.HasSuffix(sel.Sel.Name, "Opts") {
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok && lastName(kv.Key) == "Name" {
							check(kv.Value, in)
						}
					}
				}
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (isPackage(sel, "prometheus") && sel.Sel.Name == "NewDesc" || sel.Sel.Name == "Begin" && len(n.Args) == 3 && slices.Contains([]string{"Gauge", "Counter"}, lastName(n.Args[1]))) {
					check(n.Args[0], in)
				}
			}
		})
	}
	for _, s := range files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			i, made := makers[lastName(call.Fun)]
			if !made || i >= len(call.Args) {
				return true
			}
			text, ok := textOf(call.Args[i])
			if id, named := call.Args[i].(*ast.Ident); named && !ok {
				text, ok = texts[id.Name]
			}
			if !ok || !strings.HasPrefix(text, prefix) {
				faults = append(faults, s.fset.Position(call.Pos()).String()+": the name of the metric does not begin with "+prefix)
			}
			return true
		})
	}
	return faults
}

// textOf returns the text that a literal is.
func textOf(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// inspectWithin calls visit for each node of a file, with those that it lies in, the innermost last.
func inspectWithin(file *ast.File, visit func(n ast.Node, in []ast.Node)) {
	inspectNode(file, visit)
}

// inspectNode is inspectWithin for a part of a file.
func inspectNode(root ast.Node, visit func(n ast.Node, in []ast.Node)) {
	var in []ast.Node
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			in = in[:len(in)-1]
			return true
		}
		visit(n, in)
		in = append(in, n)
		return true
	})
}

// parameterOf returns the function around a node that has a parameter of a name, and which it is.
func parameterOf(name string, in []ast.Node) (function string, index int) {
	for i := len(in) - 1; i >= 0; i-- {
		var params *ast.FieldList
		switch f := in[i].(type) {
		case *ast.FuncDecl:
			function, params = f.Name.Name, f.Type.Params
		case *ast.FuncLit:
			function, params = "", f.Type.Params
			if i > 0 {
				if a, ok := in[i-1].(*ast.AssignStmt); ok && len(a.Lhs) == 1 {
					function = lastName(a.Lhs[0])
				}
			}
		default:
			continue
		}
		index = 0
		for _, f := range params.List {
			for _, id := range f.Names {
				if id.Name == name {
					return function, index
				}
				index++
			}
		}
	}
	return "", 0
}

// tableOf returns what a field such as g.name is in each row of the literal that a loop around it goes through.
func tableOf(e ast.Expr, in []ast.Node) (cells []ast.Expr) {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	for _, n := range in {
		loop, ok := n.(*ast.RangeStmt)
		if !ok || loop.Value == nil || lastName(loop.Value) != lastName(sel.X) {
			continue
		}
		table, ok := loop.X.(*ast.CompositeLit)
		if !ok {
			continue
		}
		row, ok := table.Type.(*ast.ArrayType)
		if !ok {
			continue
		}
		fields, ok := row.Elt.(*ast.StructType)
		if !ok {
			continue
		}
		at, i := -1, 0
		for _, f := range fields.Fields.List {
			for _, id := range f.Names {
				if id.Name == sel.Sel.Name {
					at = i
				}
				i++
			}
		}
		for _, elt := range table.Elts {
			if lit, ok := elt.(*ast.CompositeLit); ok && at >= 0 && at < len(lit.Elts) {
				cells = append(cells, lit.Elts[at])
			}
		}
	}
	return cells
}

// TestMisnamed plants names of metrics that TestMetrics refuses beside those that it lets pass.
func TestMisnamed(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`_ = prometheus.CounterOpts{Name: "colony_lo_x_total"}`:                                                0,
		`_ = prometheus.CounterOpts{Name: "uplink_things_total"}`:                                              1,
		`_ = prometheus.NewDesc("mycorp_things", "", nil, nil)`:                                                1,
		`const n = "other_x"; _ = prometheus.GaugeOpts{Name: n}`:                                               1,
		`const n = "colony_lo_x"; _ = prometheus.GaugeOpts{Name: n}`:                                           0,
		`_ = prometheus.GaugeOpts{Name: p + "x"}`:                                                              1,
		`g := func(n, h string) { _ = prometheus.GaugeOpts{Name: n} }; g("colony_lo_x", "")`:                   0,
		`g := func(n, h string) { _ = prometheus.GaugeOpts{Name: n} }; g("colony_co_x", "")`:                   1,
		`for _, g := range []struct{ name, help string }{{"colony_lo_x", ""}} { prometheus.NewDesc(g.name) }`:  0,
		`for _, g := range []struct{ help, name string }{{"colony_lo_x", "y"}} { prometheus.NewDesc(g.name) }`: 1,
		`t.Begin("things", Gauge, "")`:                                                                         1,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", "package p\nfunc f() { "+body+" }", 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := misnamed([]source{{file: file, fset: fset}}, "colony_lo_"); len(got) != want {
			t.Errorf("%s: %q, want %d", body, got, want)
		}
	}
}

// wholeName reports whether an expression is a text, or a variable or field that holds one.
func wholeName(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit, *ast.Ident:
		return true
	case *ast.SelectorExpr:
		_, ok := e.X.(*ast.Ident)
		return ok
	default:
		return false
	}
}

// isPackage reports whether a selector is of the package with a name.
func isPackage(sel *ast.SelectorExpr, name string) bool {
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == name
}
