package sitefile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

const maintained = `# ours
apiVersion: colony/v1
kind: Site
metadata:
  id: plant
spec:
  data:
    rules: [] # none yet
  maintenance:
    timeZone: Europe/Berlin
    windows:
      - days: [sat, sun]
        start: "22:00"
        duration: 4h
      - start: "03:30"
        duration: 90m
`

// TestMaintenance reads the windows of a site, sets others in a file with comments and in none, and removes them.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	c, err := sitefile.Parse("plant", []byte(maintained))
	want := &protocol.Maintenance{TimeZone: "Europe/Berlin", Windows: []protocol.Window{
		{Days: 1<<time.Saturday | 1<<time.Sunday, Start: 22 * 60, Minutes: 240}, {Start: 3*60 + 30, Minutes: 90},
	}}
	if diff := cmp.Diff(want, c.Maintenance); err != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	again, err := sitefile.Marshal("plant", nil, c.Further())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := sitefile.Parse("plant", again); err != nil || !cmp.Equal(want, second.Maintenance) {
		t.Errorf("written anew: %v\n%s", err, again)
	}
	other := &sitefile.Maintenance{TimeZone: "UTC", Windows: []sitefile.Window{{Start: "00:00", Duration: "7d"}}}
	for name, raw := range map[string]string{"a file": maintained, "no file": "", "short": "{apiVersion: colony/v1, kind: Site, metadata: {id: plant}, spec: {}}\n"} {
		content := []byte(raw)
		for _, m := range []*sitefile.Maintenance{other, nil, nil, other} {
			if content, err = sitefile.SetMaintenance("plant", content, m); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			c, err := sitefile.Parse("plant", content)
			if diff := cmp.Diff(m, sitefile.MaintenanceOf(c.Maintenance)); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s\n%s", name, err, diff, content)
			}
		}
		if raw == maintained && (!strings.Contains(string(content), "# ours") || !strings.Contains(string(content), "# none yet")) {
			t.Errorf("comments are lost:\n%s", content)
		}
	}
}

func TestBadMaintenance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"a time zone of nobody":    {"Europe/Berlin", "Europe/Berlyn", `line 10: spec.maintenance.timeZone: time zone "Europe/Berlyn" is not known`},
		"no time zone":             {"    timeZone: Europe/Berlin\n", "", "spec.maintenance.timeZone: required, and missing"},
		"a day that is none":       {"[sat, sun]", "[sat, sunday]", `line 12: spec.maintenance.windows[0].days: day "sunday": want one of sun, mon`},
		"a day twice":              {"[sat, sun]", "[sat, sat]", "stands twice"},
		"no day":                   {"[sat, sun]", "[]", "leave days out for each day"},
		"a start that is a number": {`"22:00"`, "22", "want a text, got"},
		"a start that is none":     {`"22:00"`, `"25:00"`, `line 13: spec.maintenance.windows[0].start: time of the day "25:00"`},
		"no start":                 {"        start: \"22:00\"\n", "", "spec.maintenance.windows[0].start: required, and missing"},
		"too short":                {"4h", "1m", "spec.maintenance.windows[0].duration: 1m: want whole minutes, from 5m to 7d"},
		"too long":                 {"4h", "8d", "want whole minutes, from 5m to 7d"},
		"seconds":                  {"4h", "4h30s", "want whole minutes"},
		"a duration that is none":  {"4h", "long", "want a duration such as"},
		"an unknown key":           {"start: \"03:30\"", "begin: \"03:30\"", "unknown key; known here: days, start, duration"},
	} {
		if _, err := sitefile.Parse("plant", []byte(strings.Replace(maintained, c.old, c.new, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	none := maintained[:strings.Index(maintained, "    windows:")] + "    windows: []\n"
	if _, err := sitefile.Parse("plant", []byte(none)); err == nil || !strings.Contains(err.Error(), "nothing would ever be updated") {
		t.Errorf("no window: %v", err)
	}
	if _, err := sitefile.SetMaintenance("plant", nil, &sitefile.Maintenance{TimeZone: "Europe/Berlyn"}); err == nil {
		t.Error("windows that are not valid are written")
	}
}

// TestNoDayIsNotEachDay: what the API was given with an empty list of days does not become a window of each day.
func TestNoDayIsNotEachDay(t *testing.T) {
	t.Parallel()
	m := &sitefile.Maintenance{TimeZone: "UTC", Windows: []sitefile.Window{{Days: []string{}, Start: "22:00", Duration: "4h"}}}
	if _, err := sitefile.SetMaintenance("plant", nil, m); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("windows of no day: %v", err)
	}
}
