package driver_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/driver"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func pageOf(n int) fleet.Page { return fleet.Page{Limit: n} }

// TestThePlanIsWhatIsDone compares what a plan says with what then happens.
func TestThePlanIsWhatIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.commit(map[string]string{"deployments/site-009/meter/deployment.yaml": strings.ReplaceAll(ownDeployment, "SITE", "site-009")})
	w.set(file("1.0.0", `{sites: ["*"], except: [site-000, site-001]}`, ""))
	w.reaches(1, rollout.Done, "")
	next := fleetfile.Files{
		File:       file("1.0.0", `{sites: ["*"], except: [site-001, site-002]}`, "    waves: [{percent: 30}, {percent: 100}]\n"),
		Exceptions: map[protocol.SiteID]string{"site-003": "apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: site-003}\nspec: {parameters: {port: 503}}\n"},
	}
	out, err := w.driver.Plan(t.Context(), "meter", next)
	if err != nil {
		t.Fatal(err)
	}
	want := map[rollout.Effect]int{rollout.Place: 1, rollout.Update: 1, rollout.Same: 5, rollout.Remove: 1, rollout.Conflict: 1}
	if !maps.Equal(out.Effects, want) || len(out.Sites) != 9 || len(out.Waves) != 2 || out.Waves[0].Sites != 3 || out.Waves[1].Sites != 5 {
		t.Errorf("%+v", out)
	}
	if nodes := (map[rollout.Effect]int{rollout.Place: 1, rollout.Update: 1, rollout.Same: 5, rollout.Remove: 1}); !maps.Equal(out.Nodes, nodes) || out.LookedAt != 9 || !out.Sites[0].Online {
		t.Errorf("nodes %v of %d sites; %+v", out.Nodes, out.LookedAt, out.Sites[0])
	}
	planned := map[protocol.SiteID]int{}
	for _, s := range out.Sites {
		planned[s.Site] = s.Wave
	}
	if w.rollout().Revision != 1 {
		t.Error("a plan makes a revision")
	}
	files := map[string]string{}
	for p, content := range next.Paths("meter") {
		files[p] = string(content)
	}
	w.commit(files)
	w.reaches(2, rollout.Done, "")
	members, err := w.rollouts.Members(t.Context(), "meter")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.State != rollout.SiteLeft && planned[m.Site] != m.Wave {
			t.Errorf("%s is in wave %d, planned %d", m.Site, m.Wave, planned[m.Site])
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range out.Sites {
		given := len(w.sites[s.Site].versions)
		wanted := map[rollout.Effect]int{rollout.Place: 1, rollout.Update: 2, rollout.Same: 1, rollout.Remove: 1, rollout.Conflict: 1}[s.Effect]
		if given != wanted {
			t.Errorf("%s (%s) was given %d versions, want %d", s.Site, s.Effect, given, wanted)
		}
	}
}

// TestThePlanSaysWhatWaits compares which removals a plan says wait for a person with those that then do.
func TestThePlanSaysWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	next := fleetfile.Files{File: file("1.1.0", `{sites: [site-000]}`, "")}
	out, err := w.driver.Plan(t.Context(), "meter", next)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Held) != 1 || out.Held[0].Sites != 3 || out.Sites[0].Site != "site-001" || out.Sites[0].From != "1.0.0" || out.Sites[3].To != "1.1.0" {
		t.Fatalf("%+v", out)
	}
	w.set(next.File)
	w.reaches(2, rollout.Done, "")
	var held []protocol.SiteID
	w.eventually("the removals wait", func() bool {
		standing, err := w.proposals.Standing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = nil
		for _, v := range standing {
			if v.Cause != out.Held[0].Cause {
				t.Errorf("%s: %s, planned %s", v.Site, v.Cause, out.Held[0].Cause)
			}
			held = append(held, v.Site)
		}
		return len(held) == out.Held[0].Sites
	})
	for _, s := range out.Sites {
		if slices.Contains(held, s.Site) != (s.Held != "") {
			t.Errorf("%s: planned %q, and %v wait", s.Site, s.Held, held)
		}
	}
}

func TestAPlanSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	bad := "apiVersion: colony/v1\nkind: FleetException\nmetadata: {site: SITE}\nspec: {parameters: {prot: 503}}\n"
	for name, c := range map[string]struct {
		files fleetfile.Files
		want  []string
	}{
		"no such version": {fleetfile.Files{File: file("2.0.0", all, "")}, []string{"spec.application", "no version 2.0.0 of application meter"}},
		"nobody":          {fleetfile.Files{File: file("1.0.0", `{sites: [nowhere]}`, "")}, []string{"spec.targets", "no site of the fleet is meant"}},
		"unknown value": {
			fleetfile.Files{File: file("1.0.0", all, ""), Exceptions: map[protocol.SiteID]string{"site-001": strings.ReplaceAll(bad, "SITE", "site-001")}},
			[]string{"at site site-001", "prot"},
		},
	} {
		_, err := w.driver.Plan(t.Context(), "meter", c.files)
		if protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v is of kind %s", name, err, protocol.KindOf(err))
		}
		for _, text := range c.want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", name, err, text)
			}
		}
	}
	many := fleetfile.Files{File: file("1.0.0", all, ""), Exceptions: map[protocol.SiteID]string{}}
	for i := range 8 {
		many.Exceptions[siteName(i)] = strings.ReplaceAll(bad, "SITE", string(siteName(i)))
	}
	if _, err := w.driver.Plan(t.Context(), "meter", many); err == nil || !strings.Contains(err.Error(), "and at 3 more sites") {
		t.Errorf("many sites: %v", err)
	}
}

func TestNeedsNamesTheArchives(t *testing.T) {
	t.Parallel()
	f := fleetfile.Files{File: file("1.0.0", all, ""), App: app}
	raw, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	needs, err := driver.Needs("meter", raw)
	if err != nil {
		t.Fatal(err)
	}
	d, err := v1rc3.ParseDeployment(needs)
	if err != nil || d.Spec.Profile.Components[0].Properties.Repository != "oci://r.example/compose/meter" {
		t.Errorf("%+v, %v", d, err)
	}
}
