// Package rollouts has the routes of the API about fleet deployments, which are one application for many sites, and about
// how their revisions spread.
package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Store is the record of rollouts. Errors are of the protocol's kinds.
type Store interface {
	// Latest returns the latest rollout of each fleet deployment.
	Latest(ctx context.Context) ([]rollout.Rollout, error)
	// Rollout returns the latest rollout of a fleet deployment.
	Rollout(ctx context.Context, name protocol.DeploymentName) (rollout.Rollout, error)
	// Rollouts lists the rollouts of a fleet deployment, the newest first; the text is the cursor of the next page.
	Rollouts(ctx context.Context, name protocol.DeploymentName, p fleet.Page) ([]rollout.Rollout, string, error)
	// Sites lists the sites of a fleet deployment, those in state alone if it is set; the text is the cursor of the next page.
	Sites(ctx context.Context, name protocol.DeploymentName, state rollout.SiteState, p fleet.Page) ([]rollout.Member, string, error)
	// Member returns where a site stands in a fleet deployment, nil where it is no part of it.
	Member(ctx context.Context, name protocol.DeploymentName, site protocol.SiteID) (*rollout.Member, error)
	// Act carries out an action on the latest rollout, for the person by, unless it changed since seen.
	Act(ctx context.Context, name protocol.DeploymentName, a rollout.Action, seen rollout.Seen, by string) (rollout.Rollout, error)
	Revisions
}

// Revisions are the record of revisions and of the sites that have them.
type Revisions interface {
	// Claims reports whether a site has, or is to have, a fleet deployment of a name.
	Claims(ctx context.Context, name protocol.DeploymentName, site protocol.SiteID) (bool, error)
	// Earlier returns the last complete revision that runs something else than the current one; 0: there is none.
	Earlier(ctx context.Context, name protocol.DeploymentName) (revision int64, err error)
	// Source returns the files of a revision, and its commit.
	Source(ctx context.Context, name protocol.DeploymentName, revision int64) (source []byte, commit string, err error)
}

// Options are what the routes need. All are required.
type Options struct {
	Store Store
	// Read returns the head of the deployments repo.
	Read func(ctx context.Context) (Head, error)
	// Sync asks the remote for what others committed, after which Read has it.
	Sync func(ctx context.Context) (head string, err error)
	// Commit changes files by one commit; nil content removes one. Where a path has another last commit than expect says it
	// is a Conflict.
	Commit func(ctx context.Context, files map[string][]byte, expect map[string]string, message string) error
	// Staged returns a version of an application in the catalog with its stage alone.
	Staged func(ctx context.Context, app, version string) (fleet.AppVersion, error)
	// Plan says what files would do.
	Plan func(ctx context.Context, name protocol.DeploymentName, f fleetfile.Files) (rollout.Outline, error)
	// Changed is called after a commit.
	Changed func()
	// Groups returns the groups of sites by name.
	Groups func(ctx context.Context) (map[string]siteset.Set, error)
	// Sites is the record of what sites have.
	Sites SiteStore
}

// A SiteStore is the record of what sites have. Errors are of the protocol's kinds.
type SiteStore interface {
	// Site returns one site, and SitesLike lists sites.
	Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error)
	SitesLike(ctx context.Context, f fleet.SiteFilter, p fleet.Page) ([]fleet.Site, string, error)
	// Deployment returns one deployment with its nodes, and Deployments lists deployments.
	Deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error)
	Deployments(ctx context.Context, f fleet.DeploymentFilter, p fleet.Page) ([]fleet.Deployment, string, error)
	// Nodes lists nodes.
	Nodes(ctx context.Context, f fleet.NodeFilter, p fleet.Page) ([]fleet.Node, string, error)
}

// A Head is that of the deployments repo.
type Head struct {
	Commit string
	Files  map[string][]byte // by path
	// Commits are the last commits that changed each.
	Commits map[string]string
}

type routes struct {
	o   Options
	log *slog.Logger
}

// Register adds the routes to h.
func Register(h huma.API, o Options, log *slog.Logger) {
	r := &routes{o, log}
	const one = "/api/v1/fleet-deployments/{fleet}"
	conflicts := func(o *huma.Operation) { o.Errors = append(o.Errors, http.StatusConflict) }
	huma.Get(h, "/api/v1/fleet-deployments", r.list, form.Describe("rollouts", "List fleet deployments: one application for many sites"))
	huma.Get(h, one, r.get, form.Describe("rollouts", "Show a fleet deployment"))
	huma.Put(h, one, r.put, form.Describe("rollouts", "Make a fleet deployment, or change it: a rollout begins"), form.Guarded, conflicts)
	huma.Delete(h, one, r.remove, form.Describe("rollouts", "Remove a fleet deployment from all sites"), form.Guarded)
	huma.Post(h, one+"/plan", r.plan, form.Describe("rollouts", "Say what a fleet deployment would do at which sites, without doing it"))
	huma.Post(h, one+"/revert", r.revert, form.Describe("rollouts", "Return to an earlier revision, by a commit: where a site ran it, it does so at once"), conflicts)
	huma.Get(h, "/api/v1/rollouts", r.rollouts, form.Describe("rollouts", "List rollouts, the newest first"))
	huma.Get(h, one+"/rollout", r.rollout, form.Describe("rollouts", "Show the rollout of a fleet deployment"))
	huma.Get(h, one+"/rollout/sites", r.sites, form.Describe("rollouts", "List the sites of a rollout"))
	huma.Get(h, "/api/v1/deployments/{site}/{name}/explain", r.explain, form.Describe("deployments", "Say why a deployment is at a site, or is not, and what comes next"))
	for _, a := range []struct {
		action  rollout.Action
		summary string
	}{
		{rollout.Pause, "Pause a rollout: no further site is admitted"},
		{rollout.Resume, "Go on with a rollout that is paused; sites that failed so far are accepted"},
		{rollout.Promote, "Let the wave of a rollout that works be followed by the next"},
		{rollout.Abort, "End a rollout: sites that have the revision stay with it, or return to the last complete one"},
	} {
		huma.Post(h, one+"/rollout/"+string(a.action), r.act(a.action), form.Describe("rollouts", a.summary), conflicts)
	}
}

// FleetPath names a fleet deployment. It is exported because it is embedded, and huma reads exported fields only.
type FleetPath struct {
	Fleet string `path:"fleet" doc:"the fleet deployment, by its name"`
}

func (p FleetPath) parse() (protocol.DeploymentName, error) {
	name, err := protocol.ParseDeploymentName(p.Fleet)
	return name, problem.At("path.fleet", err)
}

// Content is what a fleet deployment says.
type Content struct {
	fleetfile.Spec
	Exceptions map[string]fleetfile.Values `json:"exceptions,omitzero" required:"false" doc:"by site, values of parameters over those of the fleet deployment and its groups; in a change, absent: as they are, {}: none"`
}

// A FleetDeployment is one application for many sites.
type FleetDeployment struct {
	Name    protocol.DeploymentName `json:"name"`
	ID      string                  `json:"id"`
	Commit  string                  `json:"commit" doc:"the last one that changed its file"`
	Content Content                 `json:"content"`
	Notes   []string                `json:"notes,omitempty" doc:"of a change: what may be a mistake, such as a target that is no site"`
}

// A FleetSummary is a fleet deployment in a list.
type FleetSummary struct {
	Name       protocol.DeploymentName `json:"name"`
	App        string                  `json:"app,omitempty"`        // id of its application; absent: its file has a fault
	AppVersion string                  `json:"appVersion,omitempty"` // likewise
	Commit     string                  `json:"commit,omitempty" doc:"the last one that changed its file; absent: it has no file any more, and is being removed"`
	Problem    string                  `json:"problem,omitempty" doc:"why its file cannot be read"`
	Rollout    *rollout.Rollout        `json:"rollout,omitempty" doc:"the latest; absent: none has begun yet"`
}

// FleetSummaries are all fleet deployments.
type FleetSummaries struct {
	Items []FleetSummary `json:"items" doc:"sorted by name"`
}

func (r *routes) list(ctx context.Context, _ *struct{}) (*form.Reply[FleetSummaries], error) {
	head, err := r.o.Read(ctx)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	latest, err := r.o.Store.Latest(ctx)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	found := map[protocol.DeploymentName]*FleetSummary{}
	for p := range head.Files {
		name, site, ok := fleetfile.Of(p)
		if !ok || site != "" {
			continue
		}
		if parsed, err := protocol.ParseDeploymentName(name); err == nil {
			s := &FleetSummary{Name: parsed, Commit: head.Commits[p]}
			if f, err := fleetfile.Parse(parsed, head.Files[p]); err != nil {
				s.Problem = err.Error()
			} else {
				s.App, s.AppVersion = f.Application.ID, f.Application.Version
			}
			found[parsed] = s
		}
	}
	for i := range latest {
		s := found[latest[i].Fleet]
		if s == nil {
			s = &FleetSummary{Name: latest[i].Fleet, App: latest[i].App, AppVersion: latest[i].Version}
			found[s.Name] = s
		}
		latest[i].Waves = form.NotNil(latest[i].Waves)
		s.Rollout = &latest[i]
	}
	out := FleetSummaries{Items: []FleetSummary{}}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out.Items = append(out.Items, *found[name])
	}
	return &form.Reply[FleetSummaries]{Body: out}, nil
}

// stored is a fleet deployment as the deployments repo has it.
type stored struct {
	head       string
	file       *fleetfile.File
	files      map[string][]byte // its own, by path
	commits    map[string]string
	exceptions map[string]fleetfile.Values
}

// read returns a fleet deployment; file is nil where there is none.
func (r *routes) read(ctx context.Context, name protocol.DeploymentName) (s stored, err error) {
	head, err := r.o.Read(ctx)
	if err != nil {
		return s, err
	}
	s = stored{head: head.Commit, files: map[string][]byte{}, commits: head.Commits}
	for p, content := range head.Files {
		if n, _, ok := fleetfile.Of(p); ok && n == string(name) {
			s.files[p] = content
		}
	}
	raw, ok := s.files[fleetfile.Path(name)]
	if !ok {
		return s, nil
	}
	bad := func(err error) error {
		return protocol.Errorf(protocol.Conflict, "the files of fleet deployment %s in the deployments repo are not valid, repair them there, or remove it: %w", name, err)
	}
	if s.file, err = fleetfile.Parse(name, raw); err != nil {
		return s, bad(err)
	}
	for p, content := range s.files {
		_, site, _ := fleetfile.Of(p)
		if site == "" {
			continue
		}
		e, err := fleetfile.ParseException(protocol.SiteID(site), content)
		if err != nil {
			return s, bad(fmt.Errorf("%s: %w", p, err))
		}
		if s.exceptions == nil {
			s.exceptions = map[string]fleetfile.Values{}
		}
		s.exceptions[site] = e.Parameters
	}
	return s, nil
}

// readNow is read for a change: where there is no file, or not the one that ifMatch wants, another replica may have made it since this
// one looked.
func (r *routes) readNow(ctx context.Context, name protocol.DeploymentName, ifMatch string) (stored, error) {
	s, err := r.read(ctx, name)
	if err != nil || s.file != nil && form.Matches(ifMatch, s.commits[fleetfile.Path(name)]) {
		return s, err
	}
	if _, err := r.o.Sync(ctx); err != nil {
		return s, err
	}
	return r.read(ctx, name)
}

func (s *stored) shown(name protocol.DeploymentName) *form.Tagged[FleetDeployment] {
	commit := s.commits[fleetfile.Path(name)]
	return &form.Tagged[FleetDeployment]{ETag: form.ETag(commit), Body: FleetDeployment{
		Name: name, ID: s.file.ID, Commit: commit, Content: Content{s.file.Spec, s.exceptions},
	}}
}

func notThere(name protocol.DeploymentName) error {
	return protocol.Errorf(protocol.NotFound, "no fleet deployment %q: colony fleet list shows them", name)
}

func (r *routes) get(ctx context.Context, in *FleetPath) (*form.Tagged[FleetDeployment], error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	s, err := r.read(ctx, name)
	if err == nil && s.file == nil {
		err = notThere(name)
	}
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return s.shown(name), nil
}

func (r *routes) rollouts(ctx context.Context, in *struct {
	form.PageQuery
	Fleet string `query:"fleet" doc:"only of this fleet deployment"`
},
) (*form.Reply[form.List[rollout.Rollout]], error) {
	list, next, err := r.o.Store.Rollouts(ctx, protocol.DeploymentName(in.Fleet), in.Page())
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	for i := range list {
		list[i].Waves = form.NotNil(list[i].Waves)
	}
	return form.Page(list, next), nil
}

func (r *routes) rollout(ctx context.Context, in *FleetPath) (*form.Reply[rollout.Rollout], error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	v, err := r.o.Store.Rollout(ctx, name)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[rollout.Rollout]{Body: v}, nil
}

func (r *routes) sites(ctx context.Context, in *struct {
	FleetPath
	form.PageQuery
	State rollout.SiteState `query:"state" enum:"waiting,moving,away,healthy,failed,conflict,left" doc:"only in this state"`
},
) (*form.Reply[form.List[rollout.Member]], error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	list, next, err := r.o.Store.Sites(ctx, name, in.State, in.Page())
	if err == nil && len(list) == 0 {
		_, err = r.o.Store.Rollout(ctx, name) // there may be none of that name
	}
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return form.Page(list, next), nil
}

// by returns the person that asks: the name of the token, or where none is required, the name in
// the request.
func by(ctx context.Context, said string) string {
	p, _ := access.From(ctx)
	return cmp.Or(p.Name, strings.Join(strings.Fields(said), " "))
}
