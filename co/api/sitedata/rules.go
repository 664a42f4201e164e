package sitedata

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

// DataRules are the rules of a site's machine data.
type DataRules struct {
	Site   protocol.SiteID `json:"site"`
	Commit string          `json:"commit,omitempty" doc:"last commit that changed the site's file; also its ETag; absent where there is no file"`
	Rules  []sitefile.Rule `json:"rules" doc:"in the order in which they are tried; where the file is not valid, the last good ones"`
	// Document keeps the comments of the file's author.
	Document string `json:"document,omitempty" doc:"the site's file in the deployments repo, byte for byte; for whom may not change device accounts without what proves their passwords: withheld-N stands for it, here and in a document that is sent"`
	Problem  string `json:"problem,omitempty" doc:"why the file is not followed"`
}

func (a *routes) getDataRules(ctx context.Context, in *form.SitePath) (*form.Tagged[DataRules], error) {
	out, err := a.dataRules(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[DataRules]{ETag: form.ETag(out.Commit), Body: out}, nil
}

func (a *routes) dataRules(ctx context.Context, in *form.SitePath) (DataRules, error) {
	site, err := in.Parse()
	if err != nil {
		return DataRules{}, err
	}
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return DataRules{}, err
	}
	content, commit, err := a.siteFile(ctx, site)
	if err != nil || len(content) == 0 {
		return DataRules{Site: site, Rules: []sitefile.Rule{}}, err
	}
	out, err := a.readRules(ctx, site, content, commit)
	if commit == "" {
		out.Problem = missing(site)
	}
	return out, err
}

// missing says that there was a file of a site which is in force still.
func missing(site protocol.SiteID) string {
	return sitefile.Path(site) + " is missing: the data rules and device accounts that it said last are in force, and whether programs may be run in containers"
}

// readRules shows a site's file, with the rules that hold where it is bad.
func (a *routes) readRules(ctx context.Context, site protocol.SiteID, content []byte, commit string) (DataRules, error) {
	out := DataRules{Site: site, Commit: commit, Document: string(content)}
	if !access.May(ctx, access.WriteMachines, site) {
		out.Document = string(sitefile.Withhold(content))
	}
	file, problem, err := a.contentIn(ctx, site, content)
	out.Problem, out.Rules = problem, form.NotNil(sitefile.Rules(file.Rules))
	return out, err
}

// siteFile returns the file of a site and its commit; both are empty where there is none. If the file was removed
// and its content is still in force, siteFile returns that content, and an empty commit.
func (a *routes) siteFile(ctx context.Context, site protocol.SiteID) (content []byte, commit string, err error) {
	content, commit, err = a.opts.Repo.File(ctx, sitefile.Path(site))
	if protocol.KindOf(err) != protocol.NotFound {
		return content, commit, err
	}
	recorded, err := a.opts.Rules.SiteData(ctx, site)
	if err != nil || !recorded.InForce() {
		return nil, "", err
	}
	file := contentOf(recorded)
	content, err = sitefile.Marshal(site, sitefile.Rules(file.Rules), file.Further())
	return content, "", err
}

type putRulesInput struct {
	form.SitePath
	IfMatch string `header:"If-Match" doc:"ETag of the rules that were read; without it they replace the present ones"`
	Body    struct {
		Rules    *[]sitefile.Rule `json:"rules,omitempty" doc:"all rules of the site, in the order in which they are tried"`
		Document string           `json:"document,omitempty" doc:"instead of rules: the whole file of the site, as YAML; comments are kept"`
	}
}

func (a *routes) putDataRules(ctx context.Context, in *putRulesInput) (*form.Tagged[DataRules], error) {
	out, err := a.replaceRules(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[DataRules]{ETag: form.ETag(out.Commit), Body: out}, nil
}

func (a *routes) replaceRules(ctx context.Context, in *putRulesInput) (DataRules, error) {
	site, err := in.Parse()
	if err != nil {
		return DataRules{}, err
	}
	if (in.Body.Rules == nil) == (in.Body.Document == "") {
		return DataRules{}, problem.At("body", protocol.Errorf(protocol.Invalid, "want either rules or document"))
	}
	var out DataRules
	err = a.onSiteFile(ctx, site, in.IfMatch, func(was []byte, expect string) error {
		held, err := a.furtherIn(ctx, site, was)
		if err != nil {
			return err
		}
		content := []byte(in.Body.Document)
		manager := access.May(ctx, access.WriteMachines, site)
		if !manager {
			content = sitefile.Restore(content, was)
		}
		if in.Body.Rules != nil {
			if content, err = sitefile.Marshal(site, *in.Body.Rules, held); err != nil {
				return err
			}
		}
		next, err := sitefile.Parse(site, content)
		if err != nil {
			return problem.OfSiteFile(err, in.Body.Rules == nil)
		}
		if err := mayReplace(ctx, site, held, next.Further()); err != nil {
			return err
		}
		commit := expect
		if expect == "" || string(was) != string(content) {
			if commit, err = a.opts.Repo.Put(ctx, sitefile.Path(site), content, expect, "Set the data rules of "+string(site)); err != nil {
				return err
			}
			a.opts.Changed()
		}
		out, err = a.readRules(ctx, site, content, commit)
		return err
	})
	return out, err
}

type deleteRulesInput struct {
	form.SitePath
	IfMatch string `header:"If-Match" doc:"only if what is changed still has this entity tag"`
}

func (a *routes) deleteDataRules(ctx context.Context, in *deleteRulesInput) (*struct{}, error) {
	site, err := in.Parse()
	if err == nil {
		err = a.onSiteFile(ctx, site, in.IfMatch, func(was []byte, expect string) error {
			if file, err := sitefile.Parse(site, was); len(was) == 0 || err == nil && len(file.Rules) == 0 {
				return protocol.Errorf(protocol.NotFound, "site %s has no data rules", site)
			}
			// A file that is removed might be missing by a mistake; one without rules says that there are none.
			held, err := a.furtherIn(ctx, site, was)
			if err != nil {
				return err
			}
			rest, err := sitefile.Marshal(site, nil, held)
			if err != nil {
				return err
			}
			if _, err := a.opts.Repo.Put(ctx, sitefile.Path(site), rest, expect, "Remove the data rules of "+string(site)); err != nil {
				return err
			}
			a.opts.Changed()
			return nil
		})
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

// contentOf is what a file says that has been recorded.
func contentOf(recorded fleet.SiteData) sitefile.Content {
	return sitefile.Content{Rules: recorded.Rules, Devices: recorded.Devices, Exec: recorded.Exec, Maintenance: recorded.Maintenance}
}

// contentIn returns what a site's file says; where it is bad, what is in force, and why it is bad.
func (a *routes) contentIn(ctx context.Context, site protocol.SiteID, content []byte) (file sitefile.Content, problem string, err error) {
	if len(content) == 0 {
		return file, "", nil
	}
	file, bad := sitefile.Parse(site, content)
	if bad == nil {
		return file, "", nil
	}
	recorded, err := a.opts.Rules.SiteData(ctx, site)
	return contentOf(recorded), bad.Error(), err
}

// shownFile returns what is in force of a site's file, and what is wrong with the file.
func (a *routes) shownFile(ctx context.Context, in *form.SitePath) (file sitefile.Content, problem string, err error) {
	site, err := in.Parse()
	if err == nil {
		_, err = a.opts.Fleet.Site(ctx, site)
	}
	if err != nil {
		return file, "", err
	}
	content, commit, err := a.siteFile(ctx, site)
	if err != nil {
		return file, "", err
	}
	file, problem, err = a.contentIn(ctx, site, content)
	if problem == "" && len(content) > 0 && commit == "" {
		problem = missing(site)
	}
	return file, problem, err
}

// furtherIn returns what a site's file says beside the rules; what is in force where it is bad.
func (a *routes) furtherIn(ctx context.Context, site protocol.SiteID, content []byte) (sitefile.Further, error) {
	file, _, err := a.contentIn(ctx, site, content)
	return file.Further(), err
}

// mayReplace returns an error where a change of a site's file needs more than the permission to change its rules.
func mayReplace(ctx context.Context, site protocol.SiteID, was, now sitefile.Further) error {
	deny := func(what string, needs access.Permission) error {
		p, _ := access.From(ctx)
		return access.Deny(ctx, protocol.Errorf(protocol.Denied, "the document changes %s of site %s, which needs %s; %s has the role %s", what, site, needs, p.Name, p.Role))
	}
	switch {
	case len(was.Devices)+len(now.Devices) > 0 && !reflect.DeepEqual(was.Devices, now.Devices) && !access.May(ctx, access.WriteMachines, site):
		return deny("the device accounts", access.WriteMachines)
	case was.Exec != now.Exec && !access.May(ctx, access.WriteSites, site):
		return deny("whether programs may be run in containers", access.WriteSites)
	case !reflect.DeepEqual(was.Maintenance, now.Maintenance) && !access.May(ctx, access.WriteSites, site):
		return deny("the maintenance windows", access.WriteSites)
	}
	return nil
}

// onSiteFile reads a site's file and lets write commit on top of it, as onTop does
// for a deployment.
func (a *routes) onSiteFile(ctx context.Context, site protocol.SiteID, ifMatch string, write func(content []byte, commit string) error) error {
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return err
	}
	const tries = 5
	for try := 1; ; try++ {
		content, commit, err := a.siteFile(ctx, site)
		if err != nil {
			return err
		}
		other := ifMatch != "" && (commit == "" || !form.Matches(ifMatch, commit))
		if other && try == 1 { // another replica may have written since this one looked
			if _, err := a.opts.Repo.Sync(ctx); err != nil {
				return err
			}
			continue
		}
		if other {
			return problem.WithStatus(http.StatusPreconditionFailed, fmt.Sprintf(
				"the data rules of site %s were changed since you read them: read them again, then repeat your change", site))
		}
		if err = write(content, commit); protocol.KindOf(err) != protocol.Conflict || err == nil || try == tries {
			return err
		}
	}
}

// RuleStore reads what is recorded of the sites' site.yaml.
type RuleStore interface {
	// SiteData returns what is recorded of the site's file.
	SiteData(ctx context.Context, site protocol.SiteID) (fleet.SiteData, error)
}

// DataStore reads what is recorded of the sites' machine data.
type DataStore interface {
	// Streams returns the streams of the site to the CO.
	Streams(ctx context.Context, site protocol.SiteID) ([]fleet.Stream, error)
	// DownStreams returns the streams of the CO to the site.
	DownStreams(ctx context.Context, site protocol.SiteID) ([]fleet.DownStream, error)
	// Messages returns a page of stored messages that f selects.
	Messages(ctx context.Context, f fleet.MessageFilter) (fleet.MessagePage, error)
	// LastMessages returns the position of the last stored message of each stream.
	LastMessages(ctx context.Context, site protocol.SiteID) (fleet.Positions, error)
}
