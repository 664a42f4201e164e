package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
)

// A documented command is one that a page names.
type documented struct {
	at    string // page and line
	args  []string
	whole bool // with its arguments, as in a block of code
}

var (
	// inlineCommand is a command in the text of a page.
	inlineCommand = regexp.MustCompile("`(?:bin/)?colony ([^`]+)`")
	// blockCommand is a command at the beginning of a line of a block of code, or behind &&.
	blockCommand = regexp.MustCompile(`(?:^|&& )(?:\$ |sudo )?(?:bin/)?colony (.+)$`)
	// word is a word of a shell's line, or what ends the command.
	word = regexp.MustCompile(`'([^']*)'|"([^"]*)"|(&&|[|;&<>]|\s#.*)|([^\s'"|;&<>]+)`)
)

// documentedCommands reads the commands of all pages.
func documentedCommands(t *testing.T) (found []documented) {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue // it names what was
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for n, line := range strings.Split(string(b), "\n") {
			at := fmt.Sprintf("%s:%d", strings.TrimPrefix(page, "../"), n+1)
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
				continue
			}
			if fenced || strings.HasPrefix(line, "    ") {
				if m := blockCommand.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
					found = append(found, documented{at, words(m[1]), true})
				}
				continue
			}
			for _, m := range inlineCommand.FindAllStringSubmatch(line, -1) {
				found = append(found, documented{at, words(m[1]), false})
			}
		}
	}
	return found
}

// words returns the words of a command, without the brackets of what may be left out.
func words(line string) (out []string) {
	line = strings.NewReplacer("[--", "--", "…", "").Replace(line)
	for _, m := range word.FindAllStringSubmatch(line, -1) {
		if m[3] != "" {
			break
		}
		w := m[1] + m[2] + m[4]
		if m[4] != "" && !strings.Contains(w, "[") {
			w = strings.TrimSuffix(w, "]")
		}
		if w = strings.Trim(w, ","); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// find returns the command that words name, by its names from the root on, and what is left.
func find(words []string) (cmd *cobra.Command, names, rest []string, err error) {
	a := &app{command.Env{}}
	cmd, rest, err = a.root("1").Find(words)
	if err != nil {
		return nil, nil, nil, err
	}
	names = strings.Fields(cmd.CommandPath())[1:]
	return cmd, names, rest, nil
}

// TestDocumentedCommands checks that each command of a page exists with the flags that it is
// given, and where it is shown as it is typed, with so many arguments.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	all := documentedCommands(t)
	if len(all) < 100 {
		t.Errorf("%d commands found: the test does not read the pages", len(all))
	}
	for _, d := range all {
		cmd, _, rest, err := find(d.args)
		if err != nil {
			t.Errorf("%s: colony %s: %v", d.at, strings.Join(d.args, " "), err)
			continue
		}
		if !d.whole {
			rest = named(cmd, rest)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: colony %s: %v", d.at, strings.Join(d.args, " "), err)
			continue
		}
		if cmd.HasSubCommands() && len(cmd.Flags().Args()) > 0 {
			t.Errorf("%s: colony %s: %s has no command %q", d.at, strings.Join(d.args, " "), cmd.CommandPath(), cmd.Flags().Arg(0))
		}
		if d.whole && cmd.Args != nil {
			if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
				t.Errorf("%s: colony %s: %v", d.at, strings.Join(d.args, " "), err)
			}
		}
	}
}

// named gives the flags that a text only names, such as --replace or --ttl, a value where they
// want one.
func named(cmd *cobra.Command, words []string) (out []string) {
	for i, w := range words {
		out = append(out, w)
		f := cmd.Flags().Lookup(strings.TrimPrefix(w, "--"))
		last := i == len(words)-1 || strings.HasPrefix(words[i+1], "--")
		if strings.HasPrefix(w, "--") && f != nil && f.NoOptDefVal == "" && last {
			out = append(out, "1")
		}
	}
	return out
}

// elsewhere are commands that no scenario runs by its name, and what runs them.
var elsewhere = map[string]string{
	"version":    "TestVersion runs it; it asks no fleet",
	"en":         "gateways run colony-en, which is the same: each scenario does",
	"app init":   "TestVendorsFiles runs the commands of docs/packaging.md as they stand there",
	"app push":   "as app init",
	"lint":       "as app init",
	"ca init":    "TestRoot of cli/identity runs it; it asks no fleet",
	"ca export":  "as ca init",
	"ca import":  "as ca init",
	"ca adopt":   "as ca init",
	"site adopt": "TestAdoption of e2e/identity runs it: a site of colony up has certificates",
	"co restore": "TestBackupAndRestore of co/backup and TestRestoreToEarlierMoments of co play it on real databases: a fleet of colony up has no database while its CO is stopped",
}

// TestDocumentedCommandsAreRun checks that each command of a page is run by a scenario on a
// running fleet: the names of commands stand in its source as they are typed.
func TestDocumentedCommandsAreRun(t *testing.T) {
	t.Parallel()
	run := map[string]bool{}
	err := filepath.WalkDir("../e2e", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			var list []ast.Expr
			switch v := n.(type) {
			case *ast.CallExpr:
				list = v.Args
			case *ast.CompositeLit:
				list = v.Elts
			default:
				return true
			}
			for i := range list {
				if texts := literals(list[i:]); len(texts) > 0 {
					if cmd, names, _, err := find(texts); err == nil && !cmd.HasSubCommands() {
						run[strings.Join(names, " ")] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, d := range documentedCommands(t) {
		cmd, names, _, err := find(d.args)
		if err != nil || cmd.HasSubCommands() {
			continue
		}
		name := strings.Join(names, " ")
		if !run[name] && elsewhere[name] == "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
			t.Errorf("%s: colony %s is run by no scenario", d.at, name)
		}
	}
}

// literals returns the texts with which a list begins.
func literals(list []ast.Expr) (out []string) {
	for _, e := range list {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			break
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			break
		}
		out = append(out, text)
	}
	return out
}
