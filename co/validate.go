package co

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// validate holds the file of a deployment, as a commit has it, against the rules of its
// application, which the API holds a request to before it writes one. An application
// that the catalog does not have has no rules that are known here.
func (s stores) validate(ctx context.Context, file, commit string, d *v1rc3.Deployment) error {
	if d.Spec.Colony == nil || d.Spec.Colony.ApplicationVersion == "" {
		return nil
	}
	version, err := s.fleet.AppVersion(ctx, d.Spec.ApplicationID, d.Spec.Colony.ApplicationVersion)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	app, err := v1rc3.ParseApplication([]byte(version.Document))
	if err != nil {
		return protocol.Errorf(protocol.Internal, "stored application %s %s: %w", d.Spec.ApplicationID, d.Spec.Colony.ApplicationVersion, err)
	}
	var installed map[string]any
	if intent.HasImmutable(app) {
		earlier, err := s.earlier(ctx, file, commit)
		if err != nil {
			return err
		}
		installed = intent.Installed(app, d.ID, earlier)
	}
	raw, err := s.repo.At(ctx, commit, file)
	if err != nil && protocol.KindOf(err) != protocol.NotFound {
		return err
	}
	return intent.Validate(app, d, installed, raw)
}

// earlier returns the revisions of a file before a commit, the oldest first; nil is one
// that holds no deployment.
func (s stores) earlier(ctx context.Context, file, commit string) ([]*v1rc3.Deployment, error) {
	revisions, err := s.repo.History(ctx, file)
	if err != nil {
		return nil, err
	}
	for i, r := range revisions {
		if r.Commit == commit {
			revisions = revisions[i+1:]
			break
		}
	}
	var all []*v1rc3.Deployment
	for _, r := range slices.Backward(revisions) {
		raw, err := s.repo.At(ctx, r.Commit, file)
		if err != nil && protocol.KindOf(err) != protocol.NotFound {
			return nil, err
		}
		d, err := v1rc3.ParseDeployment(raw)
		if err != nil {
			d = nil
		}
		all = append(all, d)
	}
	return all, nil
}
