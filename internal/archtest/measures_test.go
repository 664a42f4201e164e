package archtest

import (
	"fmt"
	"go/ast"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/doctable"
)

// tolerance is how far a size in the table of measures may be from what it is, as a part of
// it: the table need not change with each commit, and is never wrong by more.
const tolerance = 0.1

// TestMeasures holds the sizes in docs/architecture.md to the code: UPDATE=1 writes them.
func TestMeasures(t *testing.T) {
	t.Parallel()
	m := measureModule(t)
	var b strings.Builder
	b.WriteString("| measure | before | now | bound |\n|---|---|---|---|\n")
	row := func(name, before, now, bound string) {
		_, _ = fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, before, now, bound)
	}
	row("packages, imports between them", "84, 251", thousands(len(m.lines))+", "+thousands(m.imports), "the table in `layers_test.go`")
	row("largest package", "2,498 lines", thousands(m.largest())+" lines", thousands(maxPackage)+" lines, but for three that `TestBudgets` names")
	row("packages within 8 % of their limit", "6", thousands(m.nearLimit()), "`TestBudgets`")
	for _, tier := range []struct{ name, before string }{
		{"lo", "1,967 lines, 74 methods, wires 19 packages"}, {"co", "957 lines, 37 methods, wires 21 packages"}, {"en", "540 lines, 22 methods, wires 10 packages"},
	} {
		row("root package `"+tier.name+"`", tier.before, fmt.Sprintf("%s lines, %s methods, wires %d packages", thousands(m.lines[tier.name]), thousands(m.methods[tier.name]), m.wires[tier.name]), "`TestWiring`")
	}
	row("folders in `co`, `lo`, `en`", "18, 12, 6", fmt.Sprintf("%d, %d, %d", m.folders("co"), m.folders("lo"), m.folders("en")), "`TestRooms`, `TestLayoutNamesRooms`")
	for _, of := range []struct{ dir, before string }{{"cli", "0.24"}, {"up", "0.25"}, {"margo", "0.31"}, {"en", "0.50"}} {
		row("lines of tests to a line of `"+of.dir+"`", of.before, testsPerLine(t, m, of.dir), "review")
	}
	doctable.Table{
		Doc: root + "/docs/architecture.md", Name: "sizes", Content: b.String(), Near: near,
		Command: "UPDATE=1 go test ./internal/archtest -run TestMeasures",
	}.Check(t, os.Getenv("UPDATE") != "")
}

// measures are the sizes of the module, of what is not a test.
type measures struct {
	imports int            // of a package of the module by another one
	lines   map[string]int // by package
	methods map[string]int // functions with a receiver, by package
	wires   map[string]int // packages of the module that it imports, by package
}

// nearLimit counts the packages whose lines are within 8 % of what they may have.
func (m measures) nearLimit() (count int) {
	for dir, n := range m.lines {
		if limit := max(maxPackage, larger[dir].lines); n*100 > limit*92 {
			count++
		}
	}
	return count
}

// folders counts the folders of a tier, one deep.
func (m measures) folders(tier string) int {
	found := map[string]bool{}
	for dir := range m.lines {
		if rest, ok := strings.CutPrefix(dir, tier+"/"); ok {
			room, _, _ := strings.Cut(rest, "/")
			found[room] = true
		}
	}
	return len(found)
}

// testsPerLine returns how many lines of tests there are to a line of a folder and what lies below it.
func testsPerLine(t *testing.T, m measures, folder string) string {
	t.Helper()
	code, tests := 0, 0
	for dir, n := range m.lines {
		if dir == folder || strings.HasPrefix(dir, folder+"/") {
			code += n
		}
	}
	for _, s := range parse(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		if s.dir == folder || strings.HasPrefix(s.dir, folder+"/") {
			tests += s.lines
		}
	}
	return fmt.Sprintf("%.2f", float64(tests)/float64(code))
}

// measureModule counts.
func measureModule(t *testing.T) measures {
	t.Helper()
	m := measures{lines: map[string]int{}, methods: map[string]int{}, wires: map[string]int{}}
	imports := map[[2]string]bool{}
	for _, s := range sources(t) {
		m.lines[s.dir] += s.lines
		for _, imp := range s.file.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); strings.HasPrefix(path, module) {
				if !imports[[2]string{s.dir, path}] {
					m.wires[s.dir]++
				}
				imports[[2]string{s.dir, path}] = true
			}
		}
		for _, decl := range s.file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
				m.methods[s.dir]++
			}
		}
	}
	m.imports = len(imports)
	return m
}

// largest returns the lines of the largest package.
func (m measures) largest() (most int) {
	for _, n := range m.lines {
		most = max(most, n)
	}
	return most
}

// thousands writes a number as 1,234.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// number is one of the table, as thousands writes it.
var number = regexp.MustCompile(`\d+(,\d{3})*`)

// near reports whether two tables have the same text, and numbers that differ by tolerance,
// or by two, at most.
func near(have, want string) bool {
	if number.ReplaceAllString(have, "0") != number.ReplaceAllString(want, "0") {
		return false
	}
	numbers := number.FindAllString(have, -1)
	for i, text := range number.FindAllString(want, -1) {
		w, _ := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		h, _ := strconv.ParseFloat(strings.ReplaceAll(numbers[i], ",", ""), 64)
		if few := h == math.Trunc(h) && math.Abs(h-w) <= 2; !few && (h < w*(1-tolerance) || h > w*(1+tolerance)) {
			return false
		}
	}
	return true
}

// TestNear checks how far a table may be from the code.
func TestNear(t *testing.T) {
	t.Parallel()
	for have, want := range map[string]bool{
		"| lo | 1,000 lines, 40 methods |": true, "| lo | 1,099 lines, 36 methods |": true, "| lo | 900 lines, 40 methods |": true,
		"| lo | 1,000 lines, 42 methods |": true, "| lo | 1,101 lines, 40 methods |": false, "| lo | 1,000 lines, 35 methods |": false, "| en | 1,000 lines, 40 methods |": false,
	} {
		if got := near(have, "| lo | 1,000 lines, 40 methods |"); got != want {
			t.Errorf("%s: near is %t, want %t", have, got, want)
		}
	}
}
