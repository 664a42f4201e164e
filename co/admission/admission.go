// Package admission judges a deployment before the CO obeys it: by the rules of its application, by whose
// components it runs, and by the compiler. The API asks before it commits a deployment, and the loop of the
// desired state asks when it reads a commit that the API did not make, so that both decide alike.
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
	// App returns an application with its versions.
	App(ctx context.Context, id string) (fleet.App, error)
	// AppVersion returns one version of an application.
	AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error)
	// AppsWith returns the applications with a component.
	AppsWith(ctx context.Context, repository, revision string) ([]string, error)
	// Staged returns a version of an application with its stage alone.
	Staged(ctx context.Context, id, version string) (fleet.AppVersion, error)
	// Deployed reports whether a deployment is of a version of an application, or was once.
	Deployed(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, app, version string) (bool, error)
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

// Resolve checks the file of a deployment, as a commit has it, against the rules of its
// application; the API checks a request against the same rules before it commits. It returns the
// deployment with the defaults of the parameters that the file leaves out. For an application that
// the catalog does not have only one rule is known: its components belong to no other application.
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

// Admit refuses, as Denied, a deployment of a version that is retired, unless the deployment is of that version, or was once: it
// may change, and return to it.
func (a *Admission) Admit(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, d *v1rc3.Deployment) error {
	version, err := a.version(ctx, d)
	if err != nil || version == "" {
		return err
	}
	v, err := a.o.Apps.Staged(ctx, d.Spec.ApplicationID, version)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil // it was removed meanwhile
	}
	if err != nil || v.Stage != fleet.Retired {
		return err
	}
	deployed, err := a.o.Apps.Deployed(ctx, site, name, v.AppID, v.Version)
	if err != nil || deployed {
		return err
	}
	return v.Refusal()
}

// Check says why a deployment would be refused once it is committed: by the rules of its
// application, by the compiler, because its version is retired, or because a registry answers that it has no such archive or image.
// If that cannot be known now, because a registry is not reachable, the error is of another kind
// than Invalid. Check returns the digest of the specification.
func (a *Admission) Check(ctx context.Context, t intent.Target, d *v1rc3.Deployment) (protocol.Digest, error) {
	resolved, err := a.Resolve(ctx, intent.Path(t.Site, t.Name), "", d)
	if err != nil {
		return "", err
	}
	if err := a.Admit(ctx, t.Site, t.Name, d); err != nil {
		if protocol.KindOf(err) == protocol.Denied {
			err = protocol.Errorf(protocol.Invalid, "%w", err)
		}
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

// version returns the version of an application that a deployment is of; "": it names none, and the catalog has none with its
// archives.
func (a *Admission) version(ctx context.Context, d *v1rc3.Deployment) (string, error) {
	if c := d.Spec.Colony; c != nil && c.ApplicationVersion != "" {
		return c.ApplicationVersion, nil
	}
	app, err := a.rules(ctx, d)
	if err != nil || app == nil {
		return "", err
	}
	return app.Metadata.Version, nil
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
