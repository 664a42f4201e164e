// Package admission judges a deployment before the CO obeys it: by the rules of its application, by whose
// components it runs, and by the compiler. The API asks before it commits a deployment, and the loop of the
// desired state does when it reads a commit that somebody else made, so that both say the same.
package admission

import (
	"context"
	"errors"
	"slices"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/compiler/fault"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Apps is the catalog of applications. What it does not have is an error of kind NotFound.
type Apps interface {
	App(ctx context.Context, id string) (fleet.App, error)
	AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error)
	// AppsWith returns the applications with a component.
	AppsWith(ctx context.Context, repository, revision string) ([]string, error)
}

// Repo is the deployments repo.
type Repo interface {
	// At returns a file as a commit has it, NotFound where it has none.
	At(ctx context.Context, commit, file string) ([]byte, error)
	// Revisions returns the commits that changed a file, newest first.
	Revisions(ctx context.Context, file string) ([]fleet.Revision, error)
}

// Images are what the compiler reads.
type Images interface {
	compiler.Resolver
	// Compile compiles a deployment, and pins its archives once it has.
	Compile(ctx context.Context, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error)
}

// Options are what an Admission needs. All are required.
type Options struct {
	Apps   Apps
	Repo   Repo
	Images Images
	// NotNamed is in the errors of a registry that the configuration does not name: asking again
	// does not help.
	NotNamed error
}

// An Admission judges deployments. Its methods may be called concurrently.
type Admission struct{ o Options }

// New returns an Admission.
func New(o Options) *Admission { return &Admission{o} }

// Resolve holds the file of a deployment, as a commit has it, against the rules of its
// application, which the API holds a request to before it writes one, and returns it with the
// defaults of the parameters that it leaves out. An application that the catalog does not have
// has no rules that are known here, but for one: its components are no other application's.
func (a *Admission) Resolve(ctx context.Context, file, commit string, d *v1rc3.Deployment) (*v1rc3.Deployment, error) {
	app, err := a.rules(ctx, d)
	if err != nil {
		return nil, err
	}
	var raw []byte // of a deployment that is not committed there is none
	if commit != "" {
		if raw, err = a.o.Repo.At(ctx, commit, file); err != nil && protocol.KindOf(err) != protocol.NotFound {
			return nil, err
		}
	}
	if app == nil {
		return d, a.checkOwners(ctx, d, raw)
	}
	var installed map[string]any
	if intent.HasImmutable(app) {
		earlier, err := a.earlier(ctx, file, commit)
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
				read[version], failed = a.rules(ctx, d)
			}
			return read[version]
		})
		if failed != nil {
			return nil, failed
		}
	}
	return intent.Resolve(app, d, installed, raw)
}

// Check says why a deployment that is not committed yet would be refused once it is: by
// the rules of its application, or by the compiler, or as a registry answers that it does not have
// an archive or an image. What cannot be known now, because a registry is away, is an error of
// another kind than Invalid. It returns the digest of the specification.
func (a *Admission) Check(ctx context.Context, file string, d *v1rc3.Deployment) (protocol.Digest, error) {
	resolved, err := a.Resolve(ctx, file, "", d)
	if err != nil {
		return "", err
	}
	entry, _, err := compiler.Compile(ctx, resolved, a.o.Images)
	kind := protocol.KindOf(err)
	if kind == protocol.Conflict || kind == protocol.NotFound || errors.Is(err, a.o.NotNamed) {
		return "", protocol.Errorf(protocol.Invalid, "%w", err)
	}
	return entry.Digest, err
}

// Compile compiles a deployment; an error has its line in the file, as a commit has it.
func (a *Admission) Compile(ctx context.Context, file, commit string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	entry, spec, err := a.o.Images.Compile(ctx, d)
	if err == nil {
		return entry, spec, nil
	}
	raw, failed := a.o.Repo.At(ctx, commit, file)
	if failed != nil {
		return entry, nil, err // without the line
	}
	return entry, nil, fault.Locate(err, d, raw)
}

// rules returns the application whose rules hold for a deployment: the version that it names, or, where it
// names none that the catalog has, one whose archives it runs. Nil: the catalog has neither.
func (a *Admission) rules(ctx context.Context, d *v1rc3.Deployment) (*v1rc3.Application, error) {
	if c := d.Spec.Colony; c != nil && c.ApplicationVersion != "" {
		if app, err := a.application(ctx, d.Spec.ApplicationID, c.ApplicationVersion); err != nil || app != nil {
			return app, err
		}
	}
	known, err := a.o.Apps.App(ctx, d.Spec.ApplicationID)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, version := range known.Versions {
		app, err := a.application(ctx, d.Spec.ApplicationID, version)
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
func (a *Admission) checkOwners(ctx context.Context, d *v1rc3.Deployment, raw []byte) error {
	owners := make([][]string, len(d.Spec.Profile.Components))
	for i, c := range d.Spec.Profile.Components {
		var err error
		if owners[i], err = a.o.Apps.AppsWith(ctx, c.Properties.Repository, c.Properties.Revision); err != nil {
			return err
		}
	}
	return intent.CheckOwners(d, owners, raw)
}

// application returns a version of an application, nil where the catalog does not have it.
func (a *Admission) application(ctx context.Context, id, version string) (*v1rc3.Application, error) {
	v, err := a.o.Apps.AppVersion(ctx, id, version)
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
func (a *Admission) earlier(ctx context.Context, file, commit string) ([]*v1rc3.Deployment, error) {
	revisions, err := a.o.Repo.Revisions(ctx, file)
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
		raw, err := a.o.Repo.At(ctx, r.Commit, file)
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
