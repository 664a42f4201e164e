package fleetfile

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	doc "github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

const (
	maxWaves = 50
	maxGates = 10
	// mostSites bounds a number of sites, and mostAttempts the tries of a node.
	mostSites    = 1_000_000
	mostAttempts = 100
	maxBake      = 30 * 24 * time.Hour
)

var (
	uuid  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	group = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// open says which parts of a file hold any text: values of parameters.
func open(at string, _ int, key string) bool {
	return key == "parameters" && strings.HasPrefix(at, "spec")
}

// Parse reads the file of a fleet deployment that is in the folder of name. The error is of type v1rc3.Problems, as for
// every other file of the deployments repo, and lists all that is wrong.
func Parse(name protocol.DeploymentName, raw []byte) (*File, error) { return read(name, raw, true) }

// ParseDraft is Parse for a file that is not in the deployments repo: it may have no metadata, or no id in it.
func ParseDraft(name protocol.DeploymentName, raw []byte) (*File, error) {
	return read(name, raw, false)
}

func read(name protocol.DeploymentName, raw []byte, whole bool) (*File, error) {
	top, d, err := doc.Read(raw, open)
	if err != nil {
		return nil, err
	}
	o := top.Object("apiVersion", "kind", "metadata", "spec")
	o.Need("apiVersion").OneOf(APIVersion)
	o.Need("kind").OneOf(Kind)
	f := &File{Name: name}
	if meta := o.Get("metadata"); whole || !meta.Absent() {
		f.ID = metadata(o.Need("metadata").Object("name", "id"), name, whole)
	}
	s := o.Need("spec").Object("application", "targets", "nodes", "replicas", "parameters", "groups", "policy", "strategy")
	app := s.Need("application").Object("id", "version", "profile")
	f.Application = Application{app.Need("id").Name(), app.Need("version").Name(), app.Get("profile").Text()}
	f.Targets = targets(s.Need("targets"))
	f.Nodes, f.Replicas = s.Mapping("nodes").StringMap(), s.Get("replicas").Uint32()
	f.Parameters = values(s.Mapping("parameters"))
	for _, v := range s.Get("groups").List() {
		g := v.Object("group", "parameters")
		f.Groups = append(f.Groups, GroupValues{groupName(g.Need("group")), values(g.Need("parameters"))})
	}
	f.Policy = policy(s.Mapping("policy"))
	f.Strategy = strategy(s.Mapping("strategy"))
	if err := d.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// metadata returns the id of a file.
func metadata(o doc.Object, name protocol.DeploymentName, whole bool) string {
	if n := o.Need("name"); n.Exists() && n.Text() != string(name) {
		n.Report("%q: want %s, which is the name of the fleet deployment and of its folder", n.Text(), name)
	}
	if id := o.Get("id"); !whole && id.Absent() {
		return ""
	}
	return o.Need("id").Match(uuid, "a UUID in lower case, another one for each fleet deployment")
}

// ParseException reads the file that says what is other at a site.
func ParseException(site protocol.SiteID, raw []byte) (*Exception, error) {
	top, d, err := doc.Read(raw, open)
	if err != nil {
		return nil, err
	}
	o := top.Object("apiVersion", "kind", "metadata", "spec")
	o.Need("apiVersion").OneOf(APIVersion)
	o.Need("kind").OneOf(ExceptionKind)
	if n := o.Need("metadata").Object("site").Need("site"); n.Exists() && n.Text() != string(site) {
		n.Report("%q: the name of the file is that of site %s", n.Text(), site)
	}
	e := &Exception{Site: site, Parameters: values(o.Need("spec").Object("parameters").Need("parameters"))}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return e, nil
}

func targets(v doc.Value) Targets {
	o := v.Object("sites", "groups", "except")
	t := Targets{Sites: sites(o.Get("sites")), Except: sites(o.Get("except"))}
	for _, g := range o.Get("groups").List() {
		t.Groups = append(t.Groups, groupName(g))
	}
	if o.Exists() && len(t.Sites) == 0 && len(t.Groups) == 0 {
		o.Note("want sites or groups; sites: [\"*\"] is all sites")
	}
	return t
}

func sites(v doc.Value) []string {
	list := v.Texts()
	if _, err := siteset.Parse(list); err != nil {
		v.Note("%v", err)
	}
	return list
}

func groupName(v doc.Value) string { return v.Match(group, "the name of a group of sites") }

// values reads values of parameters: scalars, and lists of them.
func values(v doc.Value) Values {
	o := v.Object()
	if len(o.Keys) == 0 {
		return nil
	}
	out := make(Values, len(o.Keys))
	for _, key := range o.Keys {
		f := o.Fields[key]
		if x := f.Scalar(); x != nil {
			out[key] = x
			continue
		}
		if f.IsNull() {
			f.Report("has no value; give it one, or leave the parameter out")
			continue
		}
		list := []any{}
		for _, item := range f.List() {
			x := item.Scalar()
			if x == nil {
				item.Report("want a text, a number, true or false")
			}
			list = append(list, x)
		}
		out[key] = list
	}
	return out
}

func policy(v doc.Value) *NodePolicy {
	if v.Absent() {
		return nil
	}
	o := v.Object("attempts", "backoff", "rollback", "minHealthy", "anyTime")
	duration(o.Get("backoff"), time.Hour)
	duration(o.Get("minHealthy"), 24*time.Hour)
	if n := o.Get("attempts"); n.Uint32() > mostAttempts {
		n.Report("%d: want at most %d", n.Uint32(), mostAttempts)
	}
	return &NodePolicy{o.Get("attempts").Uint32(), o.Get("backoff").Text(), o.Get("rollback").Bool(), o.Get("minHealthy").Text(), o.Get("anyTime").Bool()}
}

func strategy(v doc.Value) (s Strategy) {
	o := v.Object("waves", "maxFailed", "sitesPerMinute", "atOnce", "gates", "deadline")
	s.Deadline = o.Get("deadline").Text()
	if duration(o.Get("deadline"), maxBake); s.Deadline == "0" || s.Deadline == "0s" {
		o.Get("deadline").Report("%q: want more than 0", s.Deadline)
	}
	s.Gates = gates(o.Get("gates"))
	s.SitesPerMinute, s.AtOnce = int(o.Get("sitesPerMinute").Uint32()), int(o.Get("atOnce").Uint32())
	if m := o.Get("maxFailed"); m.Exists() {
		s.MaxFailed = m.Source() // a number is one without quotes
		if _, _, err := maxFailed(s.MaxFailed); err != nil {
			m.Report("%v", err)
		}
	}
	list := o.Get("waves").List()
	if len(list) > maxWaves {
		o.Get("waves").Note("%d waves: want at most %d", len(list), maxWaves)
		return s
	}
	before := 0
	for i, item := range list {
		w := item.Object("percent", "group", "bake", "approval")
		next := Wave{Percent: int(w.Get("percent").Uint32()), Group: groupOf(w), Bake: w.Get("bake").Text()}
		if b := w.Get("approval").Bool(); b != nil {
			next.Approval = *b
		}
		duration(w.Get("bake"), maxBake)
		last := i == len(list)-1
		switch {
		case !w.Exists():
		case (next.Percent == 0) == (next.Group == ""):
			w.Note("want percent or group, one of both")
		case next.Group != "":
			if last {
				w.Note("a group in the last wave: add a wave of 100 percent for the other sites")
			}
		case next.Percent > 100 || next.Percent <= before:
			w.Note("%d percent: want more than the %d of the waves before, and at most 100: shares include the waves before", next.Percent, before)
		case last && next.Percent != 100:
			w.Note("%d percent: want 100 in the last wave, or some sites would never have it", next.Percent)
		case last && next.Approval:
			w.Note("approval: no wave follows that could wait for it")
		}
		before = max(before, next.Percent)
		s.Waves = append(s.Waves, next)
	}
	return s
}

func gates(v doc.Value) (list []Gate) {
	names := map[string]bool{}
	for _, item := range v.List() {
		o := item.Object("name", "source", "query", "min", "max")
		g := Gate{
			Name: o.Need("name").Match(group, "a name of lower-case letters, digits and -"), Source: o.Need("source").Match(group, "the name of a source of the CO's configuration"),
			Query: o.Get("query").Text(), Min: number(o.Get("min")), Max: number(o.Get("max")),
		}
		if names[g.Name] && g.Name != "" {
			o.Get("name").Report("%q: another gate has it", g.Name)
		}
		if names[g.Name] = true; g.Min != nil && g.Max != nil && *g.Min > *g.Max {
			o.Note("min %g is more than max %g: nothing would pass", *g.Min, *g.Max)
		}
		list = append(list, g)
	}
	if len(list) > maxGates {
		v.Note("%d gates: want at most %d", len(list), maxGates)
	}
	return list
}

// number reads a number; nil where there is none.
func number(v doc.Value) *float64 {
	if !v.Exists() {
		return nil
	}
	f, err := strconv.ParseFloat(v.Source(), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		v.Report("want a number, such as 0.05")
		return nil
	}
	return &f
}

func groupOf(w doc.Object) string {
	if w.Get("group").Absent() {
		return ""
	}
	return groupName(w.Get("group"))
}

func duration(v doc.Value, most time.Duration) {
	if !v.Exists() {
		return
	}
	text := v.Text()
	if d, err := time.ParseDuration(text); v.Exists() && (err != nil || d < 0 || d > most) {
		v.Report("%q: want a duration from 0s to %gh, such as 90s, 30m or 1h30m", text, most.Hours())
	}
}

// maxFailed reads a number of sites, or a share of them with %.
func maxFailed(s string) (number, percent int, err error) {
	text, share := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > mostSites || share && n > 100 {
		return 0, 0, fmt.Errorf("%q: want a number of sites, such as 2, or a share of them, such as 5%%", s)
	}
	if share {
		return 0, n, nil
	}
	return n, 0, nil
}
