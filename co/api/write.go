package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Change is what may be said of a deployment when it is made or updated.
type Change struct {
	Version    string                           `json:"version,omitempty" doc:"of the application; default the latest"`
	Profile    string                           `json:"profile,omitempty" doc:"id of a deployment profile; default the first that nodes can run"`
	Node       form.Optional[string]            `json:"node,omitzero" required:"false" doc:"only this node; *, an empty text or null in an update: any node again"`
	Nodes      form.Optional[map[string]string] `json:"nodes,omitzero" required:"false" doc:"only nodes with these labels; {} or null in an update: any node again"`
	Replicas   form.Optional[uint32]            `json:"replicas,omitzero" required:"false" doc:"on so many nodes; 0 or null: on all that match, the default"`
	Parameters Parameters                       `json:"parameters,omitempty"`
	Policy     *Policy                          `json:"policy,omitempty"`
}

// Parameters are values of an application's parameters, by name. A number keeps its digits.
type Parameters map[string]any

// UnmarshalJSON keeps numbers as they are written: a float64 has no 1.10, and not all
// digits of a long one.
func (p *Parameters) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return err
	}
	*p = values
	return nil
}

// A Policy says what is done about a failure.
type Policy struct {
	Attempts uint32 `json:"attempts,omitempty" maximum:"100" doc:"tries of one version on a node; default 3"`
	Backoff  string `json:"backoff,omitempty" example:"10s" doc:"wait before the second try, doubled for each further one"`
	Rollback *bool  `json:"rollback,omitempty" doc:"return to the last healthy version; default true"`
	// MinHealthy decides when the other fields no longer apply.
	MinHealthy string `json:"minHealthy,omitempty" example:"2m" doc:"how long a version must be up on a node before no later failure ends it; default that of the node, 2m"`
	AnyTime    *bool  `json:"anyTime,omitempty" doc:"carry updates out outside of the site's maintenance windows, too; default false"`
}

func (c Change) request() (intent.Request, error) {
	req := intent.Request{Profile: c.Profile, Parameters: c.Parameters}
	if c.Node.Set {
		req.Node = cmp.Or(protocol.NodeID(c.Node.Value), intent.AnyNode)
	}
	if c.Nodes.Set {
		req.Selector = map[string]string{}
		maps.Copy(req.Selector, c.Nodes.Value)
	}
	if c.Replicas.Set {
		req.Replicas = &c.Replicas.Value
	}
	if req.Node != "" && req.Node != intent.AnyNode {
		if _, err := protocol.ParseNodeID(string(req.Node)); err != nil {
			return req, problem.At("body.node", err)
		}
	}
	if p := c.Policy; p != nil {
		req.Policy = &v1rc3.Policy{Attempts: p.Attempts, Rollback: p.Rollback, AnyTime: p.AnyTime}
		for _, f := range []struct {
			name, text string
			most       time.Duration
			into       *v1rc3.Duration
		}{{"backoff", p.Backoff, time.Hour, &req.Policy.Backoff}, {"minHealthy", p.MinHealthy, 24 * time.Hour, &req.Policy.MinHealthy}} {
			if f.text == "" {
				continue
			}
			d, err := time.ParseDuration(f.text)
			if err != nil || d < 0 || d > f.most {
				return req, problem.At("body.policy."+f.name, protocol.Errorf(protocol.Invalid, "%q: want a duration from 0s to %gh, such as 10s", f.text, f.most.Hours()))
			}
			*f.into = v1rc3.Duration(d)
		}
	}
	return req, nil
}

// A NewDeployment asks for a deployment.
type NewDeployment struct {
	Site string `json:"site" minLength:"1"`
	Name string `json:"name,omitempty" doc:"default: the application's id"`
	App  string `json:"app" minLength:"1" doc:"application id"`
	Change
}

func (a *API) createDeployment(ctx context.Context, in *struct{ Body NewDeployment }) (*form.Tagged[fleet.Deployment], error) {
	d, err := a.create(ctx, in.Body)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[fleet.Deployment]{ETag: form.ETag(d.Commit), Body: d}, nil
}

func (a *API) create(ctx context.Context, in NewDeployment) (fleet.Deployment, error) {
	if in.Name == "" {
		in.Name = string(intent.Name(in.App))
	}
	site, err := protocol.ParseSiteID(in.Site)
	if err == nil {
		err = access.Check(ctx, site)
	}
	if err != nil {
		return fleet.Deployment{}, problem.At("body.site", err)
	}
	name, err := protocol.ParseDeploymentName(in.Name)
	if err != nil {
		return fleet.Deployment{}, problem.At("body.name", err)
	}
	audit.Note(ctx, fmt.Sprintf("deployment %s/%s", site, name))
	if err := a.ofFleet(ctx, site, name, "choose another name, or except the site there"); err != nil {
		return fleet.Deployment{}, err
	}
	app, err := a.application(ctx, in.App, in.Version)
	if err != nil {
		return fleet.Deployment{}, err
	}
	req, err := in.request()
	if err != nil {
		return fleet.Deployment{}, err
	}
	if err := a.checkTarget(ctx, site, req.Node); err != nil {
		return fleet.Deployment{}, err
	}
	target := intent.Target{ID: form.NewUUID(), Site: site, Name: name}
	d, err := intent.Create(app, target, req)
	if err != nil {
		return fleet.Deployment{}, err
	}
	out, err := a.commit(ctx, target, d, "", "Deploy "+app.ID+" "+app.Metadata.Version)
	if protocol.KindOf(err) == protocol.Conflict {
		return out, protocol.Errorf(protocol.Conflict, "site %s has a deployment %s already: update it, or choose another name", site, name)
	}
	return out, err
}

// ofFleet returns an error where a site has a deployment of a name by a fleet deployment, which says what to do instead.
func (a *API) ofFleet(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, instead string) error {
	claims, err := a.opts.Sites.Rollouts.Store.Claims(ctx, name, site)
	if err == nil && claims {
		err = protocol.Errorf(protocol.Conflict, "site %s has a deployment %s of the fleet deployment of that name: %s", site, name, instead)
	}
	return err
}

// checkTarget makes sure that the site, and the node if one is named, exist.
func (a *API) checkTarget(ctx context.Context, site protocol.SiteID, node protocol.NodeID) error {
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return err
	}
	if node == "" || node == intent.AnyNode {
		return nil
	}
	_, err := a.node(ctx, site, node)
	return err
}

// application returns a version of an application, the latest where version is empty.
func (a *API) application(ctx context.Context, id, version string) (*v1rc3.Application, error) {
	app, err := a.opts.Apps.App(ctx, id)
	if err != nil {
		return nil, err
	}
	if version == "" {
		version = app.Latest
	}
	v, err := a.opts.Apps.AppVersion(ctx, id, version)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, protocol.Errorf(protocol.NotFound, "application %s has no version %s; it has %s", id, version, strings.Join(app.Versions, ", "))
	}
	if err != nil {
		return nil, err
	}
	parsed, err := v1rc3.ParseApplication([]byte(v.Document))
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "stored application %s %s: %w", id, version, err)
	}
	return parsed, nil
}

type updateInput struct {
	DeploymentPath
	IfMatch string `header:"If-Match" doc:"ETag of the deployment that was read; without it the update applies to the present state"`
	Body    Change
}

func (a *API) updateDeployment(ctx context.Context, in *updateInput) (*form.Tagged[fleet.Deployment], error) {
	d, err := a.change(ctx, in.DeploymentPath, in.IfMatch, func(t intent.Target, prev *v1rc3.Deployment) (*v1rc3.Deployment, string, error) {
		version := in.Body.Version
		if version == "" && prev.Spec.Colony != nil {
			version = prev.Spec.Colony.ApplicationVersion
		}
		app, err := a.application(ctx, prev.Spec.ApplicationID, version)
		if err != nil {
			return nil, "", err
		}
		req, err := in.Body.request()
		if err != nil {
			return nil, "", err
		}
		if err := a.checkTarget(ctx, t.Site, req.Node); err != nil {
			return nil, "", err
		}
		d, err := intent.Update(prev, app, t, req)
		return d, "Update " + string(t.Name) + " to " + app.ID + " " + app.Metadata.Version, err
	})
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[fleet.Deployment]{ETag: form.ETag(d.Commit), Body: d}, nil
}

// A RollbackTarget says where a rollback goes. Without one it goes to the newest revision before
// that asks for something else and has not failed on a node.
type RollbackTarget struct {
	To string `json:"to,omitempty" doc:"commit of the revision (see history), or a prefix of at least 7 digits; default the newest one before that asks for something else and did not fail on a node"`
}

type rollbackInput struct {
	DeploymentPath
	IfMatch string `header:"If-Match" doc:"only if what is changed still has this entity tag"`
	Body    *RollbackTarget
}

func (a *API) rollback(ctx context.Context, in *rollbackInput) (*form.Tagged[fleet.Deployment], error) {
	to := ""
	if in.Body != nil {
		to = in.Body.To
	}
	d, err := a.change(ctx, in.DeploymentPath, in.IfMatch, func(t intent.Target, now *v1rc3.Deployment) (*v1rc3.Deployment, string, error) {
		earlier, commit, err := a.earlier(ctx, t, now, to)
		if err != nil {
			return nil, "", err
		}
		return intent.Rollback(now, earlier), fmt.Sprintf("Roll %s back to %.12s", t.Name, commit), nil
	})
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[fleet.Deployment]{ETag: form.ETag(d.Commit), Body: d}, nil
}

// earlier finds the revision to return to: the one that to names, or the newest
// that asks for something else than now does and did not fail on a node.
func (a *API) earlier(ctx context.Context, t intent.Target, now *v1rc3.Deployment, to string) (*v1rc3.Deployment, string, error) {
	file := intent.Path(t.Site, t.Name)
	revisions, err := a.opts.Repo.Revisions(ctx, file)
	if err != nil {
		return nil, "", err
	}
	if to != "" && len(to) < 7 {
		return nil, "", problem.At("body.to", protocol.Errorf(protocol.Invalid, "revision %q: want at least 7 digits of a commit", to))
	}
	failed, skipped := failures{api: a, target: t}, 0
	for _, r := range revisions {
		if to != "" && !strings.HasPrefix(r.Commit, to) {
			continue
		}
		content, err := a.opts.Repo.At(ctx, r.Commit, file)
		if protocol.KindOf(err) == protocol.NotFound {
			if to != "" {
				return nil, "", protocol.Errorf(protocol.Conflict, "revision %.12s removed %s/%s: choose another of its history", r.Commit, t.Site, t.Name)
			}
			break // it was removed here: what was before was another life
		}
		if err != nil {
			return nil, "", err
		}
		d, err := v1rc3.ParseDeployment(content)
		if err != nil {
			if to != "" {
				return nil, "", protocol.Errorf(protocol.Conflict, "revision %.12s of %s/%s is not valid: %w", r.Commit, t.Site, t.Name, err)
			}
			continue // a bad file that was pushed
		}
		if d.Spec.ApplicationID != now.Spec.ApplicationID {
			if to != "" {
				return nil, "", protocol.Errorf(protocol.Conflict, "revision %.12s of %s/%s is of application %s, not %s: delete the deployment first",
					r.Commit, t.Site, t.Name, d.Spec.ApplicationID, now.Spec.ApplicationID)
			}
			continue
		}
		if to == "" && intent.Same(d, now) {
			continue
		}
		if to == "" {
			bad, err := failed.has(ctx, intent.Rollback(now, d))
			if err != nil {
				return nil, "", err
			}
			if bad {
				skipped++
				continue
			}
		}
		return d, r.Commit, nil
	}
	if to != "" {
		return nil, "", protocol.Errorf(protocol.NotFound, "no revision %s of %s/%s: see its history", to, t.Site, t.Name)
	}
	if skipped > 0 {
		return nil, "", protocol.Errorf(protocol.Conflict, "each earlier revision of %s/%s failed on a node: name the one to return to, see its history", t.Site, t.Name)
	}
	return nil, "", protocol.Errorf(protocol.Conflict, "%s/%s has no earlier revision to return to", t.Site, t.Name)
}

type retryInput struct {
	DeploymentPath
	IfMatch string `header:"If-Match" doc:"only if what is changed still has this entity tag"`
}

func (a *API) retry(ctx context.Context, in *retryInput) (*form.Tagged[fleet.Deployment], error) {
	d, err := a.change(ctx, in.DeploymentPath, in.IfMatch, func(t intent.Target, now *v1rc3.Deployment) (*v1rc3.Deployment, string, error) {
		return intent.Retry(now), "Retry " + string(t.Name), nil
	})
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[fleet.Deployment]{ETag: form.ETag(d.Commit), Body: d}, nil
}

// change reads a deployment from the repo, lets edit make the next one, and commits it.
func (a *API) change(ctx context.Context, p DeploymentPath, ifMatch string,
	edit func(intent.Target, *v1rc3.Deployment) (*v1rc3.Deployment, string, error),
) (fleet.Deployment, error) {
	var out fleet.Deployment
	err := a.onTop(ctx, p, ifMatch, func(t intent.Target, content []byte, commit string) error {
		prev, err := v1rc3.ParseDeployment(content)
		if err != nil {
			return problem.WithStatus(http.StatusConflict, fmt.Sprintf(
				"the file of %s/%s in the deployments repo is not valid, repair or remove it there: %v", t.Site, t.Name, err))
		}
		t.ID = prev.ID
		next, message, err := edit(t, prev)
		if err != nil {
			return err
		}
		out, err = a.commit(ctx, t, next, commit, message)
		return err
	})
	return out, err
}

// errConcurrent is the conflict of a commit, and no other one.
type errConcurrent struct{ error }

// Unwrap returns the conflict.
func (e errConcurrent) Unwrap() error { return e.error }

// writeWait bounds how long a write without If-Match is put on top of others' that
// were faster.
const writeWait = 20 * time.Second

// onTop reads a deployment's file and lets write commit on top of it. Writers of this API wait for
// each other, in turn. When another writer, a replica or a push by hand, was faster, it begins
// again, for up to writeWait. If ifMatch binds it to what the caller read, it returns an error
// instead.
func (a *API) onTop(ctx context.Context, p DeploymentPath, ifMatch string, write func(t intent.Target, content []byte, commit string) error) error {
	site, name, err := p.parse()
	if err != nil {
		return err
	}
	unlock, err := a.writes.Lock(ctx, intent.Path(site, name))
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "deployment %s/%s waits for other changes of it: %w", site, name, err)
	}
	defer unlock()
	tries := retry.Backoff{Policy: retry.Policy{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 1}}
	waiting, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	for {
		content, commit, err := a.current(ctx, site, name, ifMatch)
		if protocol.KindOf(err) == protocol.NotFound {
			err = cmp.Or(a.ofFleet(ctx, site, name, "change that (colony fleet), or except the site there"), err)
		}
		if err != nil {
			return err
		}
		err = write(intent.Target{Site: site, Name: name}, content, commit)
		if _, changed := errors.AsType[errConcurrent](err); !changed || tries.Wait(waiting) != nil {
			return err
		}
	}
}

func errChanged(site protocol.SiteID, name protocol.DeploymentName) error {
	return problem.WithStatus(
		http.StatusPreconditionFailed,
		fmt.Sprintf("deployment %s/%s was changed since you read it: read it again, then repeat your change", site, name),
	)
}

// put commits a deployment's file, nil removing it, in place of the one of expect.
func (a *API) put(ctx context.Context, t intent.Target, content []byte, expect, message string) (commit string, err error) {
	commit, err = a.opts.Repo.Put(ctx, intent.Path(t.Site, t.Name), content, expect, message)
	if protocol.KindOf(err) == protocol.Conflict {
		return "", errConcurrent{err}
	}
	if err == nil {
		a.opts.Changed()
	}
	return commit, err
}

// commit writes a deployment's file and returns the deployment as it is until the
// record has followed: PENDING, with what the record shows of its nodes.
func (a *API) commit(ctx context.Context, t intent.Target, d *v1rc3.Deployment, expect, message string) (fleet.Deployment, error) {
	content, err := d.Marshal()
	if err != nil {
		return fleet.Deployment{}, err
	}
	if err := a.check(ctx, t, d); err != nil {
		return fleet.Deployment{}, err
	}
	commit, err := a.put(ctx, t, content, expect, message)
	if err != nil {
		return fleet.Deployment{}, err
	}
	now := pending(t.Site, t.Name, d, commit)
	now.Notes = a.notes(ctx, d)
	out, err := a.opts.Deployments.Deployment(ctx, t.Site, t.Name)
	if err != nil || out.Archived {
		return now, nil //nolint:nilerr // the commit stands, and the record follows it
	}
	// The state is that of a change that no site has applied yet. The record shows what runs of the
	// version before.
	reason := now.Reason
	now.Counts, now.Nodes, now.CreatedAt, now.Observation = out.Counts, out.Nodes, out.CreatedAt, out.Observation
	now.Installed, now.Since, now.Reason = 0, &now.UpdatedAt, reason
	return now, nil
}

// pending is a deployment as it stands in the repo, before the record has followed.
func pending(site protocol.SiteID, name protocol.DeploymentName, d *v1rc3.Deployment, commit string) fleet.Deployment {
	now := time.Now()
	out := fleet.Deployment{
		Site: site, Name: name, ID: d.ID, App: d.Spec.ApplicationID, State: lifecycle.Pending, Commit: commit,
		CreatedAt: now, UpdatedAt: now, Counts: map[lifecycle.State]int{},
		Observation: fleet.Observation{
			Running: map[string]int{}, Since: &now, Reason: "the deployments repo has the change, and the CO has not recorded it yet",
		},
	}
	if ext := d.Spec.Colony; ext != nil {
		out.AppVersion, out.Profile = ext.ApplicationVersion, ext.Profile
	}
	return out
}

// revisions returns the commits of a deployment, each with the version that it asked for.
func (a *API) revisions(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) ([]fleet.Revision, error) {
	file := intent.Path(site, name)
	revisions, err := a.opts.Repo.Revisions(ctx, file)
	if err != nil {
		return nil, err
	}
	for i, r := range revisions {
		content, err := a.opts.Repo.At(ctx, r.Commit, file)
		if protocol.KindOf(err) == protocol.NotFound {
			revisions[i].Removed = true
			continue
		}
		if err != nil {
			return nil, err
		}
		if d, err := v1rc3.ParseDeployment(content); err == nil && d.Spec.Colony != nil {
			revisions[i].AppVersion = d.Spec.Colony.ApplicationVersion
		}
	}
	return revisions, nil
}
