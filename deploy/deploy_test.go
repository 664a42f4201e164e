package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/deploy/grafana"
)

// A rules is a file of rules of Prometheus.
type rules struct {
	Groups []struct {
		Name  string
		Rules []map[string]any
	}
}

func alerts(t *testing.T) (file rules, names []string) {
	t.Helper()
	b, err := os.ReadFile("prometheus/alerts.yml")
	if err == nil {
		err = yaml.Unmarshal(b, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names = append(names, fmt.Sprint(r["alert"]))
		}
	}
	if len(names) < 10 {
		t.Fatalf("%d alerts found", len(names))
	}
	return file, names
}

// promtool runs Prometheus' own checker.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is not installed: run scripts/setup --with-test-peers as root")
	}
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestAlerts has promtool check the files, and play each alert where it must fire and where it must not.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, "prometheus", "check", "rules", "alerts.yml")
	promtool(t, "prometheus", "check", "config", "prometheus.yml")
	file, names := alerts(t)
	cases, err := os.ReadFile("prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, want := range []string{"- name: " + name + " fires\n", "- name: " + name + " is quiet\n"} {
			if !bytes.Contains(cases, []byte(want)) {
				t.Errorf("alerts_test.yml has no test %q", strings.TrimSpace(want))
			}
		}
	}
	// promtool compares annotations to the letter: the cases are about when an alert fires, and not about its words.
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			delete(r, "annotations")
		}
	}
	bare, err := yaml.Marshal(map[string]any{"groups": file.Groups})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{"alerts.yml": bare, "alerts_test.yml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, dir, "test", "rules", "alerts_test.yml")
}

// TestRunbooks wants a section for each alert, and each alert to lead to it.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	file, names := alerts(t)
	doc, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !bytes.Contains(doc, []byte("\n### "+name+"\n")) {
			t.Errorf("docs/observability.md has no section %s", name)
		}
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			notes, _ := r["annotations"].(map[string]any)
			if url := fmt.Sprint(notes["runbook_url"]); !strings.HasSuffix(url, "/docs/observability.md#"+strings.ToLower(fmt.Sprint(r["alert"]))) {
				t.Errorf("%v: its runbook is %s", r["alert"], url)
			}
			for _, key := range []string{"summary", "description"} {
				if notes[key] == nil {
					t.Errorf("%v: it has no %s", r["alert"], key)
				}
			}
		}
	}
}

// TestDashboards holds the files to the code; UPDATE=1 writes them. Each panel says what it shows, and its expressions are of PromQL.
func TestDashboards(t *testing.T) {
	t.Parallel()
	var record []map[string]any
	all := grafana.Dashboards()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		want, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("grafana", name)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code says: UPDATE=1 go test ./deploy writes it (%v)", path, err)
		}
		if !json.Valid(want) {
			t.Errorf("%s is no JSON", path)
		}
		for i, p := range d.Panels {
			if p.Title == "" || p.Description == "" || p.Unit == "" || len(p.Queries) == 0 || p.Width == 0 || p.Height == 0 {
				t.Errorf("%s: panel %d (%s) lacks a title, a description, a unit, a size or a query", name, i, p.Title)
			}
			for n, q := range p.Queries {
				record = append(record, map[string]any{"record": fmt.Sprintf("check:%s:p%d:q%d", strings.TrimSuffix(name, ".json"), i, n), "expr": strings.ReplaceAll(q.Expr, "$site", "plant")})
			}
		}
	}
	b, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": record}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "panels.yml"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "panels.yml")
}

// metric finds the names of metrics.
var metric = regexp.MustCompile(`\bcolony_(co|lo|en|broker)_[a-z0-9_]+\b`)

// TestMetricsExist wants each metric that an alert or a panel asks for to be one that the code sends: a panel without data says nothing is wrong.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	sent := map[string]bool{}
	for _, dir := range []string{"../broker", "../co", "../lo", "../en"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, name := range regexp.MustCompile(`"colony_[a-z0-9_]+"`).FindAllString(string(b), -1) {
				sent[strings.Trim(name, `"`)] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(sent) < 80 {
		t.Fatalf("%d metrics found in the code: the test does not read it", len(sent))
	}
	var asked []string
	file, _ := alerts(t)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			asked = append(asked, fmt.Sprint(r["expr"]))
		}
	}
	for _, d := range grafana.Dashboards() {
		for _, p := range d.Panels {
			for _, q := range p.Queries {
				asked = append(asked, q.Expr)
			}
		}
	}
	for _, expr := range asked {
		for _, name := range metric.FindAllString(expr, -1) {
			if !sent[strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum")] {
				t.Errorf("no code sends %s, which is asked for by %s", name, expr)
			}
		}
	}
}
