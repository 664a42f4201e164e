package co

import (
	"context"
	"errors"
	"slices"

	"github.com/colonyfleet/colony/co/catalog"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// resolve holds the file of a deployment, as a commit has it, against the rules of its
// application, which the API holds a request to before it writes one, and returns it with the
// defaults of the parameters that it leaves out. An application that the catalog does not have
// has no rules that are known here.
func (s stores) resolve(ctx context.Context, file, commit string, d *v1rc3.Deployment) (*v1rc3.Deployment, error) {
	app, err := s.rules(ctx, d)
	if err != nil || app == nil {
		return d, err
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
	var raw []byte // of a deployment that is not committed there is none
	if commit != "" {
		if raw, err = s.repo.At(ctx, commit, file); err != nil && protocol.KindOf(err) != protocol.NotFound {
			return nil, err
		}
	}
	return intent.Resolve(app, d, installed, raw)
}

// check says why a deployment that is not committed yet would be refused once it is: by
// the rules of its application, or by the compiler. What cannot be known now, because a
// registry is away, is an error of another kind than Invalid. It returns the digest of the
// specification.
func (s stores) check(ctx context.Context, file string, d *v1rc3.Deployment) (protocol.Digest, error) {
	resolved, err := s.resolve(ctx, file, "", d)
	if err != nil {
		return "", err
	}
	entry, _, err := compiler.Compile(ctx, resolved, s.images)
	if protocol.KindOf(err) == protocol.Conflict || errors.Is(err, catalog.ErrNotNamed) {
		return "", protocol.Errorf(protocol.Invalid, "%w", err)
	}
	return entry.Digest, err
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
