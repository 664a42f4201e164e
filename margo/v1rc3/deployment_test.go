package v1rc3

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/document"
)

var request = Request{ID: "a3e2f5dc-912e-494f-8395-52cf3769bc06", Name: "line-1", DeviceID: "plant/*"}

func TestParseDeploymentRoundTrip(t *testing.T) {
	t.Parallel()
	d, err := ParseDeployment(sample(t, "applicationdeployment-helm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Spec.Parameters["pollFrequency"]; got.Value != "120" || len(got.Targets[0].Components) != 2 {
		t.Errorf("pollFrequency read as %+v", got)
	}
	b, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseDeployment(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if diff := cmp.Diff(d, again); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(b), `value: '120'`) && !strings.Contains(string(b), `value: "120"`) {
		t.Errorf("the text 120 became a number:\n%s", b)
	}
	if _, _, ok := d.Device(); ok {
		t.Error("edge-01 has no child device, and was split")
	}
}

func TestBuildKeepsWhatBelongsToTheProfile(t *testing.T) {
	t.Parallel()
	app := parse(t, "digitron-helm-and-compose.margo.yaml")
	values := map[string]any{
		"idpProvider": "aad", "idpClientId": "123-ABC", "idpUrl": "https://123-abc.com",
		"adminName": "Some One", "adminPrincipalName": "someone@somewhere.com", "pollFrequency": 120,
	}
	d, err := Build(app, "com-northstartida-digitron-orchestrator-compose-a", values, request)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Parameter{}
	for name, p := range map[string][2]string{
		"idpName": {"IDP_NAME", "test"}, "idpProvider": {"IDP_PROVIDER", "aad"}, "idpClientId": {"IDP_CLIENT_ID", "123-ABC"},
		"idpUrl": {"IDP_URL", "https://123-abc.com"}, "adminName": {"ADMIN_NAME", "Some One"},
		"adminPrincipalName": {"ADMIN_PRINCIPALNAME", "someone@somewhere.com"}, "pollFrequency": {"POLL_FREQUENCY", "120"},
	} {
		want[name] = Parameter{Value: p[1], Targets: []Target{{Pointer: p[0], Components: []string{"digitron-orchestrator-docker"}}}}
	}
	if diff := cmp.Diff(want, d.Spec.Parameters); diff != "" {
		t.Errorf("compose parameters (-want +got):\n%s", diff)
	}

	d, err = Build(app, "com-northstartida-digitron-orchestrator-helm-a", values, request)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Spec.Parameters["pollFrequency"].Value; got != int64(120) {
		t.Errorf("pollFrequency for helm is %#v, want the number of its schema", got)
	}
	if diff := cmp.Diff(app.Profiles[0].Constraints, d.Spec.Profile.Constraints); diff != "" {
		t.Errorf("constraints were changed (-want +got):\n%s", diff)
	}
	if got := d.Spec.Colony; got.ApplicationVersion != "1.2.1" || got.Profile != app.Profiles[0].ID {
		t.Errorf("extensions are %+v", got)
	}
	if _, ok := d.Spec.Parameters["siteId"]; ok {
		t.Error("siteId has neither a value nor a default, and was kept")
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	app := parse(t, "digitron-helm-and-compose.margo.yaml")
	_, err := Build(app, "com-northstartida-digitron-orchestrator-compose-a",
		map[string]any{"idpProvider": "aad", "idpClientId": "x", "idpUrl": "ftp://x", "pollFrequency": "often", "colour": 1},
		Request{ID: "1", Name: "x", DeviceID: "plant/*/x"})
	want := []string{
		"values.colour: the application has no such parameter; it has adminName, adminPrincipalName, cpuLimit, idpClientId, idpName, idpProvider, idpUrl, memoryLimit, pollFrequency, siteId",
		`values.idpUrl: "ftp://x" does not match ^(http(s):\/\/.)[-a-zA-Z0-9@:%._\+~#=]{2,256}\.[a-z]{2,6}\b([-a-zA-Z0-9@:%_\+.~#?&//=]*)$`,
		`values.pollFrequency: want an integer, got "often"`,
		"values.adminName: required: the parameter has no default",
		"values.adminPrincipalName: required: the parameter has no default",
		`id: "1": want a UUID in lower case`,
		`metadata.deviceId: "plant/*/x": want <site>/<node>, or <site>/* for any of its nodes`,
	}
	if diff := cmp.Diff(want, problemLines(t, err)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if _, err = Build(app, "other", nil, request); err == nil || !strings.Contains(err.Error(), `no profile "other"`) {
		t.Errorf("an unknown profile: %v", err)
	}
}

func TestBuildCopiesExtensions(t *testing.T) {
	t.Parallel()
	doc := strings.Replace(small, "id: app\n", "id: app\nx-root-extensions: {a: 1}\n", 1)
	doc = strings.Replace(doc, "    id: one\n", "    id: one\n    x-profile-extensions: {b: [x]}\n", 1)
	doc = strings.Replace(doc, "- name: web\n", "- name: web\n        x-component-extensions: {c: 'yes'}\n", 1)
	app, err := ParseApplication([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	rollback := false
	r := request
	r.Colony = Extensions{Selector: map[string]string{"line": "1"}, Replicas: 2, Policy: &Policy{Attempts: 2, Backoff: Duration(90e9), Rollback: &rollback, MinHealthy: Duration(30e9)}, Retry: 1}
	d, err := Build(app, "one", nil, r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const want = `id: a3e2f5dc-912e-494f-8395-52cf3769bc06
metadata:
  name: line-1
  namespace: colony
  deviceId: plant/*
spec:
  applicationId: app
  deploymentProfile:
    type: compose
    components:
    - name: web
      properties:
        repository: oci://registry.example/web
        revision: 1.0.0
      x-component-extensions: {c: 'yes'}
    x-profile-extensions: {b: [x]}
  parameters:
    port:
      value: '8080'
      targets:
      - pointer: PORT
        components:
        - web
  x-colony-extensions:
    applicationVersion: '1.0'
    profile: one
    selector:
      line: '1'
    replicas: 2
    policy:
      attempts: 2
      backoff: 1m30s
      rollback: false
      minHealthy: 30s
    retry: 1
`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	again, err := ParseDeployment(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, again); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
	if site, node, ok := again.Device(); site != "plant" || node != "" || !ok {
		t.Errorf("device is %q %q %v", site, node, ok)
	}
}

func TestParseDeploymentNamesEachMistake(t *testing.T) {
	t.Parallel()
	good := string(sample(t, "applicationdeployment-helm.yaml"))
	for name, c := range map[string]struct{ old, new, want string }{
		"id":             {"a3e2f5dc-912e", "a3e2f5dc-912", "id: \"a3e2f5dc-912-494f-8395-52cf3769bc06\": want a UUID in lower case"},
		"profile id":     {"type: helm", "type: helm\n        id: x", "spec.deploymentProfile.id: unknown key"},
		"target":         {"                    - digitron-orchestrator\n        adminPrin", "                    - other\n        adminPrin", `the profile has no component "other"`},
		"value":          {"value: Some One", "value:", "spec.parameters.adminName.value: required, and missing"},
		"our extension":  {"    parameters:", "    x-colony-extensions: {replcas: 2}\n    parameters:", "spec.x-colony-extensions.replcas: unknown key"},
		"our minHealthy": {"    parameters:", "    x-colony-extensions: {policy: {minHealthy: -1s}}\n    parameters:", `spec.x-colony-extensions.policy.minHealthy: duration "-1s"`},
		"our backoff":    {"    parameters:", "    x-colony-extensions: {policy: {backoff: soon}}\n    parameters:", `spec.x-colony-extensions.policy.backoff: duration "soon"`},
		"memory":         {"1024Mi", "1 GB", `spec.deploymentProfile.deviceConstraints.capacityRequirements.memory: "1 GB": want a size such as 512Mi (Ki, Mi, Gi)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc := strings.Replace(good, c.old, c.new, 1)
			if doc == good {
				t.Fatalf("the document has no %q", c.old)
			}
			_, err := ParseDeployment([]byte(doc))
			if got := strings.Join(problemLines(t, err), "\n"); !strings.Contains(got, c.want) {
				t.Errorf("problems:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

// TestRollbackOfBefore reads a mark that does not say of which content it is.
func TestRollbackOfBefore(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]string{"true": "", "false": "", "sha256:1": "sha256:1"} {
		top, d, err := document.Read([]byte("rollback: "+mark+"\n"), isOpen)
		if err != nil {
			t.Fatal(err)
		}
		if got := readExtensions(top); got.Rollback != want || d.Err() != nil {
			t.Errorf("rollback: %s is read as %q, %v; want %q", mark, got.Rollback, d.Err(), want)
		}
	}
}
