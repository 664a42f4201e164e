package intent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// What git brings is held to the rules of the API, and each mistake has its line.
func TestValidateHoldsAFileToTheRulesOfTheAPI(t *testing.T) {
	t.Parallel()
	app := application(t, meterV1)
	good := create(t, meterV1, Request{Profile: "small", Parameters: map[string]any{"serial": "7", "buses": []any{"a", "p"}}})
	raw, err := good.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := Validate(app, good, Installed(app, good.ID, []*v1rc3.Deployment{good}, of(app)), raw); err != nil {
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
		err = Validate(app, d, Installed(app, good.ID, []*v1rc3.Deployment{nil, good, d}, of(app)), []byte(edited))
		if err == nil || !strings.HasPrefix(err.Error(), "line ") || !strings.HasSuffix(err.Error(), ": "+c.want) {
			t.Errorf("%s: %v, want line N: %s", name, err, c.want)
		}
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
	unknown := also(with(target.ID, "1"), "port", "99999") // of a version whose rules nobody has
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
		"of another version":        {[]*v1rc3.Deployment{unknown, with(target.ID, "2")}, map[string]any{"serial": "1"}},
	} {
		if diff := cmp.Diff(c.want, Installed(app, target.ID, c.revisions, rules)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
