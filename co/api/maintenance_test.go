package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/repo/sitefile"
)

// TestMaintenance sets the windows of a site, keeps them where its file is missing, and removes them.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	const url = "/api/v1/sites/home/maintenance"
	want := sitefile.Maintenance{TimeZone: "Europe/Berlin", Windows: []sitefile.Window{{Days: []string{"sat", "sun"}, Start: "22:00", Duration: "4h"}, {Start: "02:00", Duration: "1h30m"}}}
	show := func() (got sitedata.SiteMaintenance) {
		t.Helper()
		w.get(url).into(http.StatusOK, &got)
		return got
	}
	if got := show(); got.Maintenance != nil || !got.Open || got.ChangesAt != nil {
		t.Errorf("without windows: %+v", got)
	}
	w.do(http.MethodDelete, url, nil).into(http.StatusNoContent, nil)
	w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, nil)
	w.do(http.MethodPut, url, want).into(http.StatusNoContent, nil)
	recorded := func() bool {
		d, err := w.store.SiteData(t.Context(), "home")
		return err == nil && d.Maintenance != nil && len(d.Rules) == 2
	}
	w.eventually(recorded)
	got := show()
	diff(t, "windows", &want, got.Maintenance)
	if got.ChangesAt == nil || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	w.do(http.MethodPut, url, want).into(http.StatusNoContent, nil)
	w.push("Remove the file", map[string][]byte{"sites/home/site.yaml": nil})
	w.eventually(func() bool {
		var held sitedata.DataRules
		w.get(rulesURL).into(http.StatusOK, &held)
		return strings.Contains(held.Problem, "is missing") && recorded()
	})
	if got := show(); !strings.Contains(got.Problem, "is missing") {
		t.Errorf("of a file that is missing: %+v", got)
	}
	diff(t, "windows of a file that is missing", &want, show().Maintenance)
	w.push("Spoil the file", map[string][]byte{"sites/home/site.yaml": []byte("kind: Site\n")})
	w.eventually(func() bool { return strings.Contains(show().Problem, "apiVersion") && recorded() })
	diff(t, "windows of a bad file", &want, show().Maintenance)
	w.do(http.MethodPut, rulesURL, map[string]any{"rules": []any{}}).into(http.StatusOK, nil) // begins from what is in force
	diff(t, "windows after a change of the rules", &want, show().Maintenance)
	w.push("Spoil the file", map[string][]byte{"sites/home/site.yaml": []byte("kind: Site\n")})
	w.do(http.MethodPut, "/api/v1/sites/home/exec", map[string]any{"allowed": false}).into(http.StatusNoContent, nil)
	diff(t, "windows after programs were refused", &want, show().Maintenance)
	for name, tt := range map[string]struct {
		body any
		want string
	}{
		"nothing":       {map[string]any{}, "body: expected required property timeZone to be present"},
		"no window":     {sitefile.Maintenance{TimeZone: "UTC", Windows: []sitefile.Window{}}, "body.windows: expected array length >= 1"},
		"a time zone":   {sitefile.Maintenance{TimeZone: "Europe/Berlyn", Windows: want.Windows}, `body.timeZone: time zone "Europe/Berlyn" is not known`},
		"a start":       {sitefile.Maintenance{TimeZone: "UTC", Windows: []sitefile.Window{{Start: "22", Duration: "4h"}}}, `body.windows[0].start: time of the day "22"`},
		"a duration":    {sitefile.Maintenance{TimeZone: "UTC", Windows: []sitefile.Window{{Start: "22:00", Duration: "4"}}}, `body.windows[0].duration: "4": want a duration`},
		"a day":         {map[string]any{"timeZone": "UTC", "windows": []any{map[string]any{"days": []string{"sunday"}, "start": "22:00", "duration": "4h"}}}, "body.windows[0].days[0]"},
		"an other site": {nil, ""},
	} {
		if tt.want == "" {
			w.do(http.MethodPut, "/api/v1/sites/nowhere/maintenance", want).fails(http.StatusNotFound, "nowhere")
			continue
		}
		t.Run(name, func(t *testing.T) {
			a := w.do(http.MethodPut, url, tt.body)
			a.t = t
			a.fails(http.StatusUnprocessableEntity, tt.want)
		})
	}
	w.do(http.MethodDelete, url, nil).into(http.StatusNoContent, nil)
	if got := show(); got.Maintenance != nil {
		t.Errorf("once they are removed: %+v", got)
	}
}
