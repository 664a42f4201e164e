package co

import (
	"context"
	"errors"
	"slices"

	"github.com/colonyfleet/colony/co/catalog"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/compiler/fault"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// resolve holds the file of a deployment, as a commit has it, against the rules of its
// application, which the API holds a request to before it writes one, and returns it with the
// defaults of the parameters that it leaves out. An application that the catalog does not have
// has no rules that are known here, but for one: its components are no other application's.
func (s stores) resolve(ctx context.Context, file, commit string, d *v1rc3.Deployment) (*v1rc3.Deployment, error) {
	app, err := s.rules(ctx, d)
	if err != nil {
		return nil, err
	}
	var raw []byte // of a deployment that is not committed there is none
	if commit != "" {
		if raw, err = s.repo.At(ctx, commit, file); err != nil && protocol.KindOf(err) != protocol.NotFound {
			return nil, err
		}
	}
	if app == nil {
		return d, s.checkOwners(ctx, d, raw)
	}
	var installed map[string]any
	if intent.HasImmutable(app) {
		earlier, err := s.earlier(ctx, file, commit)
		if err != nil {
			return nil, err
		}
		var failed error
		read := map[string]*v1rc3.Application{} // revisions are many, versions few
		installed = intent.Installed(app, d.ID, earlier, func(d *v1rc3.Deployment) *v1rc3.Application {
			if failed != nil {
				return nil
			}
			version := intent.Version(d)
			if _, known := read[version]; !known {
				read[version], failed = s.rules(ctx, d)
			}
			return read[version]
		})
		if failed != nil {
			return nil, failed
		}
	}
	return intent.Resolve(app, d, installed, raw)
}

// check says why a deployment that is not committed yet would be refused once it is: by
// the rules of its application, or by the compiler, or as a registry answers that it does not have
// an archive or an image. What cannot be known now, because a registry is away, is an error of
// another kind than Invalid. It returns the digest of the specification.
func (s stores) check(ctx context.Context, file string, d *v1rc3.Deployment) (protocol.Digest, error) {
	resolved, err := s.resolve(ctx, file, "", d)
	if err != nil {
		return "", err
	}
	entry, _, err := compiler.Compile(ctx, resolved, s.images)
	kind := protocol.KindOf(err)
	if kind == protocol.Conflict || kind == protocol.NotFound || errors.Is(err, catalog.ErrNotNamed) {
		return "", protocol.Errorf(protocol.Invalid, "%w", err)
	}
	return entry.Digest, err
}

// compile compiles a deployment; an error has its line in the file, as a commit has it.
func (s stores) compile(ctx context.Context, file, commit string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	entry, spec, err := s.images.Compile(ctx, d)
	if err == nil {
		return entry, spec, nil
	}
	raw, failed := s.repo.At(ctx, commit, file)
	if failed != nil {
		return entry, nil, err // without the line
	}
	return entry, nil, fault.Locate(err, d, raw)
}

// rules returns the application whose rules hold for a deployment: the version that it names, or, where it
// names none that the catalog has, one whose archives it runs. Nil: the catalog has neither.
func (s stores) rules(ctx context.Context, d *v1rc3.Deployment) (*v1rc3.Application, error) {
	if c := d.Spec.Colony; c != nil && c.ApplicationVersion != "" {
		if app, err := s.application(ctx, d.Spec.ApplicationID, c.ApplicationVersion); err != nil || app != nil {
			return app, err
		}
	}
	known, err := s.fleet.App(ctx, d.Spec.ApplicationID)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, version := range known.Versions {
		app, err := s.application(ctx, d.Spec.ApplicationID, version)
		if err != nil {
			return nil, err
		}
		if app != nil && intent.Runs(app, d) {
			return app, nil
		}
	}
	return nil, nil
}

// checkOwners refuses a deployment of an application without rules that runs components of others.
func (s stores) checkOwners(ctx context.Context, d *v1rc3.Deployment, raw []byte) error {
	owners := make([][]string, len(d.Spec.Profile.Components))
	for i, c := range d.Spec.Profile.Components {
		var err error
		if owners[i], err = s.fleet.AppsWith(ctx, c.Properties.Repository, c.Properties.Revision); err != nil {
			return err
		}
	}
	return intent.CheckOwners(d, owners, raw)
}

// application returns a version of an application, nil where the catalog does not have it.
func (s stores) application(ctx context.Context, id, version string) (*v1rc3.Application, error) {
	v, err := s.fleet.AppVersion(ctx, id, version)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	app, err := v1rc3.ParseApplication([]byte(v.Document))
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "stored application %s %s: %w", id, version, err)
	}
	return app, nil
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
