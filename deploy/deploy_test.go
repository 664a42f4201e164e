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
	_, names := alerts(t)
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
	promtool(t, "prometheus", "test", "rules", "alerts_test.yml")
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

// TestSiteIsChosen plays each expression of the dashboards of one site where only another site is scraped, at the CO and at its own LO and agent: it must
// show nothing. Where the site itself is scraped it must show something.
func TestSiteIsChosen(t *testing.T) {
	t.Parallel()
	var groups []any
	for name, d := range grafana.Dashboards() {
		if !d.Site {
			continue
		}
		for i, p := range d.Panels {
			for n, q := range p.Queries {
				expr := strings.ReplaceAll(q.Expr, "$site", "plant")
				for _, scraped := range []string{"plant", "other"} {
					groups = append(groups, map[string]any{
						"name": fmt.Sprintf("%s, panel %d (%s), query %d, site %s", name, i, p.Title, n, scraped), "interval": "1m", "input_series": series(expr, scraped),
						"promql_expr_test": []any{map[string]any{"expr": "count(" + expr + ") > bool 0", "eval_time": "10m", "exp_samples": found(scraped == "plant")}},
					})
				}
			}
		}
	}
	if len(groups) < 20 {
		t.Fatalf("%d tests of dashboards of a site", len(groups))
	}
	b, err := yaml.Marshal(map[string]any{"tests": groups})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "site.yml"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "test", "rules", "site.yml")
}

// series are values of each metric that an expression names, as they are scraped of one site: those of its LO and its agents have no label site, but for
// colony_lo_info and colony_en_info.
func series(expr, site string) (all []any) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(metric.FindAllString(expr, -1)))) {
		labels := []string{`broker="lo"`, `instance="` + site + `:8081"`, `job="colony-lo"`, `le="+Inf"`, `outcome="create_failed"`, `result="unhealthy"`, `state="x"`, `stream="events"`}
		if strings.HasPrefix(name, "colony_co_") || strings.HasSuffix(name, "_info") {
			labels = append(labels, `node="n1"`, `site="`+site+`"`)
		}
		all = append(all, map[string]string{"series": name + "{" + strings.Join(labels, ", ") + "}", "values": "1+1x20"})
	}
	return all
}

// found is what promtool wants of a count above 0; it has no sample where there is nothing to count.
func found(some bool) []map[string]any {
	if !some {
		return []map[string]any{}
	}
	return []map[string]any{{"labels": "{}", "value": 1}}
}

// metric finds the names of metrics.
var metric = regexp.MustCompile(`\bcolony_(co|lo|en|broker)_[a-z0-9_]+\b`)

// sentMetrics are the names of the metrics that the code sends.
func sentMetrics(t *testing.T) map[string]bool {
	t.Helper()
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
	return sent
}

// TestPageHasAllMetrics wants each metric that the code sends in docs/metrics.md, and no other. The tests of the tiers hold what it says of each
// to what they have registered.
func TestPageHasAllMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(colony_[a-z0-9_]+)`").FindAllSubmatch(page, -1) {
		listed[string(row[1])] = true
	}
	sent := sentMetrics(t)
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		if !listed[name] {
			t.Errorf("docs/metrics.md lacks %s: have a tier of the test TestPageOfMetrics register it", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/metrics.md has %s, which no code sends", name)
	}
}

// TestMetricsExist wants each metric that an alert or a panel asks for to be one that the code sends: a panel without data says nothing is wrong.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	sent := sentMetrics(t)
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
			if !sent[family(name)] {
				t.Errorf("no code sends %s, which is asked for by %s", name, expr)
			}
		}
	}
}

// family is the metric that a name belongs to: a histogram has several names.
func family(name string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}
