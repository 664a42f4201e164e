package api

import (
	"context"
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// counted answers a page with a number.
func counted[T any](items []T, next string, total *fleet.Total) *form.Reply[form.List[T]] {
	l := form.List[T]{Items: form.NotNil(items), Next: next}
	if total != nil {
		l.Total, l.TotalAtLeast = &total.Count, total.AtLeast
	}
	return &form.Reply[form.List[T]]{Body: l}
}

func (a *API) listApps(ctx context.Context, in *form.PageQuery) (*form.Reply[form.List[fleet.App]], error) {
	items, next, err := a.opts.Apps.Apps(ctx, in.Page())
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return form.Page(items, next), nil
}

type appPath struct {
	ID string `path:"id" doc:"the application"`
}

func (a *API) getApp(ctx context.Context, in *appPath) (*form.Reply[fleet.App], error) {
	app, err := a.opts.Apps.App(ctx, in.ID)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[fleet.App]{Body: app}, nil
}

// VersionPath names a version of an application. It is exported because it is embedded, and huma reads exported fields only.
type VersionPath struct {
	ID      string `path:"id" doc:"the application"`
	Version string `path:"version" doc:"the version of the application"`
}

func (a *API) getAppVersion(ctx context.Context, in *VersionPath) (*form.Reply[fleet.AppVersion], error) {
	v, err := a.opts.Apps.AppVersion(ctx, in.ID, in.Version)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	v.Profiles, v.Parameters = form.NotNil(v.Profiles), form.NotNil(v.Parameters)
	return &form.Reply[fleet.AppVersion]{Body: v}, nil
}

type importRequest struct {
	Body struct {
		Source string `json:"source" minLength:"1" doc:"a directory on the CO's machine, a git URL (#ref), or oci://host/repository:tag"`
	}
}

// An ImportResult says what became of one package.
type ImportResult struct {
	Path     string    `json:"path" doc:"of the package within the source"`
	App      string    `json:"app,omitempty"`                                     // id of the application; absent: its description cannot be read
	Version  string    `json:"version,omitempty"`                                 // of the application; absent likewise
	Outcome  string    `json:"outcome" enum:"imported,unchanged,refused,skipped"` // what was done with the package
	Problems []Problem `json:"problems,omitempty" doc:"what breaks the Margo rules"`
	Warnings []string  `json:"warnings,omitempty"` // what people should look at
}

// A Problem is one broken rule.
type Problem struct {
	Path    string `json:"path"`           // in the document, such as metadata.id
	Line    int    `json:"line,omitempty"` // in the file, from 1; absent: not known
	Message string `json:"message"`        // what is wrong and what is wanted
}

// ImportAnswer is the answer to an import.
type ImportAnswer struct {
	Results []ImportResult `json:"results"` // one for each package that was found
}

func (a *API) importApps(ctx context.Context, in *importRequest) (*form.Reply[ImportAnswer], error) {
	results, err := a.opts.Catalog.Import(ctx, in.Body.Source)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	audit.Note(ctx, "from "+address.Redact(in.Body.Source))
	for _, r := range results {
		audit.Note(ctx, r.App+" "+r.Version+" "+r.Outcome)
	}
	return &form.Reply[ImportAnswer]{Body: ImportAnswer{form.NotNil(results)}}, nil
}

type deploymentQuery struct {
	form.PageQuery
	Site     string `query:"site" doc:"only deployments of this site"`
	App      string `query:"app" doc:"several are separated by commas; a ! before them picks all others"`
	Version  string `query:"version" doc:"the desired one; as app"`
	State    string `query:"state" doc:"PENDING, INSTALLING, INSTALLED, UPDATING, FAILED, ROLLINGBACK, DELETING or DELETED; as app"`
	Text     string `query:"q" doc:"a part of site/name"`
	Archived bool   `query:"archived" doc:"show removed ones as well"`
	Total    bool   `query:"total" doc:"count all that match"`
}

func (a *API) listDeployments(ctx context.Context, in *deploymentQuery) (*form.Reply[form.List[fleet.Deployment]], error) {
	f, err := in.filter(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	items, next, err := a.opts.Deployments.Deployments(ctx, f, in.Page())
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	n, err := total(ctx, in.Total, f, a.opts.Counts.CountDeployments)
	if err == nil && len(items) == 0 {
		err = a.known(ctx, f.Site, f.App)
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return counted(items, next, n), nil
}

// DeploymentPath names a deployment. It is exported because it is embedded, and
// huma reads exported fields only.
type DeploymentPath struct {
	Site string `path:"site" doc:"the site"`
	Name string `path:"name" doc:"the deployment, by its name at the site"`
}

func (p DeploymentPath) parse() (protocol.SiteID, protocol.DeploymentName, error) {
	site, err := protocol.ParseSiteID(p.Site)
	if err != nil {
		return "", "", problem.At("path.site", err)
	}
	name, err := protocol.ParseDeploymentName(p.Name)
	return site, name, problem.At("path.name", err)
}

func (a *API) getDeployment(ctx context.Context, in *DeploymentPath) (*form.Tagged[fleet.Deployment], error) {
	site, name, err := in.parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	d, err := a.deployment(ctx, site, name)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[fleet.Deployment]{ETag: form.ETag(d.Commit), Body: d}, nil
}

// A History is what became of a deployment.
type History struct {
	Revisions   []fleet.Revision   `json:"revisions" doc:"commits that changed it, newest first"`
	Transitions []fleet.Transition `json:"transitions" doc:"its transitions on each node, newest first"`
}

func (a *API) history(ctx context.Context, in *struct {
	DeploymentPath
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many transitions"`
},
) (*form.Reply[History], error) {
	site, name, err := in.parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if _, err := a.deployment(ctx, site, name); err != nil {
		return nil, a.fail(ctx, err)
	}
	revisions, err := a.revisions(ctx, site, name)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	transitions, err := a.opts.Deployments.Transitions(ctx, site, name, in.Limit)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[History]{Body: History{form.NotNil(revisions), form.NotNil(transitions)}}, nil
}

// getSpec serves what has a digest, or the part of it that Range asks for (RFC
// 9110, section 14): a site on a bad link goes on where it was cut off.
type siteQuery struct {
	form.PageQuery
	Online  string `query:"online" enum:"true,false" doc:"only sites that are online, or only those that are not"`
	Version string `query:"version" doc:"of the LO program; several are separated by commas; a ! before them picks all others"`
	Text    string `query:"q" doc:"a part of the id"`
	Total   bool   `query:"total" doc:"count all that match"`
}

func (a *API) listSites(ctx context.Context, in *siteQuery) (*form.Reply[form.List[fleet.Site]], error) {
	f, err := in.filter(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	items, next, err := a.opts.Fleet.SitesLike(ctx, f, in.Page())
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	n, err := total(ctx, in.Total, f, a.opts.Counts.CountSites)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return counted(items, next, n), nil
}

func (a *API) getSite(ctx context.Context, in *struct {
	Site string `path:"site" doc:"the site"`
},
) (*form.Reply[fleet.Site], error) {
	id, err := protocol.ParseSiteID(in.Site)
	if err != nil {
		return nil, a.fail(ctx, problem.At("path.site", err))
	}
	s, err := a.opts.Fleet.Site(ctx, id)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[fleet.Site]{Body: s}, nil
}

func (a *API) createSite(ctx context.Context, in *struct {
	Body struct {
		ID string `json:"id" minLength:"1" maxLength:"63"`
	}
},
) (*form.Reply[fleet.Site], error) {
	id, err := protocol.ParseSiteID(in.Body.ID)
	if err == nil {
		err = access.Check(ctx, id)
	}
	if err != nil {
		return nil, a.fail(ctx, problem.At("body.id", err))
	}
	audit.Note(ctx, "site "+string(id))
	s, err := a.opts.Fleet.CreateSite(ctx, id)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[fleet.Site]{Body: s}, nil
}

type nodeQuery struct {
	form.PageQuery
	Site    string   `query:"site" doc:"only nodes of this site"`
	Label   []string `query:"label" doc:"key=value, several separated by commas; all must match"`
	State   string   `query:"state" doc:"online, offline, or unknown where the site is offline; several are separated by commas; a ! before them picks all others"`
	Version string   `query:"version" doc:"of the agent; as state"`
	Text    string   `query:"q" doc:"a part of site/id"`
	Total   bool     `query:"total" doc:"count all that match"`
}

func (a *API) listNodes(ctx context.Context, in *nodeQuery) (*form.Reply[form.List[fleet.Node]], error) {
	f, err := in.filter(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	items, next, err := a.opts.Fleet.Nodes(ctx, f, in.Page())
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	n, err := total(ctx, in.Total, f, a.opts.Counts.CountNodes)
	if err == nil && len(items) == 0 {
		err = a.known(ctx, f.Site, fleet.Choice{})
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return counted(items, next, n), nil
}

func (a *API) getNode(ctx context.Context, in *form.NodePath) (*form.Reply[fleet.Node], error) {
	site, node, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	n, err := a.node(ctx, site, node)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[fleet.Node]{Body: n}, nil
}

// node returns a node. The error of one that does not exist lists some that do.
func (a *API) node(ctx context.Context, site protocol.SiteID, id protocol.NodeID) (fleet.Node, error) {
	n, err := a.opts.Fleet.Node(ctx, site, id)
	if err == nil || protocol.KindOf(err) != protocol.NotFound {
		return n, err
	}
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return n, err
	}
	known, next, err := a.opts.Fleet.Nodes(ctx, fleet.NodeFilter{Site: site}, fleet.Page{Limit: shownNames})
	if err != nil {
		return n, err
	}
	return n, protocol.Errorf(protocol.NotFound, "site %s has no node %s; it has %s%s", site, id,
		names(known, func(v fleet.Node) string { return string(v.ID) }), andMore(next))
}

// deployment returns a deployment as it is recorded, or, until the record has
// followed the deployments repo, as it stands there. The error of one that does
// not exist lists some that do.
func (a *API) deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error) {
	d, err := a.opts.Deployments.Deployment(ctx, site, name)
	if err == nil && !d.Archived || err != nil && protocol.KindOf(err) != protocol.NotFound {
		return d, err
	}
	content, commit, err := a.opts.Repo.File(ctx, intent.Path(site, name))
	if err != nil && d.Archived {
		return d, nil //nolint:nilerr // it was removed, and no new one of its name is known
	}
	if err != nil {
		return d, a.missing(ctx, site, name)
	}
	parsed, err := v1rc3.ParseDeployment(content)
	if err != nil && d.Archived {
		return d, nil //nolint:nilerr // a bad file: what is recorded of the last one stays
	}
	if err != nil {
		return d, a.missing(ctx, site, name)
	}
	return pending(site, name, parsed, commit), nil
}

func (a *API) removeAppVersion(ctx context.Context, in *VersionPath) (*struct{}, error) {
	if err := a.opts.Apps.RemoveAppVersion(ctx, in.ID, in.Version); err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

// missing is the error of a deployment that the deployments repo does not have.
func (a *API) missing(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) error {
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return err
	}
	d, err := a.opts.Deployments.Deployment(ctx, site, name)
	if err == nil {
		return protocol.Errorf(protocol.NotFound, "the deployments repo has no deployment %s of site %s: %s", name, site, leftOf(d))
	}
	if protocol.KindOf(err) != protocol.NotFound {
		return err
	}
	known, next, err := a.opts.Deployments.Deployments(ctx, fleet.DeploymentFilter{Site: site}, fleet.Page{Limit: shownNames})
	if err != nil {
		return err
	}
	return protocol.Errorf(protocol.NotFound, "site %s has no deployment %s; it has %s%s", site, name,
		names(known, func(v fleet.Deployment) string { return string(v.Name) }), andMore(next))
}

// leftOf says what is left of a deployment that the deployments repo does not have.
func leftOf(d fleet.Deployment) string {
	switch {
	case d.Archived:
		return "it was removed, and no node has it any more"
	case d.Held != "" && d.Withdrawn:
		return fmt.Sprintf("its removal was refused and it stays as it is, as proposal %s was withdrawn; colony deployment delete removes it all the same, or put its file back", d.Held)
	case d.Held != "":
		return fmt.Sprintf("its removal is held and it stays as it is, see colony proposal show %[1]s; agree with colony proposal confirm %[1]s, or put its file back", d.Held)
	case d.State == lifecycle.Deleting, d.Digest != "": // of what no file ever named there is no version
		return "it is being removed from its nodes"
	default:
		return "nodes hold it all the same; colony deploy goes on with it, colony deployment delete removes it from them"
	}
}

// andMore follows a list of names that is a part of all; next is the cursor after it.
func andMore(next string) string {
	if next == "" {
		return ""
	}
	return " and more"
}

// shownNames is how many of the things that exist an error lists.
const shownNames = 10

func names[T any](items []T, name func(T) string) string {
	if len(items) == 0 {
		return "none yet"
	}
	all := make([]string, len(items))
	for i, v := range items {
		all[i] = name(v)
	}
	return strings.Join(all, ", ")
}
