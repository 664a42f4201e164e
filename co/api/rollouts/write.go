package rollouts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/co/rollout/preview"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

type putInput struct {
	FleetPath
	IfMatch string `header:"If-Match" doc:"ETag of the fleet deployment that was read; without it the change applies to the present state"`
	Plan    string `query:"plan" doc:"id of a plan: the change is refused where the deployments repo, or what would be done, is another by then"`
	Body    Content
}

// files returns the files that a fleet deployment has with a new content.
func (c Content) files(name protocol.DeploymentName, now stored) (fleetfile.Files, error) {
	f := fleetfile.File{Name: name, Spec: c.Spec}
	if f.ID = fleetfile.NewID(now.head, name); now.file != nil {
		f.ID = now.file.ID
	}
	raw, err := f.Marshal()
	if err != nil {
		return fleetfile.Files{}, err
	}
	exceptions := c.Exceptions
	if exceptions == nil {
		exceptions = now.exceptions
	}
	out := fleetfile.Files{File: string(raw), Exceptions: map[protocol.SiteID]string{}}
	for site, values := range exceptions {
		id, err := protocol.ParseSiteID(site)
		if err != nil {
			return out, problem.At("body.exceptions", err)
		}
		e := fleetfile.Exception{Site: id, Parameters: values}
		raw, err := e.Marshal()
		if err != nil {
			return out, err
		}
		out.Exceptions[id] = string(raw)
	}
	return out, nil
}

func (r *routes) put(ctx context.Context, in *putInput) (*form.Tagged[FleetDeployment], error) {
	out, err := r.set(ctx, in)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return out, nil
}

func (r *routes) set(ctx context.Context, in *putInput) (*form.Tagged[FleetDeployment], error) {
	name, err := in.parse()
	if err != nil {
		return nil, err
	}
	audit.Note(ctx, "fleet deployment "+string(name))
	now, err := r.readNow(ctx, name, in.IfMatch)
	if err != nil {
		return nil, err
	}
	if !form.Matches(in.IfMatch, now.commits[fleetfile.Path(name)]) {
		return nil, changed(name)
	}
	next, err := in.Body.files(name, now)
	if err != nil {
		return nil, err
	}
	outline, err := r.outline(ctx, name, now, in.Body, next)
	if err == nil && in.Plan != "" {
		err = problem.At("query.plan", preview.Check(in.Plan, &outline))
	}
	if err != nil {
		return nil, err
	}
	verb := "Change"
	if now.file == nil {
		verb = "Deploy"
	}
	message := fmt.Sprintf("%s fleet deployment %s: %s %s", verb, name, in.Body.Application.ID, in.Body.Application.Version)
	if err := r.commit(ctx, name, now, next.Paths(name), message); err != nil {
		return nil, err
	}
	if now, err = r.read(ctx, name); err != nil {
		return nil, err
	}
	if now.file == nil {
		return nil, changed(name) // it was removed meanwhile
	}
	out := now.shown(name)
	out.Body.Notes = outline.Notes
	return out, nil
}

// outline says what the files of a content would do, in place of what there is now.
func (r *routes) outline(ctx context.Context, name protocol.DeploymentName, now stored, c Content, next fleetfile.Files) (rollout.Outline, error) {
	out, err := r.o.Plan(ctx, name, next)
	if err != nil {
		return out, inBody(err)
	}
	if err := preview.Idle(&out); err != nil {
		return out, problem.At("body.targets", err)
	}
	v, err := r.o.Staged(ctx, c.Application.ID, c.Application.Version)
	if err != nil {
		return out, err
	}
	if v.Stage == fleet.Retired && (now.file == nil || now.file.Application != c.Application) {
		return out, problem.At("body.application.version", protocol.Errorf(protocol.Invalid, "%w", v.Refusal()))
	}
	if warning := v.Warning(); warning != "" {
		out.Notes = append(out.Notes, warning)
	}
	return out, nil
}

// inBody has the problems of a file be problems of the request.
func inBody(err error) error {
	if problems, ok := errors.AsType[v1rc3.Problems](err); ok && protocol.KindOf(err) == protocol.Invalid {
		for i := range problems {
			problems[i].Path, problems[i].Line = strings.TrimPrefix(problems[i].Path, "spec."), 0
		}
		return problem.At("body", protocol.Errorf(protocol.Invalid, "%w", err))
	}
	return err
}

func changed(name protocol.DeploymentName) error {
	return problem.WithStatus(http.StatusPreconditionFailed, fmt.Sprintf("fleet deployment %s was changed since you read it: read it again, then repeat your change", name))
}

// commit replaces the files of a fleet deployment, where they are others.
func (r *routes) commit(ctx context.Context, name protocol.DeploymentName, now stored, next map[string][]byte, message string) error {
	files, expect := map[string][]byte{}, map[string]string{}
	for p := range now.files {
		if _, stays := next[p]; !stays {
			files[p], expect[p] = nil, now.commits[p]
		}
	}
	for p, content := range next {
		if had, ok := now.files[p]; !ok || !bytes.Equal(had, content) {
			files[p], expect[p] = content, now.commits[p]
		}
	}
	if len(files) == 0 {
		return nil
	}
	expect[fleetfile.Path(name)] = now.commits[fleetfile.Path(name)]
	err := r.o.Commit(ctx, files, expect, message)
	if protocol.KindOf(err) == protocol.Conflict {
		return changed(name)
	}
	if err == nil {
		r.o.Changed()
	}
	return err
}

func (r *routes) plan(ctx context.Context, in *struct {
	FleetPath
	Body Content
},
) (*form.Reply[rollout.Outline], error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	now, err := r.read(ctx, name)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	next, err := in.Body.files(name, now)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	out, err := r.outline(ctx, name, now, in.Body, next)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[rollout.Outline]{Body: out}, nil
}

func (r *routes) remove(ctx context.Context, in *struct {
	FleetPath
	IfMatch string `header:"If-Match" doc:"only if what is changed still has this entity tag"`
},
) (*struct{}, error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	audit.Note(ctx, "fleet deployment "+string(name))
	now, err := r.readNow(ctx, name, in.IfMatch)
	if now.files == nil && err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	if _, there := now.files[fleetfile.Path(name)]; !there {
		return nil, problem.Answer(ctx, r.log, notThere(name))
	}
	if !form.Matches(in.IfMatch, now.commits[fleetfile.Path(name)]) {
		return nil, problem.Answer(ctx, r.log, changed(name))
	}
	message := fmt.Sprintf("Remove fleet deployment %s\n\n%s: */%s", name, proposal.Trailer, name)
	if err := r.commit(ctx, name, now, nil, message); err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return nil, nil
}

// An Act names the person that acts on a rollout.
type Act struct {
	By string `json:"by,omitempty" maxLength:"200" doc:"who asks, for the record; not used where the CO wants tokens: there it is the name of the token"`
	// Rollback is of an abort.
	Revision int64 `json:"revision,omitempty" minimum:"0" doc:"only where the rollout is that of this revision; 0 or absent: whichever it is"`
	Wave     *int  `json:"wave,omitempty" minimum:"0" doc:"only where this is the current wave, from 0; absent: whichever it is"`
	Rollback bool  `json:"rollback,omitempty" doc:"of an abort: return all sites to the last complete revision, by a commit"`
}

func (r *routes) act(a rollout.Action) func(context.Context, *struct {
	FleetPath
	Body *Act
}) (*form.Reply[rollout.Rollout], error) {
	return func(ctx context.Context, in *struct {
		FleetPath
		Body *Act
	},
	) (*form.Reply[rollout.Rollout], error) {
		var act Act
		if in.Body != nil {
			act = *in.Body
		}
		v, err := r.do(ctx, in.FleetPath, a, act)
		if err != nil {
			return nil, problem.Answer(ctx, r.log, err)
		}
		return &form.Reply[rollout.Rollout]{Body: v}, nil
	}
}

func (r *routes) do(ctx context.Context, p FleetPath, a rollout.Action, act Act) (v rollout.Rollout, err error) {
	name, err := p.parse()
	if err != nil {
		return v, err
	}
	audit.Note(ctx, "fleet deployment "+string(name))
	if act.Rollback && a != rollout.Abort {
		return v, problem.At("body.rollback", protocol.Errorf(protocol.Invalid, "only an abort may roll back"))
	}
	var revision int64
	if act.Rollback {
		if revision, err = r.earlier(ctx, name); err == nil {
			_, err = r.returnable(ctx, name, revision)
		}
		if err != nil {
			return v, err
		}
	}
	if v, err = r.o.Store.Act(ctx, name, a, rollout.Seen{Revision: act.Revision, Wave: act.Wave}, by(ctx, act.By)); err != nil || !act.Rollback {
		return v, err
	}
	return v, r.returnTo(ctx, name, revision)
}

// A Revert says where a fleet deployment returns to.
type Revert struct {
	To int64 `json:"to,omitempty" minimum:"0" doc:"revision, see the list of rollouts; default the last complete one that asks for something else"`
}

func (r *routes) revert(ctx context.Context, in *struct {
	FleetPath
	Body *Revert
},
) (*form.Tagged[FleetDeployment], error) {
	name, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	audit.Note(ctx, "fleet deployment "+string(name))
	var to int64
	if in.Body != nil {
		to = in.Body.To
	}
	if to == 0 {
		to, err = r.earlier(ctx, name)
	}
	if err == nil {
		err = r.returnTo(ctx, name, to)
	}
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return r.get(ctx, &in.FleetPath)
}

// earlier returns the revision to return to.
func (r *routes) earlier(ctx context.Context, name protocol.DeploymentName) (int64, error) {
	revision, err := r.o.Store.Earlier(ctx, name)
	if err == nil && revision == 0 {
		err = protocol.Errorf(protocol.Conflict, "no other revision of %s was ever complete: there is none to return to", name)
	}
	return revision, err
}

// returnable returns the files of a revision, which would be accepted, with the targets and the strategy that there are now: no site is
// to come or go by a return.
func (r *routes) returnable(ctx context.Context, name protocol.DeploymentName, revision int64) (files fleetfile.Files, err error) {
	raw, _, err := r.o.Store.Source(ctx, name, revision)
	if err != nil {
		return files, err
	}
	if files, err = fleetfile.Decode(raw); err != nil {
		return files, err
	}
	now, err := r.read(ctx, name)
	if err != nil && now.files == nil {
		return files, err
	}
	if now.file != nil {
		before, err := fleetfile.Parse(name, []byte(files.File))
		if err != nil {
			return files, err
		}
		if !reflect.DeepEqual(before.Targets, now.file.Targets) || !reflect.DeepEqual(before.Strategy, now.file.Strategy) {
			before.Targets, before.Strategy = now.file.Targets, now.file.Strategy
			file, err := before.Marshal()
			if err != nil {
				return files, err
			}
			files.File = string(file)
		}
	}
	_, err = r.o.Plan(ctx, name, files)
	return files, err
}

// returnTo commits the files of a revision.
func (r *routes) returnTo(ctx context.Context, name protocol.DeploymentName, revision int64) error {
	files, err := r.returnable(ctx, name, revision)
	if err != nil {
		return err
	}
	now, err := r.read(ctx, name)
	if err != nil && now.files == nil {
		return err
	}
	return r.commit(ctx, name, now, files.Paths(name), fmt.Sprintf("Return fleet deployment %s to revision %d", name, revision))
}
