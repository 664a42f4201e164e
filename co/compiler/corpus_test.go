package compiler

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/doctable"
)

var update = flag.Bool("update", false, "write the table of docs/compose.md again")

// A sample is a Compose file as a well-known project could have it, written from memory.
// Comments at its head say which files lie beside it, and what it is refused for.
type sample struct {
	name, compose, refused string
	files                  map[string]string
}

func readSample(t *testing.T, path string) sample {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sample{name: strings.TrimSuffix(filepath.Base(path), ".yaml"), compose: string(b), files: map[string]string{}}
	for line := range strings.Lines(s.compose) {
		if names, ok := strings.CutPrefix(line, "# archive: "); ok {
			for _, name := range strings.Fields(names) {
				s.files[name] = "# " + name + "\n"
			}
			if _, ok := s.files[".env"]; ok {
				s.files[".env"] = "PG_PASS=x\nPOSTGRES_USER=n8n\nPOSTGRES_DB=n8n\nPOSTGRES_PASSWORD=x\n"
			}
		}
		if refused, ok := strings.CutPrefix(line, "# refused: "); ok {
			s.refused = strings.TrimSpace(refused)
		}
	}
	return s
}

// The samples translate, or are refused for the reason that is written down, with its
// line. How much of what is published translates, TestRealFiles measures.
func TestCorpus(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/corpus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		s := readSample(t, path)
		_, _, err := CheckArchive("app", composeArchive(t, s.compose, s.files), nil)
		switch {
		case err == nil && s.refused == "":
		case err == nil:
			t.Errorf("%s translates, and should be refused: %s", s.name, s.refused)
		case s.refused == "":
			t.Errorf("%s: %v", s.name, err)
		case !strings.Contains(err.Error(), ": "+s.refused) || !strings.Contains(err.Error(), "line "):
			t.Errorf("%s: %v, want it refused with its line: %s", s.name, err, s.refused)
		}
	}
	if len(paths) < 60 {
		t.Errorf("%d files, want at least 60", len(paths))
	}
}

// A shape is that of one real file: its services, keys and the values that decide about
// its translation, with the rest left out. The head has where it is from, the files beside
// it, and what .env gives.
func readShape(t *testing.T, name string) (from string, compose string, files map[string]string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	head := map[string]string{}
	for line := range strings.Lines(string(b)) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if !ok {
			break
		}
		key, value, _ := strings.Cut(text, ": ")
		switch key {
		case "commit", "sha256":
			head[key] = value
		case "beside":
			for _, file := range strings.Fields(value) {
				file, shape, _ := strings.Cut(file, "=")
				_, files[file], _ = readShape(t, filepath.Join("testdata", "real", "beside", shape+".yaml"))
			}
		case "env":
			files[".env"] += value + "\n"
		case "archive":
			for _, file := range strings.Fields(value) {
				file, bytes, _ := strings.Cut(file, "=")
				n, _ := strconv.Atoi(bytes)
				files[file] = "#" + strings.Repeat("x", n)
			}
		default:
			from = text
		}
	}
	if len(head["commit"]) != 40 || len(head["sha256"]) != 64 || strings.Count(from, " ") != 1 {
		t.Errorf("%s: no repository, commit or digest: %q %v", name, from, head)
	}
	return from, string(b), files
}

// reason finds the key that a file is refused for first.
var reason = regexp.MustCompile(`(?m)^(?:line \d+: )?((?:services|networks|volumes|configs|secrets|include)[^:\s]*): `)

// asked finds variables, also those that are the content of a config or secret.
var asked = regexp.MustCompile(`(?:\$\{?|\n +environment: )([A-Za-z_][A-Za-z0-9_]*)`)

// unset lists the variables that .env does not give: as in a package that colony app init
// makes, each is a parameter.
func unset(compose, env string) (names []string) {
	for _, m := range asked.FindAllStringSubmatch(compose, -1) {
		if !slices.Contains(names, m[1]) && !strings.Contains("\n"+env, "\n"+m[1]+"=") {
			names = append(names, m[1])
		}
	}
	return names
}

// What becomes of real files is the table of docs/compose.md. That is measured, and no
// aim: a file that is refused has a reason, most have its line.
func TestRealFiles(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/real/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	translated, building := 0, 0
	projects := map[string]bool{}
	for _, name := range names {
		from, compose, files := readShape(t, name)
		repository, path, _ := strings.Cut(from, " ")
		projects[repository] = true
		c, warnings, err := CheckArchive("app", composeArchive(t, compose, files), open(unset(compose, files[".env"])...))
		if err == nil {
			translated++
			rows = append(rows, fmt.Sprintf("| %s | %s | %d | %d | |", repository, path, len(c.Containers), len(warnings)))
			continue
		}
		var keys []string
		for _, m := range reason.FindAllStringSubmatch(err.Error(), -1) {
			key := regexp.MustCompile(`^(services|networks|volumes|configs|secrets)\.[^.]+`).ReplaceAllString(m[1], "$1.*")
			key = regexp.MustCompile(`\[\d+\]`).ReplaceAllString(key, "[]")
			if key = "`" + strings.TrimSuffix(key, ".*") + "`"; !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			_, text, _ := strings.Cut(err.Error(), "compose.yaml:\n")
			keys = []string{cmp.Or(text, err.Error())}
		}
		if slices.Contains(keys, "`services.*.build`") {
			building++
		}
		slices.Sort(keys)
		rows = append(rows, fmt.Sprintf("| %s | %s | | | %s |", repository, path, strings.Join(keys, ", ")))
	}
	if len(names) < 60 {
		t.Errorf("%d files, want at least 60", len(names))
	}
	table := fmt.Sprintf("%d of %d files of %d projects translate; %d of the others build an image.\n\n"+
		"| project | file | containers | warnings | refused for |\n|---|---|---|---|---|\n%s\n",
		translated, len(names), len(projects), building, strings.Join(rows, "\n"))
	doctable.Table{Doc: "../../docs/compose.md", Name: "corpus", Content: table, Command: "go test ./co/compiler -run TestRealFiles -update"}.Check(t, *update)
}
