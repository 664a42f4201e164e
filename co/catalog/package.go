package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A run is one import. It remembers which registries did not answer, so that each
// is waited for once.
type run struct {
	*Catalog
	source string
	away   map[string]bool
	bytes  int // of the descriptions so far
	// tag must be the version of the package, where the source is an artifact. With
	// skipOtherTag, one that is not makes the package skipped and not refused.
	tag          string
	skipOtherTag bool
}

// A pin is an archive that an application relies on.
type pin struct {
	repository, revision string
	digest               protocol.Digest
}

func (c *Catalog) newRun(source string) *run {
	return &run{Catalog: c, source: source, away: map[string]bool{}}
}

// folder imports the package in a folder of root.
func (run *run) folder(ctx context.Context, root *os.Root, folder string) Result {
	r := Result{Path: folder}
	pkg, err := root.OpenRoot(folder)
	if err != nil {
		r.refuse(protocol.Invalid, v1rc3.Problem{Message: cause(err).Error()})
		return r
	}
	defer pkg.Close() //nolint:errcheck // read only
	run.files(ctx, &r, pkg)
	return r
}

// files imports the package whose files are in a folder.
func (run *run) files(ctx context.Context, r *Result, pkg *os.Root) {
	doc, err := readLimited(pkg, descriptionFile)
	if run.bytes += len(doc); err == nil && run.bytes > maxBytes {
		err = fmt.Errorf("the descriptions of this import are larger than %d bytes in all", maxBytes)
	}
	if err != nil {
		r.refuse(protocol.Invalid, v1rc3.Problem{Message: cause(err).Error()})
		return
	}
	run.document(ctx, r, doc, func(file string) ([]byte, error) {
		// The root follows no symbolic link out of the package.
		return readStart(pkg, file)
	})
}

// document checks a description and stores it. find returns the beginning of a file of
// the package; nil means that the files are not known.
func (run *run) document(ctx context.Context, r *Result, doc []byte, find func(file string) ([]byte, error)) {
	if !isDescription(doc) {
		r.refuse(protocol.Invalid, v1rc3.Problem{Message: "not an application description: apiVersion or metadata is missing"})
		return
	}
	r.Digest = protocol.DigestOf(doc)
	app, err := v1rc3.ParseApplication(doc)
	if app != nil {
		r.App, r.Version, r.Name = app.ID, app.Metadata.Version, app.Metadata.Name
	}
	if err != nil {
		r.refuse(protocol.Invalid, problemsOf(err)...)
		return
	}
	if run.tag != "" && run.tag != r.Version {
		if run.skipOtherTag {
			r.Outcome = Skipped
			r.warn("the tag is %s and the package's version %s", run.tag, r.Version)
			return
		}
		r.refuse(protocol.Invalid, v1rc3.Problem{Path: "metadata.version", Message: fmt.Sprintf("the version is %q and the tag of the artifact %q: they must be the same", r.Version, run.tag)})
		return
	}
	for _, w := range app.Warnings {
		r.warn("%s: %s", descriptionFile, w)
	}
	described(r, app, doc, find)
	if r.Outcome != "" {
		return
	}
	// What is there already was checked when it came.
	if run.known(ctx, r) {
		return
	}
	pins := run.archives(ctx, r, app)
	// What a refused package names may still be corrected under its revision.
	if r.Outcome == "" {
		run.pin(ctx, r, pins)
	}
	if r.Outcome == "" {
		run.store(ctx, r, app, doc)
	}
}

// pin makes the archives that were checked the only ones of their revisions.
func (run *run) pin(ctx context.Context, r *Result, pins []pin) {
	for _, p := range pins {
		if err := run.opts.Registry.Pin(ctx, p.repository, p.revision, p.digest); err != nil {
			r.refuse(protocol.KindOf(err), v1rc3.Problem{Message: err.Error()})
		}
	}
}

func problemsOf(err error) []v1rc3.Problem {
	if problems, ok := errors.AsType[v1rc3.Problems](err); ok {
		return problems
	}
	return []v1rc3.Problem{{Message: err.Error()}}
}

// described refuses what the description says wrong of the rest of the package. find returns
// the beginning of a file of it; nil means that the files are not known.
func described(r *Result, app *v1rc3.Application, doc []byte, find func(file string) ([]byte, error)) {
	problems := packagecheck.Pointers(app, doc)
	if find != nil {
		problems = append(packagecheck.Resources(app, doc, find), problems...)
	}
	if len(problems) > 0 {
		r.refuse(protocol.Invalid, problems...)
	}
}

// archives checks the Compose archives of an application, and returns those that it
// read. One that cannot be had now is a warning; one that is wrong is a refusal.
func (run *run) archives(ctx context.Context, r *Result, app *v1rc3.Application) (pins []pin) {
	checked := map[string]protocol.Component{}
	for i, profile := range app.Profiles {
		if profile.Type != v1rc3.Compose {
			continue
		}
		var parts []protocol.Component
		for j, component := range profile.Components {
			key := component.Name + " " + component.Properties.Repository + ":" + component.Properties.Revision
			if _, done := checked[key]; !done {
				at := fmt.Sprintf("deploymentProfiles[%d].components[%d]", i, j)
				part, digest := run.archive(ctx, r, at, component, app.Variables(component.Name))
				if checked[key] = part; digest != "" {
					pins = append(pins, pin{component.Properties.Repository, component.Properties.Revision, digest})
				}
			}
			parts = append(parts, checked[key])
		}
		if err := run.opts.CheckShared(parts); err != nil && r.Outcome == "" {
			r.refuse(protocol.Invalid, v1rc3.Problem{Path: fmt.Sprintf("deploymentProfiles[%d]", i), Message: err.Error()})
		}
	}
	return pins
}

// archive checks the archive of a component, and returns what is known of its containers,
// and its digest, "" where it was not read.
func (run *run) archive(ctx context.Context, r *Result, at string, c v1rc3.Component, variables []v1rc3.Variable) (part protocol.Component, digest protocol.Digest) {
	part.Name = c.Name
	host := hostOf(c.Properties.Repository)
	if run.away[host] {
		r.warn("component %s was not checked: registry %s is away", c.Name, host)
		return part, ""
	}
	if err := run.opts.Sources.Registry(host); err != nil {
		r.refuse(protocol.Invalid, v1rc3.Problem{Path: at + ".properties.repository", Message: err.Error()})
		return part, ""
	}
	limited, cancel := context.WithTimeout(ctx, run.opts.ArchiveTimeout)
	defer cancel()
	tgz, digest, err := run.opts.Registry.Archive(limited, c.Properties.Repository, c.Properties.Revision)
	switch kind := protocol.KindOf(err); {
	case err == nil:
		known, warnings, err := run.opts.CheckArchive(c.Name, tgz, variables)
		part.Containers = known.Containers
		if err != nil {
			r.refuse(protocol.Invalid, v1rc3.Problem{Path: at, Message: fmt.Sprintf("archive of component %s: %s", c.Name, err)})
		}
		for _, w := range warnings {
			r.warn("component %s: %s: %s", c.Name, "compose.yaml", w)
		}
		if run.opts.Images != nil {
			known.Name = c.Name
			run.images(ctx, r, at, known, run.opts.Images(c.Name, tgz, variables))
		}
	case limited.Err() != nil, kind == protocol.Unavailable:
		run.away[host] = true
		r.warn("component %s was not checked: %s", c.Name, err)
	case kind == protocol.NotFound, kind == protocol.Denied:
		r.warn("component %s was not checked: %s: it must be there before the application is deployed", c.Name, err)
	default:
		r.refuse(protocol.Invalid, v1rc3.Problem{Path: at + ".properties", Message: err.Error()})
	}
	return part, digest
}

// images checks that the images of the services that run can be had when they are deployed: a
// tag is looked up then. Where a parameter says the registry, a deployment may name another one.
func (run *run) images(ctx context.Context, r *Result, at string, known protocol.Component, images []packagecheck.Image) {
	for _, i := range packagecheck.Lookups(known, images) {
		host := graph.Host(i.Known)
		err := run.opts.Sources.Registry(host)
		switch {
		case err != nil && i.Pinned(): // nodes alone pull it
		case err != nil && i.Settled:
			r.refuse(protocol.Invalid, v1rc3.Problem{Path: at, Message: fmt.Sprintf("archive of component %s: %s: %s: %s, or name the image by its digest", known.Name, i.At, i.Known, err)})
		case err != nil:
			r.warn("component %s: compose.yaml: %s: %s: %s; so it is with the defaults of the parameters: a deployment must name an image of another registry", known.Name, i.At, i.Known, err)
		case host == run.opts.Host && i.Reference != "":
			limited, cancel := context.WithTimeout(ctx, run.opts.ArchiveTimeout)
			if _, err := run.opts.Registry.Image(limited, i.Reference); protocol.KindOf(err) == protocol.NotFound {
				r.warn("component %s: compose.yaml: %s: %s: it must be there before the application is deployed", known.Name, i.At, err)
			}
			cancel()
		}
	}
}

func hostOf(repository string) string {
	u, err := url.Parse(repository)
	if err != nil {
		return repository
	}
	return u.Host
}

// known settles a version that the catalog holds already.
func (run *run) known(ctx context.Context, r *Result) bool {
	have, err := run.opts.Store.AppVersion(ctx, r.App, r.Version)
	switch {
	case err == nil && have.Digest == r.Digest:
		r.Outcome = Unchanged
	case err == nil:
		r.refuse(protocol.Conflict, conflict(r))
	case protocol.KindOf(err) == protocol.NotFound:
		return false
	default:
		r.refuse(protocol.KindOf(err), v1rc3.Problem{Message: err.Error()})
	}
	return true
}

func conflict(r *Result) v1rc3.Problem {
	return v1rc3.Problem{Path: "metadata.version", Message: fmt.Sprintf(
		"version %s of %s was imported before with other content, and a version never changes: give this one another number", r.Version, r.App)}
}

func (run *run) store(ctx context.Context, r *Result, app *v1rc3.Application, doc []byte) {
	v := versionOf(app)
	v.Source, v.Digest, v.Document, v.ImportedAt = run.source, r.Digest, string(doc), time.Now().UTC()
	created, err := run.opts.Store.SaveAppVersion(ctx, v)
	switch kind := protocol.KindOf(err); {
	case err == nil && !created:
		r.Outcome = Unchanged // another import of it was quicker
	case err == nil:
		r.Outcome = Imported
		run.opts.Logger.InfoContext(ctx, "application imported", "app", v.AppID, "version", v.Version, "source", v.Source)
	case kind == protocol.Conflict:
		r.refuse(kind, conflict(r))
	default:
		r.refuse(kind, v1rc3.Problem{Message: err.Error()})
	}
}

// versionOf is what the catalog shows of an application.
func versionOf(app *v1rc3.Application) fleet.AppVersion {
	v := fleet.AppVersion{
		AppID: app.ID, Version: app.Metadata.Version, Name: app.Metadata.Name, Description: app.Metadata.Description,
		Profiles: make([]fleet.Profile, 0, len(app.Profiles)), Parameters: make([]fleet.Parameter, 0, len(app.Parameters)),
	}
	for _, p := range app.Profiles {
		profile := fleet.Profile{ID: p.ID, Type: string(p.Type), Description: p.Description, Components: []fleet.Component{}}
		for _, c := range p.Components {
			profile.Components = append(profile.Components, fleet.Component{
				Name: c.Name, Repository: c.Properties.Repository, Revision: c.Properties.Revision,
			})
		}
		v.Profiles = append(v.Profiles, profile)
	}
	for _, name := range slices.Sorted(maps.Keys(app.Parameters)) {
		p := fleet.Parameter{Name: name, Default: app.Parameters[name].Value}
		if setting, schema, ok := app.Setting(name); ok {
			p.Label, p.Description, p.Immutable, p.Schema = setting.Name, setting.Description, setting.Immutable, schema
		}
		v.Parameters = append(v.Parameters, p)
	}
	return v
}
