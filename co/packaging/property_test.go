package packaging_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/packaging"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// oneArchive is a registry with one archive, in which each name of an image has an image.
type oneArchive []byte

func (a oneArchive) Archive(context.Context, string, string) ([]byte, protocol.Digest, error) {
	return a, protocol.DigestOf(a), nil
}

func (a oneArchive) Image(_ context.Context, ref string) (string, error) {
	_, digest, _ := strings.Cut(string(protocol.DigestOf([]byte(ref))), ":")
	return ref + "@sha256:" + digest, nil
}

func (a oneArchive) Health(context.Context, string) (*protocol.Health, error) { return nil, nil }

// containers returns what a deployment runs of a component with these files, by its parameters.
func containers(t interface{ Fatal(...any) }, d *v1rc3.Deployment, files map[string]archive.File) ([]protocol.Container, error) {
	packed := map[string]archive.File{}
	for name, f := range files {
		packed[path.Join("web", name)] = f
	}
	tgz, err := archive.Tar(packed)
	if err != nil {
		t.Fatal(err)
	}
	_, spec, err := compiler.Compile(context.Background(), d, oneArchive(tgz))
	if err != nil {
		return nil, err
	}
	return spec.Components[0].Containers, nil
}

// compared compiles the vendor's files without parameters, and the package that is made of them
// with the defaults of its parameters. A parameter that every deployment must give has a value,
// which the vendor's files have as a variable as well. Err is that of the vendor's files.
func compared(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, vendors map[string]string,
) (diff string, err error) {
	p, err := packaging.FromCompose(folder(vendors), []string{"docker-compose.yml"}, packaging.Options{ID: "web", Organization: "o"})
	if err != nil {
		t.Fatal(err)
	}
	app, err := v1rc3.ParseApplication(p.Files["margo.yaml"].Content)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	for _, q := range p.Parameters {
		if q.Required {
			values[q.Name] = "7"
		}
	}
	d, err := v1rc3.Build(app, app.Profiles[0].ID, values, v1rc3.Request{ID: "b5a1c8a0-6f3e-4c58-9a1e-0c9f5a3e7d11", Name: "web", DeviceID: "s/*"})
	if err != nil {
		t.Fatal(err)
	}
	plain, files := *d, map[string]archive.File{}
	plain.Spec.Parameters = maps.Clone(d.Spec.Parameters)
	maps.DeleteFunc(plain.Spec.Parameters, func(name string, _ v1rc3.Parameter) bool { return values[name] == nil })
	for name, content := range vendors {
		files[name] = archive.File{Mode: 0o644, Content: []byte(content)}
	}
	const override = "docker-compose.override.yml"
	if files["compose.yaml"] = files["docker-compose.yml"]; vendors[override] != "" {
		files["compose.yaml"] = archive.File{Mode: 0o644, Content: []byte("include: [{path: [docker-compose.yml, " + override + "]}]\n")}
	}
	want, err := containers(t, &plain, files)
	if err != nil {
		return "", err
	}
	inside := map[string]archive.File{}
	for name, f := range p.Files {
		if rest, ok := strings.CutPrefix(name, "components/web/"); ok {
			inside[rest] = f
		}
	}
	got, err := containers(t, d, inside)
	if err != nil {
		t.Fatalf("the vendor's files compile, and the package does not: %v\n%s", err, p.Files["margo.yaml"].Content)
	}
	return cmp.Diff(want, got), nil
}

// What a package runs with the defaults of its parameters is what the vendor's files run without
// any, in whatever form they ask for variables, and wherever.
func TestDefaultsRunWhatTheVendorRuns(t *testing.T) {
	t.Parallel()
	names := []string{"A", "B", "C", "D"}
	name := rapid.SampledFrom(names)
	var depth func(n int) *rapid.Generator[string]
	depth = func(n int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			word := rapid.SampledFrom([]string{"", "x", "1.10", "yes", "null", "a b", "{}", "{{}}", "}", "$$5", "$$$$", "a=b", "#1", "a #b", "'q'", `"q"`, `\`, "é", ":-", "?"}).Draw(t, "word")
			if n > 0 && rapid.Bool().Draw(t, "nested") {
				word += depth(n-1).Draw(t, "reference") + rapid.SampledFrom([]string{"", "y"}).Draw(t, "after")
			}
			operator := rapid.SampledFrom([]string{":-", ":-", "-", ":+", "+", ":?", "?"}).Draw(t, "operator")
			switch rapid.IntRange(0, 5).Draw(t, "form") {
			case 0:
				return "$" + name.Draw(t, "name")
			case 1:
				return "${" + name.Draw(t, "name") + "}"
			case 2:
				return "$${" + name.Draw(t, "name") + "}"
			default:
				return "${" + name.Draw(t, "name") + operator + word + "}"
			}
		})
	}
	reference := depth(2)
	text := rapid.Custom(func(t *rapid.T) string {
		text := rapid.SampledFrom([]string{"", "a", " a", "k=v ", "$$"}).Draw(t, "before")
		for range rapid.IntRange(1, 2).Draw(t, "references") {
			text += reference.Draw(t, "reference") + rapid.SampledFrom([]string{"", "b", "-", "}"}).Draw(t, "between")
		}
		return text
	})
	quoted := func(text string) string {
		b, err := json.Marshal(text)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	envFile := rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		given := map[string]bool{}
		for range rapid.IntRange(0, 4).Draw(t, "lines") {
			value := strings.ReplaceAll(text.Draw(t, "value"), "$$", "") // what that means depends on the quotes and the reader
			switch rapid.IntRange(0, 5).Draw(t, "quotes") {
			case 0:
				value = "'" + strings.ReplaceAll(value, "'", "") + "'"
			case 1:
				value = `"` + strings.NewReplacer(`"`, "", `\`, "").Replace(value) + `"`
			case 2:
				value = strings.TrimLeft(value, `'" `)
			default:
				value = rapid.SampledFrom([]string{"", "1", "a b", "x #y"}).Draw(t, "plain")
			}
			comment, name := rapid.SampledFrom([]string{"", "", "# "}).Draw(t, "comment"), rapid.SampledFrom(append(names, "E")).Draw(t, "name")
			if comment == "" && given[name] {
				continue
			}
			given[name] = given[name] || comment == ""
			fmt.Fprintf(&b, "%s%s=%s\n", comment, name, value)
		}
		return b.String()
	})
	special := rapid.SampledFrom([]string{"yes", "no", "1.10", "0644", "null", "", "~", "1e3", "true", "2026-01-01", "'null'"})
	compiled, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		all++
		var b strings.Builder
		fmt.Fprintf(&b, "services:\n  web:\n    image: \"vendor/web:%s\"\n", rapid.SampledFrom([]string{"1", "${TAG:-1.2}", "${TAG-2}", "${TAG:-${TAG2:-3}}", "v${TAG}"}).Draw(t, "tag"))
		list := rapid.Bool().Draw(t, "environment as a list")
		b.WriteString("    environment:\n")
		for i := range rapid.IntRange(1, 4).Draw(t, "environment") {
			key, value := fmt.Sprintf("X%d", i), special.Draw(t, "special")
			if rapid.Bool().Draw(t, "text") {
				value = quoted(text.Draw(t, "text"))
			}
			switch passed := rapid.IntRange(0, 4).Draw(t, "passed") == 0; {
			case list && passed:
				fmt.Fprintf(&b, "      - %s\n", names[i])
			case list:
				fmt.Fprintf(&b, "      - %s\n", quoted(key+"="+strings.Trim(value, `"`)))
			case passed:
				fmt.Fprintf(&b, "      %s:\n", names[i])
			default:
				fmt.Fprintf(&b, "      %s: %s\n", key, value)
			}
		}
		fmt.Fprintf(&b, "    command: [run, %s]\n    labels: {l: %s}\n", quoted(text.Draw(t, "command")), quoted(text.Draw(t, "label")))
		fmt.Fprintf(&b, "    ports: [%s]\n", quoted(rapid.SampledFrom([]string{"${PORT:-8080}:80", "${PORT}:80", "81:${INNER-81}", "${HOST:-127.0.0.1}:${PORT-82}:80"}).Draw(t, "port")))
		fmt.Fprintf(&b, "    volumes: [%s]\n", quoted(rapid.SampledFrom([]string{"${DIR:-./conf}:/conf:ro", "$PWD/conf:/conf:ro", "${DIR:-${PWD}/data}:/data", "${DIR:+$DIR/}v:/v"}).Draw(t, "volume")))
		vendors := map[string]string{"conf/a": "a", "conf/b": "b"}
		if rapid.Bool().Draw(t, "env_file") {
			b.WriteString("    env_file: [web.env]\n")
			vendors["web.env"] = envFile.Draw(t, "web.env")
		}
		if rapid.Bool().Draw(t, ".env") {
			vendors[".env"] = envFile.Draw(t, ".env")
		}
		b.WriteString("volumes: {v: {}}\n")
		vendors["docker-compose.yml"] = b.String()
		if _, err := packaging.FromCompose(folder(vendors), []string{"docker-compose.yml"}, packaging.Options{ID: "web"}); protocol.KindOf(err) == protocol.Invalid {
			return // a .env that is none
		}
		diff, err := compared(t, vendors)
		if err != nil {
			return // it does not run without the package either
		}
		compiled++
		if diff != "" {
			t.Fatalf("(-vendor +package):\n%s\n%s\n.env: %q\nweb.env: %q", diff, b.String(), vendors[".env"], vendors["web.env"])
		}
	})
	if compiled < all/4 {
		t.Errorf("only %d of %d files compile", compiled, all)
	}
}
