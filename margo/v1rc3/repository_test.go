package v1rc3

import (
	"strings"
	"testing"
)

// A repository has one spelling: by another one, a component of one application would pass for
// that of none.
func TestRepositoryHasOneSpelling(t *testing.T) {
	t.Parallel()
	app, err := ParseApplication([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Build(app, "one", nil, Request{ID: deployID, Name: "d", DeviceID: "plant/n1"})
	if err != nil {
		t.Fatal(err)
	}
	written, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const own = "oci://registry.example/web"
	parse := func(repository string) (asApplication, asDeployment error) {
		quoted := "'" + repository + "'"
		_, asApplication = ParseApplication([]byte(strings.Replace(small, own, quoted, 1)))
		_, asDeployment = ParseDeployment([]byte(strings.Replace(string(written), own, quoted, 1)))
		return asApplication, asDeployment
	}
	for _, repository := range []string{
		"oci://registry.colony/./app2/compose", "oci://registry.colony//app2/compose", "oci://registry.colony/app2/./compose",
		"oci://registry.colony/app1/../app2/compose", "oci://registry.colony/app2/compose/", "oci://registry.colony/app2//compose",
		"oci://registry.colony/app2/compose/.", "oci://registry.colony/app2%2Fcompose", "oci://registry.colony/app2/compose?a=b",
		"oci://registry.colony/app2/compose#a", "oci://registry.colony/app2/compose:1.0.0", "oci://registry.colony/app2/compose@sha256:1",
		"oci://registry.colony/app2\\compose", "oci://registry.colony/ app2/compose", "oci://registry.colony/app2/compose ",
		"oci://Registry.colony/app2/compose", "oci://registry.colony./app2/compose", "oci://user@registry.colony/app2/compose",
		"oci://registry.colony:/app2/compose", "oci://registry.colony:080/app2/compose", "OCI://registry.colony/app2/compose",
		"oci://registry.colony/App2/compose", "oci://registry.colony/app2___x/compose", "oci://registry.colony/-app2",
		"oci://registry.colony/", "oci://registry.colony", "oci:///app2/compose", "oci://oci://registry.colony/app2", "oci://",
		"registry.colony/app2/compose",
	} {
		application, deployment := parse(repository)
		for of, err := range map[string]error{
			"line 15: deploymentProfiles[0]":  application,
			"line 13: spec.deploymentProfile": deployment,
		} {
			want := of + `.components[0].properties.repository: `
			if got := strings.Join(problemLines(t, err), "\n"); !strings.HasPrefix(got, want) || !strings.Contains(got, ": want oci://host/path, with a path of lower-case letters") {
				t.Errorf("%s: %q, want %s", repository, got, want)
			}
		}
	}
	for _, repository := range []string{
		"oci://registry.colony/app2", "oci://registry.colony/samples/compose/hello", "oci://127.0.0.1:5000/app2/compose",
		"oci://[fd00::1]:5000/app2", "oci://localhost/app2", "oci://northstarida.azurecr.io/charts/hello-world",
		"oci://my--registry.example:443/a.b/c_d/e__f/g---h/0",
	} {
		if application, deployment := parse(repository); application != nil || deployment != nil {
			t.Errorf("%s: %v, %v; want it read", repository, application, deployment)
		}
	}
}
