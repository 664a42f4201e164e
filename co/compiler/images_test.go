package compiler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// What is known of an image before a deployment: with the defaults of parameters, of .env and of
// the file, and whether a deployment may name another registry.
func TestImagesBeforeADeployment(t *testing.T) {
	t.Parallel()
	compose := `services:
  plain: {image: nginx:1}
  tag: {image: "nginx:${TAG}"}
  required: {image: "ghcr.io/a/b:${NEEDED}"}
  env: {image: "ghcr.io/a/b:${FROM_ENV}"}
  own: {image: "ghcr.io/a/b:${OWN:-7}"}
  registry: {image: "${REGISTRY:-quay.io}/c:3"}
  moved: {image: "${MIRROR:-quay.io}/c:3"}
  whole: {image: "${WHOLE}"}
  port: {image: "r.example:${NEEDED}/c"}
  name: {image: "ngin${SUFFIX}"}
  digest: {image: "nginx@sha256:${NEEDED}"}
`
	variables := []v1rc3.Variable{by("TAG", "1.25"), by("REGISTRY", "docker.io"), by("SUFFIX", "x"), by("OWN"), {Name: "NEEDED", Parameter: "n", Required: true}, {Name: "WHOLE", Parameter: "w", Required: true}}
	var got []string
	for _, i := range Images("web", composeArchive(t, compose, map[string]string{".env": "FROM_ENV=5\n"}), variables) {
		got = append(got, fmt.Sprintf("%s: %q %q %t", i.At, i.Reference, i.Known, i.Settled))
	}
	slices.Sort(got)
	want := []string{
		`line 2: services.plain.image: "nginx:1" "nginx:1" true`,
		`line 3: services.tag.image: "nginx:1.25" "nginx:1.25" true`,
		`line 4: services.required.image: "" "ghcr.io/a/b:x" true`,
		`line 5: services.env.image: "ghcr.io/a/b:5" "ghcr.io/a/b:5" true`,
		`line 6: services.own.image: "ghcr.io/a/b:7" "ghcr.io/a/b:7" true`,
		`line 7: services.registry.image: "docker.io/c:3" "docker.io/c:3" false`,
		`line 8: services.moved.image: "quay.io/c:3" "quay.io/c:3" true`,
		`line 9: services.whole.image: "" "x" false`,
		`line 10: services.port.image: "" "r.example:x/c" false`,
		`line 11: services.name.image: "nginx" "nginx" false`,
		`line 12: services.digest.image: "" "nginx@sha256:x" true`,
	}
	slices.Sort(want)
	if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(got, "\n")); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}
