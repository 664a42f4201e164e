package interpolate_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/co/compiler/interpolate"
)

// The environment of a service is the one that the reference implementation makes of the same
// files, whatever refers to what.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := rapid.SampledFrom([]string{"A", "B", "C", "D"})
	value := rapid.Custom(func(t *rapid.T) string {
		name := names.Draw(t, "refers to")
		return rapid.SampledFrom([]string{
			"", "1.10", "a b", "a #c", "#c", "$" + name, "${" + name + "}", "x${" + name + ":-d}y", "${" + name + "-}", "${" + name + ":+set}", "$$" + name,
			"'$" + name + "'", `"${` + name + `} "`, `"\$` + name + `"`, "${" + name + ":-{}}", "k=v",
		}).Draw(t, "value")
	})
	envFile := rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		for range rapid.IntRange(0, 5).Draw(t, "lines") {
			if name := names.Draw(t, "name"); rapid.IntRange(0, 5).Draw(t, "inherited") == 0 {
				fmt.Fprintf(&b, "%s\n", name)
			} else {
				fmt.Fprintf(&b, "%s=%s\n", name, value.Draw(t, "value"))
			}
		}
		return b.String()
	})
	rapid.Check(t, func(t *rapid.T) {
		project := &types.Project{Environment: rapid.MapOfN(names, rapid.SampledFrom([]string{"", "p"}), 0, 2).Draw(t, "variables")}
		own := types.MappingWithEquals{}
		for name, text := range rapid.MapOfN(names, rapid.SampledFrom([]string{"null", "", "o"}), 0, 3).Draw(t, "environment") {
			if own[name] = nil; text != "null" {
				own[name] = &text
			}
		}
		service := types.ServiceConfig{Name: "a", ContainerSpec: types.ContainerSpec{Environment: own}}
		e := interpolate.NewEnvironment(own, interpolate.In(project.Environment))
		for i := range rapid.IntRange(0, 3).Draw(t, "files") {
			content := envFile.Draw(t, "file")
			file := filepath.Join(dir, fmt.Sprintf("%d.env", i))
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := e.File(file, []byte(content)); err != nil {
				t.Fatal(err)
			}
			service.EnvFiles = append(service.EnvFiles, types.EnvFile{Path: file, Required: true})
		}
		project.Services = types.Services{"a": service}
		resolved, err := project.WithServicesEnvironmentResolved(true)
		if err != nil {
			t.Fatal(err)
		}
		want := resolved.Services["a"].Environment.RemoveEmpty().ToMapping()
		if diff := cmp.Diff(maps.Clone(map[string]string(want)), e.Values()); diff != "" {
			t.Errorf("environment (-reference +ours):\n%s", diff)
		}
	})
}

// What parameters set wins over .env, also where .env refers to it.
func TestVariables(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{".env": []byte("A=1\nB=${A}2\nC='${A}'\nD=${D:-d}\n")}
	for _, c := range []struct{ parameters, want map[string]string }{
		{nil, map[string]string{"A": "1", "B": "12", "C": "${A}", "D": "d", "COMPOSE_PROJECT_NAME": "web", "PWD": ".", "HOME": "~"}},
		{map[string]string{"A": "$$", "E": ""}, map[string]string{"A": "$$", "B": "$$2", "C": "${A}", "D": "d", "E": "", "COMPOSE_PROJECT_NAME": "web", "PWD": ".", "HOME": "~"}},
	} {
		got, err := interpolate.Variables("web", files, c.parameters)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%v, with %v (-want +got):\n%s", err, c.parameters, diff)
		}
	}
	if got, err := interpolate.Variables("web", map[string][]byte{".env": []byte("A=1\nB='")}, nil); err == nil || !strings.HasPrefix(err.Error(), ".env: line 2: ") || got["A"] != "" && got["A"] != "1" {
		t.Errorf("a .env that ends in a quote: %v, %v", got, err)
	}
}
