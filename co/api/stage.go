package api

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// mostReason bounds a reason, in characters: it stands in events and errors.
const mostReason = 300

// A StageChange says whether a version of an application may be deployed.
type StageChange struct {
	Stage  fleet.Stage `json:"stage" enum:"active,deprecated,retired"`
	Reason string      `json:"reason,omitempty" doc:"for people: why, and what to deploy instead; up to 300 characters"`
}

type stageInput struct {
	VersionPath
	Body StageChange
}

func (a *API) setAppStage(ctx context.Context, in *stageInput) (*form.Reply[fleet.AppVersion], error) {
	audit.Note(ctx, fmt.Sprintf("application %s %s: %s", in.ID, in.Version, in.Body.Stage))
	if n := utf8.RuneCountInString(in.Body.Reason); n > mostReason {
		return nil, a.fail(ctx, problem.At("body.reason", protocol.Errorf(protocol.Invalid, "%d characters: at most %d are kept", n, mostReason)))
	}
	if in.Body.Stage == fleet.Active && in.Body.Reason != "" {
		return nil, a.fail(ctx, problem.At("body.reason", protocol.Errorf(protocol.Invalid, "an active version has no reason: leave it out")))
	}
	if err := a.opts.Apps.SetAppStage(ctx, in.ID, in.Version, in.Body.Stage, in.Body.Reason); err != nil {
		return nil, a.fail(ctx, err)
	}
	a.opts.Changed() // what was refused may be deployed now
	return a.getAppVersion(ctx, &in.VersionPath)
}

// notes is what to know about a deployment that was committed.
func (a *API) notes(ctx context.Context, d *v1rc3.Deployment) []string {
	if d.Spec.Colony == nil {
		return nil
	}
	v, err := a.opts.Apps.Staged(ctx, d.Spec.ApplicationID, d.Spec.Colony.ApplicationVersion)
	if warning := v.Warning(); err == nil && warning != "" {
		return []string{warning}
	}
	return nil
}
