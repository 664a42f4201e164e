package registry

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/colonyfleet/colony/co/registry/artifact"
)

// TestTheDocumentedPushByORAS pushes what the documentation's commands say, by the library of ORAS, and reads it as an import does.
func TestTheDocumentedPushByORAS(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/packaging.md")
	must(t, err)
	_, section, _ := strings.Cut(string(doc), "### By ORAS")
	section, _, _ = strings.Cut(section, "\n## ")
	dir := t.TempDir()
	for name, content := range map[string]string{"margo.yaml": samplePackage, "resources/description.md": "# Hello\n", "components/meter/compose.yaml": "services: {}\n"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, "meter", name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "meter", name), []byte(content), 0o600))
	}
	address, _ := serve(t, t.TempDir())
	at, ran := dir, 0
	for line := range strings.Lines(section) {
		line, _ = strings.CutPrefix(strings.TrimSpace(line), "$ ")
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "cd "):
			at = filepath.Join(at, words[1])
		case strings.HasPrefix(line, "tar "):
			cmd := exec.CommandContext(t.Context(), "tar", words[1:]...)
			cmd.Dir = at
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", line, err, out)
			}
		case strings.HasPrefix(line, "oras push "):
			orasPush(t, at, address, words[2:])
			ran++
		}
	}
	if ran != 2 {
		t.Fatalf("%d commands of ORAS, want 2", ran)
	}
	c := client(t, address)
	files, _ := pull(t, c, "oci://registry.colony/meter:1.0.0")
	if string(files[artifact.DescriptionFile]) != samplePackage || len(files["resources/description.md"]) == 0 {
		t.Errorf("the package has %d files: %q", len(files), files)
	}
	tgz, _, err := c.Archive(t.Context(), "oci://registry.colony/meter/compose", "1.0.0")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "tar", "-tz")
	cmd.Stdin = bytes.NewReader(tgz)
	if out, err := cmd.Output(); err != nil || string(out) != "meter/\nmeter/compose.yaml\n" {
		t.Errorf("the archive has %q, %v", out, err)
	}
}

// orasPush does what oras push does with its arguments in dir; the registry is the one at address.
func orasPush(t *testing.T, dir, address string, args []string) {
	t.Helper()
	store, ctx := memory.New(), t.Context()
	kind, ref := "", ""
	options := oras.PackManifestOptions{ManifestAnnotations: map[string]string{}}
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--plain-http":
		case args[i] == "--artifact-type":
			i++
			kind = args[i]
		case args[i] == "--annotation":
			i++
			key, value, _ := strings.Cut(args[i], "=")
			options.ManifestAnnotations[key] = value
		case ref == "":
			ref = args[i]
		default:
			file, media, _ := strings.Cut(args[i], ":")
			content, err := os.ReadFile(filepath.Join(dir, file))
			must(t, err)
			layer, err := oras.PushBytes(ctx, store, media, content)
			must(t, err)
			layer.Annotations = map[string]string{ocispec.AnnotationTitle: file}
			options.Layers = append(options.Layers, layer)
		}
	}
	made, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, kind, options)
	must(t, err)
	must(t, store.Tag(ctx, made, "1.0.0"))
	path, ok := strings.CutPrefix(ref, "127.0.0.1:8080/")
	name, tag, tagged := strings.Cut(path, ":")
	if !ok || !tagged || tag != "1.0.0" {
		t.Fatalf("pushes %s, want something of 127.0.0.1:8080 with the tag 1.0.0", ref)
	}
	r, err := remote.NewRepository(address + "/" + name)
	must(t, err)
	r.PlainHTTP = true
	_, err = oras.Copy(ctx, store, tag, r, tag, oras.DefaultCopyOptions)
	must(t, err)
}
