package intent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// What git brings is held to the rules of the API, and each mistake has its line.
func TestResolveHoldsAFileToTheRulesOfTheAPI(t *testing.T) {
	t.Parallel()
	app := application(t, meterV1)
	good := create(t, meterV1, Request{Profile: "small", Parameters: map[string]any{"serial": "7", "buses": []any{"a", "p"}}})
	raw, err := good.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Resolve(app, good, Installed(app, good.ID, []*v1rc3.Deployment{good}, of(app)), raw); err != nil {
		t.Fatalf("the API's own file: %v", err)
	}
	text := string(raw)
	for name, c := range map[string]struct{ from, to, want string }{
		"range":     {"value: '502'", `value: "99999"`, "spec.parameters.port.value: 99999 is above maxValue 65535"},
		"spelling":  {"value: '502'", `value: 0x1f`, `spec.parameters.port.value: want an integer, got "0x1f"`},
		"type":      {"value: '502'", `value: many`, `spec.parameters.port.value: want an integer, got "many"`},
		"list":      {`value: a,p`, `value: a,no`, `spec.parameters.buses.value: "no" is none of the options a,b,p,q,z`},
		"immutable": {"value: '7'", "value: '8'", `spec.parameters.serial.value: this parameter may not change after the first install; it is "7"`},
		"unknown":   {"    port:\n", "    prot:\n", "spec.parameters.prot.value: the application has no such parameter; it has buses, port, retention, serial"},
		"pointer":   {"pointer: PORT", "pointer: PROT", "spec.parameters.port.targets[0].components[0]: the application does not have the target PROT of component meter: its parameter goes to PORT of component meter"},
		"profile":   {"profile: small", "profile: tiny", `spec.x-colony-extensions.profile: application meter 1.0.0 has no profile "tiny"; it has cluster, small, large`},
	} {
		edited := strings.Replace(text, c.from, c.to, 1)
		if edited == text {
			t.Fatalf("%s: %q is not in\n%s", name, c.from, text)
		}
		d, err := v1rc3.ParseDeployment([]byte(edited))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err = Resolve(app, d, Installed(app, good.ID, []*v1rc3.Deployment{nil, good, d}, of(app)), []byte(edited))
		first, _, _ := strings.Cut(fmt.Sprint(err), "\n")
		if err == nil || !strings.HasPrefix(first, "line ") || !strings.HasSuffix(first, ": "+c.want) {
			t.Errorf("%s: %v, want line N: %s", name, err, c.want)
		}
	}
}

// with edits the file of a deployment.
func with(t *testing.T, d *v1rc3.Deployment, edit func(*v1rc3.Deployment)) *v1rc3.Deployment {
	t.Helper()
	edited := stored(t, d)
	edit(edited)
	return stored(t, edited)
}

// A parameter that a file leaves out has its default, which the import judged; one that has
// none is refused, whether the file names the profile or shows it by its components.
func TestResolveFillsInDefaults(t *testing.T) {
	t.Parallel()
	app := application(t, meterV1)
	required := application(t, strings.Replace(meterV1, "    value: \"0\"\n", "", 1))
	file := create(t, meterV1, Request{Profile: "large", Parameters: map[string]any{"port": 503}})
	without := func(names ...string) func(*v1rc3.Deployment) {
		return func(d *v1rc3.Deployment) {
			for _, name := range names {
				delete(d.Spec.Parameters, name)
			}
		}
	}
	unnamed := func(d *v1rc3.Deployment) { d.Spec.Colony = nil }
	for name, edit := range map[string]func(*v1rc3.Deployment){
		"some": without("retention", "serial"), "all but one": without("retention", "serial", "buses"),
		"none": without(), "no profile": func(d *v1rc3.Deployment) { unnamed(d); without("retention", "buses")(d) },
	} {
		edited := with(t, file, edit)
		got, err := Resolve(app, edited, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		diff(t, name, file.Spec.Parameters, got.Spec.Parameters)
	}
	for name, edit := range map[string]func(*v1rc3.Deployment){
		"profile named": without("serial"), "not named": func(d *v1rc3.Deployment) { unnamed(d); without("serial")(d) },
	} {
		edited := with(t, file, edit)
		raw, err := edited.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		_, err = Resolve(required, edited, nil, raw)
		if text := fmt.Sprint(err); !strings.HasPrefix(text, "line ") || !strings.HasSuffix(text, "spec.parameters.serial.value: required: the parameter has no default") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The targets of a file are those of the application, all of them and no other; its components
// are those of the profile.
func TestResolveHoldsTargetsToTheApplication(t *testing.T) {
	t.Parallel()
	two := strings.Replace(meterV1, "{pointer: PORT, components: [meter]}", "{pointer: PORT, components: [meter, archive]}", 1)
	for name, c := range map[string]struct {
		edit func(*v1rc3.Deployment)
		want string
	}{
		"another component": {
			func(d *v1rc3.Deployment) { d.Spec.Parameters["serial"].Targets[0].Components[0] = "archive" },
			"spec.parameters.serial.targets[0].components[0]: the application does not have the target SERIAL of component archive: its parameter goes to SERIAL of component meter",
		},
		"missing": {
			func(d *v1rc3.Deployment) {
				d.Spec.Parameters["port"].Targets[0].Components = d.Spec.Parameters["port"].Targets[0].Components[:1]
			},
			"spec.parameters.port.targets: the target PORT of component archive of the application is missing",
		},
		"of another profile": {
			func(d *v1rc3.Deployment) {
				d.Spec.Colony.Profile, d.Spec.Profile.Components = "small", d.Spec.Profile.Components[:1]
				d.Spec.Parameters["port"].Targets[0].Components = []string{"meter"}
				d.Spec.Parameters["retention"] = v1rc3.Parameter{Value: "3", Targets: []v1rc3.Target{{Pointer: "DAYS", Components: []string{"meter"}}}}
			},
			"spec.parameters.retention: the parameter goes to no component of profile small: leave it out",
		},
		"repository of another application": {
			func(d *v1rc3.Deployment) {
				d.Spec.Profile.Components[1].Properties.Repository = "oci://r.example/compose/pump"
			},
			"spec.deploymentProfile.components[1].properties.repository: component archive of application meter 1.0.0 is oci://r.example/compose/archive:1.0.0, not oci://r.example/compose/pump:1.0.0: name that, or the application whose component this is",
		},
		"revision of another version": {
			func(d *v1rc3.Deployment) { d.Spec.Profile.Components[0].Properties.Revision = "2.0.0" },
			"spec.deploymentProfile.components[0].properties.revision: component meter of application meter 1.0.0 is oci://r.example/compose/meter-large:1.0.0, not oci://r.example/compose/meter-large:2.0.0",
		},
		"another application, and no profile": {
			func(d *v1rc3.Deployment) {
				d.Spec.Colony.Profile = ""
				d.Spec.Profile.Components[0].Properties.Repository = "oci://r.example/compose/pump"
			},
			"spec.deploymentProfile.components: application meter 1.0.0 has no profile of type compose with these components; it has cluster (helm) with chart from oci://r.example/charts/meter:1.0.0; small (compose) with meter from",
		},
		"components": {
			func(d *v1rc3.Deployment) { d.Spec.Colony.Profile = "small" },
			"spec.deploymentProfile.components: the profile small of application meter 1.0.0 has the components meter, not archive, meter",
		},
	} {
		edited := with(t, create(t, two, Request{Profile: "large"}), c.edit)
		raw, err := edited.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		_, err = Resolve(application(t, two), edited, nil, raw)
		if text := fmt.Sprint(err); !strings.HasPrefix(text, "line ") || !strings.Contains(text, ": "+c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	// Targets may be split or joined.
	edited := with(t, create(t, two, Request{Profile: "large"}), func(d *v1rc3.Deployment) {
		p := d.Spec.Parameters["port"]
		p.Targets = []v1rc3.Target{{Pointer: "PORT", Components: []string{"archive"}}, {Pointer: "PORT", Components: []string{"meter"}}}
		d.Spec.Parameters["port"] = p
	})
	if _, err := Resolve(application(t, two), edited, nil, nil); err != nil {
		t.Errorf("split targets: %v", err)
	}
}

// of returns one application for every revision.
func of(app *v1rc3.Application) func(*v1rc3.Deployment) *v1rc3.Application {
	return func(*v1rc3.Deployment) *v1rc3.Application { return app }
}

// The first install decides, whatever stood in the file since.
func TestInstalledIsWhatWasInstalledFirst(t *testing.T) {
	t.Parallel()
	app := application(t, meterV1)
	with := func(id, serial string) *v1rc3.Deployment {
		d := create(t, meterV1, Request{Profile: "small", Parameters: map[string]any{"serial": "x"}})
		d.ID = id
		p := d.Spec.Parameters["serial"]
		p.Value = serial
		d.Spec.Parameters["serial"] = p
		return d
	}
	also := func(d *v1rc3.Deployment, name, value string) *v1rc3.Deployment {
		d.Spec.Parameters[name] = v1rc3.Parameter{Value: value, Targets: []v1rc3.Target{{Pointer: "X", Components: []string{"meter"}}}}
		return d
	}
	without := func(d *v1rc3.Deployment) *v1rc3.Deployment {
		delete(d.Spec.Parameters, "serial")
		return d
	}
	unknown := also(with(target.ID, "1"), "port", "99999") // of a version whose rules are unknown
	rules := func(d *v1rc3.Deployment) *v1rc3.Application {
		if d == unknown {
			return nil
		}
		return app
	}
	for name, c := range map[string]struct {
		revisions []*v1rc3.Deployment
		want      map[string]any
	}{
		"none":                      {nil, map[string]any{}},
		"changed by hand":           {[]*v1rc3.Deployment{with(target.ID, "1"), with(target.ID, "2"), nil, with(target.ID, "3")}, map[string]any{"serial": "1"}},
		"another before":            {[]*v1rc3.Deployment{with("other", "1"), nil, with(target.ID, "2")}, map[string]any{"serial": "2"}},
		"never valid":               {[]*v1rc3.Deployment{with(target.ID, strings.Repeat("9", 30)), with(target.ID, "2")}, map[string]any{"serial": "2"}},
		"refused for another value": {[]*v1rc3.Deployment{also(with(target.ID, "1"), "port", "99999"), with(target.ID, "2")}, map[string]any{"serial": "2"}},
		"refused for a parameter":   {[]*v1rc3.Deployment{also(with(target.ID, "1"), "prot", "1"), with(target.ID, "2")}, map[string]any{"serial": "2"}},
		"a default left out":        {[]*v1rc3.Deployment{without(with(target.ID, "1")), with(target.ID, "2")}, map[string]any{"serial": "0"}},
		"of another version":        {[]*v1rc3.Deployment{unknown, with(target.ID, "2")}, map[string]any{"serial": "1"}},
	} {
		if diff := cmp.Diff(c.want, Installed(app, target.ID, c.revisions, rules)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
