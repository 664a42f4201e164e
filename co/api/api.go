// Package api is the CO's HTTP API: /api/v1 with its OpenAPI 3.1 description
// made from the same types, server-sent events, and the health endpoints. Errors
// are application/problem+json (RFC 9457). A write is a commit in the deployments
// repo; the answer shows the deployment as it was recorded.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/access"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	eventsapi "github.com/colonyfleet/colony/co/api/events"
	"github.com/colonyfleet/colony/co/api/feed"
	"github.com/colonyfleet/colony/co/api/form"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/proposals"
	"github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/api/security"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/api/sitegroups"
	"github.com/colonyfleet/colony/co/api/specs"
	"github.com/colonyfleet/colony/co/api/tokens"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/internal/keylock"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// AppStore is the catalog.
type AppStore interface {
	// Apps lists applications by id; the text is the cursor of the next page.
	Apps(ctx context.Context, p fleet.Page) ([]fleet.App, string, error)
	// App returns an application with its versions.
	App(ctx context.Context, id string) (fleet.App, error)
	// AppVersion returns one version of an application.
	AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error)
	// Staged returns a version of an application with its stage alone.
	Staged(ctx context.Context, id, version string) (fleet.AppVersion, error)
	// RemoveAppVersion removes a version; one in use is an error of kind Conflict.
	RemoveAppVersion(ctx context.Context, id, version string) error
	// SetAppStage changes whether a version may be deployed.
	SetAppStage(ctx context.Context, id, version string, stage fleet.Stage, reason string) error
}

// FleetStore reads sites and nodes.
type FleetStore interface {
	// SitesLike lists the sites that f selects, by id; the text is the cursor of the next page.
	SitesLike(ctx context.Context, f fleet.SiteFilter, p fleet.Page) ([]fleet.Site, string, error)
	// Site returns one site.
	Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error)
	// CreateSite records a new site; one that exists is an error of kind Conflict.
	CreateSite(ctx context.Context, id protocol.SiteID) (fleet.Site, error)
	// Nodes lists the nodes that f selects, by site and name; the text is the cursor of the next page.
	Nodes(ctx context.Context, f fleet.NodeFilter, p fleet.Page) ([]fleet.Node, string, error)
	// Node returns one node.
	Node(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.Node, error)
}

// CountStore counts what lists show.
type CountStore interface {
	// CountSites counts the sites that f selects.
	CountSites(ctx context.Context, f fleet.SiteFilter) (fleet.Total, error)
	// CountNodes counts the nodes that f selects.
	CountNodes(ctx context.Context, f fleet.NodeFilter) (fleet.Total, error)
	// CountDeployments counts the deployments that f selects.
	CountDeployments(ctx context.Context, f fleet.DeploymentFilter) (fleet.Total, error)
	// Summary counts the sites of a set, and what they have.
	Summary(ctx context.Context, sites siteset.Set) (fleet.Summary, error)
}

// DeploymentStore reads deployments.
type DeploymentStore interface {
	// Deployments lists the deployments that f selects, by site and name; the text is the cursor of the next page.
	Deployments(ctx context.Context, f fleet.DeploymentFilter, p fleet.Page) ([]fleet.Deployment, string, error)
	// Deployment returns one deployment with its nodes.
	Deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error)
	// Transitions returns the last transitions of a deployment, the newest first, at most limit.
	Transitions(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, limit int) ([]fleet.Transition, error)
	specs.Source
}

// EventStore reads events.
type EventStore interface {
	eventsapi.Store
	// Feed is Events for streams, over connections of their own. What has just been
	// committed comes with the next value of Run's channel.
	Feed(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error)
}

// Repo is the deployments repo. Errors are of the protocol's kinds.
type Repo interface {
	// File returns a file of the head and the last commit that changed it; NotFound where there is none.
	File(ctx context.Context, path string) (content []byte, commit string, err error)
	// Put commits one file, or removes it where content is nil. expect is the last commit that
	// changed the file, "" where there must be none; otherwise the error is a Conflict.
	Put(ctx context.Context, path string, content []byte, expect, message string) (commit string, err error)
	// RemoveAll removes folders with all that is in them, where they exist, by one commit.
	RemoveAll(ctx context.Context, folders []string, message string) error
	// Revisions returns the commits that changed a path, newest first.
	Revisions(ctx context.Context, path string) ([]fleet.Revision, error)
	// Sync asks the remote for what others committed, after which File has it, and returns the head.
	Sync(ctx context.Context) (head string, err error)
	// At returns a file as a commit has it.
	At(ctx context.Context, commit, path string) ([]byte, error)
}

// SiteActions are what the API has done for sites beside their deployments.
type SiteActions struct {
	// AcceptPosition goes on above the position that a site holds, however far it is.
	AcceptPosition func(ctx context.Context, site protocol.SiteID) (protocol.Position, error)
	// Ask makes a site report the state of its streams now. It does not wait for the answer.
	Ask func(ctx context.Context, site protocol.SiteID) error
	// Machines are about machines that enrol.
	Machines identityapi.Options
	Commands commandsapi.Options
	// Rollouts are about deployments of many sites.
	Rollouts rollouts.Options
}

// CatalogActions are what the API has done for applications.
type CatalogActions struct {
	// Import imports packages of a source into the catalog.
	Import func(ctx context.Context, source string) ([]ImportResult, error)
	// Images are those of the CO's registry.
	Images images.Options
}

// AccessActions are what the API has done about people and programs.
type AccessActions struct {
	// Tokens are those of the API. Nil: no token is required.
	Tokens tokens.Record
	// Groups are those of sites. Nil: no token is required.
	Groups sitegroups.Record
	// SignIn is how people sign in with an OpenID provider. Nil: there is none.
	SignIn *access.SignIn
	// Audit shows the record of operations.
	Audit auditapi.Options
}

// Options are what the API needs. All are required but for Logger and Metrics.
type Options struct {
	Apps        AppStore
	Fleet       FleetStore
	Deployments DeploymentStore
	Counts      CountStore
	Events      EventStore
	Repo        Repo
	Rules       sitedata.RuleStore
	Proposals   ProposalStore
	Requests    RequestStore
	Data        sitedata.DataStore
	Sites       SiteActions
	Catalog     CatalogActions
	// Watch begins to collect what this CO delivers of a site's machine data and want
	// picks, up to limit messages.
	Watch func(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) sitedata.Watch
	// Check says why a deployment that is about to be committed cannot work, by an
	// error of kind Invalid. Of other errors nothing follows: what it needs is away, and
	// the commit will wait for it. It returns the digest of the specification. Nil: nothing
	// is checked.
	Check func(ctx context.Context, t intent.Target, d *v1rc3.Deployment) (protocol.Digest, error)
	// Changed is called after a commit; it makes the CO look at the repo at once.
	Changed func()
	// Ready checks the parts that the CO needs: a nil error is a part that works.
	Ready  func(ctx context.Context) map[string]error
	Access AccessActions
	// Metrics serves /metrics. Nil: not served.
	Metrics http.Handler
	Version string
	Logger  *slog.Logger
}

// An API serves requests. Use Handler; call Run for live events.
type API struct {
	opts   Options
	feed   *feed.Feed
	events http.Handler // of the route of events, for a stream
	mux    *http.ServeMux
	log    *slog.Logger
	// writes are held by path of the file that is changed, so that writers take turns.
	writes keylock.Locks
}

// New returns the API.
func New(o Options) *API {
	o.Fleet = named{o.Fleet}
	a := &API{opts: o, mux: http.NewServeMux(), log: o.Logger}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.feed = feed.New(o.Events, a.log)
	config := huma.DefaultConfig("Colony", o.Version)
	config.Info.Description = "Deploy applications to a fleet of industrial gateways and see what runs."
	config.OpenAPIPath = "/openapi"
	config.DocsPath = ""
	config.SchemasPath = "/schemas"
	config.CreateHooks = nil // no $schema in answers
	config.RejectUnknownQueryParameters = true
	h := humago.New(a.mux, config)
	h.UseMiddleware(refuseEmptyState(h))
	a.routes(h)
	security.Describe(h.OpenAPI(), o.Access.SignIn)
	a.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	a.mux.HandleFunc("GET /readyz", a.ready)
	if o.Metrics != nil {
		a.mux.Handle("GET /metrics", o.Metrics)
	}
	return a
}

// Run feeds the live event streams until ctx ends, and is called once: changed delivers
// the greatest id whenever there are new events.
func (a *API) Run(ctx context.Context, changed <-chan int64) { a.feed.Run(ctx, changed) }

// ServeHTTP serves the API.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if wrong := problem.RefuseText(r); wrong != "" {
		problem.Write(w, http.StatusUnprocessableEntity, wrong)
		return
	}
	switch route := a.Route(r); {
	case route == "GET /api/v1/events" && r.Method == http.MethodGet && eventsapi.WantsStream(r):
		a.events.ServeHTTP(w, r)
		return
	case route == "":
		w = problem.ForNoRoute(w, r.URL.Path)
	}
	a.mux.ServeHTTP(w, r)
}

// Route returns the method and the pattern of the route that serves a request, as "GET /api/v1/sites/{site}"; "" where there
// is none.
func (a *API) Route(r *http.Request) string {
	_, pattern := a.mux.Handler(r)
	return pattern
}

func (a *API) routes(h huma.API) {
	huma.Get(h, "/api/v1/apps", a.listApps, form.Describe("apps", "List applications"))
	huma.Post(h, "/api/v1/apps", a.importApps, form.Describe("apps", "Import application packages"), func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusForbidden) // a source that the configuration does not allow
	})
	huma.Get(h, "/api/v1/apps/{id}", a.getApp, form.Describe("apps", "Show an application"))
	huma.Get(h, "/api/v1/apps/{id}/versions/{version}", a.getAppVersion, form.Describe("apps", "Show one version of an application"))
	huma.Patch(h, "/api/v1/apps/{id}/versions/{version}", a.setAppStage, form.Describe("apps", "Deprecate or retire a version of an application, or make it active"), func(o *huma.Operation) {
		o.Description = "A deprecated version is deployed with a note, and is not the latest one while another one is active. A retired version runs on where it is deployed, and may change and be returned to there; nowhere else it is deployed."
	})
	huma.Delete(h, "/api/v1/apps/{id}/versions/{version}", a.removeAppVersion, form.Describe("apps", "Remove a version of an application from the catalog"), conflicts, func(o *huma.Operation) {
		o.Description = "A version that a deployment is to run, or that a node runs, is refused. The registry keeps its images and archives: remove those with DELETE /api/v1/images. Import brings it back, if its bytes are the same."
	})
	huma.Get(h, "/api/v1/deployments", a.listDeployments, form.Describe("deployments", "List deployments"))
	huma.Post(h, "/api/v1/deployments", a.createDeployment, form.Describe("deployments", "Deploy an application"), conflicts, func(o *huma.Operation) {
		o.DefaultStatus = http.StatusCreated
	})
	huma.Get(h, "/api/v1/deployments/{site}/{name}", a.getDeployment, form.Describe("deployments", "Show a deployment"))
	huma.Patch(h, "/api/v1/deployments/{site}/{name}", a.updateDeployment, form.Describe("deployments", "Update a deployment: what is absent stays"), form.Guarded)
	huma.Delete(h, "/api/v1/deployments/{site}/{name}", a.deleteDeployment, form.Describe("deployments", "Remove a deployment"), form.Guarded)
	huma.Get(h, "/api/v1/deployments/{site}/{name}/history", a.history, form.Describe("deployments", "Show revisions and transitions"))
	huma.Post(h, "/api/v1/deployments/{site}/{name}/rollback", a.rollback, form.Describe("deployments", "Return to an earlier revision"), form.Guarded)
	huma.Post(h, "/api/v1/deployments/{site}/{name}/retry", a.retry, form.Describe("deployments", "Try a refused version again"), form.Guarded)
	specs.Register(h, a.opts.Deployments, a.log)
	huma.Get(h, "/api/v1/sites", a.listSites, form.Describe("fleet", "List sites"))
	huma.Post(h, "/api/v1/sites", a.createSite, form.Describe("fleet", "Create a site before its LO connects"), conflicts, func(o *huma.Operation) {
		o.DefaultStatus = http.StatusCreated
	})
	huma.Get(h, "/api/v1/sites/{site}", a.getSite, form.Describe("fleet", "Show a site"))
	sitedata.Register(h, sitedata.Options{
		Fleet: a.opts.Fleet, Repo: a.opts.Repo, Rules: a.opts.Rules, Data: a.opts.Data,
		Ask: a.opts.Sites.Ask, Watch: a.opts.Watch, Changed: a.opts.Changed, Over: a.feed.Over, Logger: a.log,
	})
	images.Register(h, a.opts.Catalog.Images, a.log)
	identityapi.Register(h, a.opts.Sites.Machines, a.log)
	sitegroups.Register(h, a.opts.Access.Groups, a.log)
	tokens.Register(h, a.opts.Access.Tokens, a.opts.Access.SignIn, a.log)
	auditapi.Register(h, a.opts.Access.Audit, a.log)
	proposals.Register(h, a.opts.Proposals, a.opts.Changed, a.log)
	rollouts.Register(h, a.opts.Sites.Rollouts, a.log)
	a.requestRoutes(h)
	commandsapi.Register(h, a.opts.Sites.Commands, a.feed.Over, a.log)
	huma.Post(h, "/api/v1/sites/{site}/accept-position", a.acceptPosition, form.Describe("fleet", "Go on above the desired state that a site holds, however far ahead it is"), conflicts)
	huma.Get(h, "/api/v1/nodes", a.listNodes, form.Describe("fleet", "List nodes"))
	huma.Get(h, "/api/v1/nodes/{site}/{node}", a.getNode, form.Describe("fleet", "Show a node"))
	a.events = eventsapi.Register(h, a.opts.Events, a.opts.Fleet.Site, a.feed, a.log)
	huma.Get(h, "/api/v1/status", a.status, form.Describe("fleet", "Show whether Colony works and what it runs"))
}

// fail turns an error into an RFC 9457 answer.
func (a *API) fail(ctx context.Context, err error) huma.StatusError {
	return problem.Answer(ctx, a.log, err)
}

// readyWait bounds how long the parts are asked whether they work.
const readyWait = 3 * time.Second

func (a *API) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyWait)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var bad strings.Builder
	parts := a.opts.Ready(ctx)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := parts[name]; err != nil {
			fmt.Fprintf(&bad, "%s: %s\n", name, problem.Public(err))
		}
	}
	if bad.Len() > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(bad.String()))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}
