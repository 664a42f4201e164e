// Package uses finds the users of content of the CO's own registry: deployments and nodes by the
// images of their specifications, files of the deployments repo by the archives of their
// components, and the catalog by both. Content in use is not removed.
package uses

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Store is the CO's record.
type Store interface {
	// SpecsWith returns the specifications that hold a text and that a deployment is to run,
	// or a node has.
	SpecsWith(ctx context.Context, text string) ([]fleet.SpecUse, error)
	// Apps lists applications; the text is the cursor of the next page.
	Apps(ctx context.Context, p fleet.Page) ([]fleet.App, string, error)
	// AppVersion returns one version of an application.
	AppVersion(ctx context.Context, id, version string) (fleet.AppVersion, error)
}

// Options are what a Finder works with. All are needed.
type Options struct {
	// Host is the registry's name in references.
	Host  string
	Store Store
	// Archive returns the Compose archive of a component.
	Archive func(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error)
	// Check reads the archive of a component with the defaults of variables, which parameters
	// set. The image of a container is empty where one of them says it.
	Check func(component string, tgz []byte, variables []v1rc3.Variable) (protocol.Component, []string, error)
	// Files returns the files of the deployments repo by path.
	Files func(ctx context.Context) (map[string][]byte, error)
}

// A Finder finds uses. It may be used concurrently.
type Finder struct{ o Options }

// New returns a Finder.
func New(o Options) *Finder { return &Finder{o} }

// Of returns the users of what a removal takes away, sorted, each once. The error says what could
// not be read; then there may be more users.
func (f *Finder) Of(ctx context.Context, r graph.Removal) ([]fleet.ImageUse, error) {
	specs, err := f.specs(ctx, r)
	if err != nil {
		return nil, err
	}
	files, err := f.files(ctx, r)
	if err != nil {
		return nil, err
	}
	apps, err := f.apps(ctx, r)
	all := slices.Concat(specs, files, apps)
	slices.SortFunc(all, func(a, b fleet.ImageUse) int {
		return strings.Compare(a.Kind+" "+a.Name+" "+a.Needs, b.Kind+" "+b.Name+" "+b.Needs)
	})
	return slices.Compact(all), err
}

// shown is how many uses an error names.
const shown = 10

// Guard returns an error of kind Conflict where a removal would take away content in use.
func (f *Finder) Guard(ctx context.Context, r graph.Removal) error {
	found, err := f.Of(ctx, r)
	if len(found) == 0 {
		return err
	}
	var names []string
	for _, u := range found[:min(len(found), shown)] {
		names = append(names, u.Kind+" "+u.Name)
	}
	more := ""
	if n := len(found) - shown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return protocol.Errorf(protocol.Conflict, "%s is in use by %s%s: deploy another version there, or remove them, first",
		describe(r), strings.Join(slices.Compact(names), ", "), more)
}

func describe(r graph.Removal) string {
	if len(r.Tags) == 0 && len(r.Manifests) > 0 {
		return graph.Reference(r.Repository, string(r.Manifests[0]))
	}
	return r.Repository + ":" + strings.Join(r.Tags, ", ")
}

// specs returns the deployments and nodes whose specifications name a manifest.
func (f *Finder) specs(ctx context.Context, r graph.Removal) (found []fleet.ImageUse, err error) {
	for _, d := range r.Manifests {
		ref := f.o.Host + "/" + graph.Reference(r.Repository, string(d))
		list, err := f.o.Store.SpecsWith(ctx, string(d))
		if err != nil {
			return nil, err
		}
		for _, u := range list {
			var spec protocol.DeploymentSpec
			// What cannot be read holds the digest: that is taken for a use.
			if err := protocol.Unmarshal(u.Spec, &spec); err == nil && !runs(&spec, ref) {
				continue
			}
			if u.Desired {
				found = append(found, fleet.ImageUse{Kind: fleet.UsedByDeployment, Name: string(u.Site) + "/" + string(u.Deployment), Needs: ref})
			}
			for _, n := range u.Nodes {
				found = append(found, fleet.ImageUse{Kind: fleet.UsedByNode, Name: string(u.Site) + "/" + string(n), Needs: ref + " for " + string(u.Deployment)})
			}
		}
	}
	return found, nil
}

func runs(spec *protocol.DeploymentSpec, ref string) bool {
	return slices.ContainsFunc(spec.Components, func(c protocol.Component) bool {
		return slices.ContainsFunc(c.Containers, func(c protocol.Container) bool { return c.Image == ref })
	})
}

// files returns the deployments whose files name an archive: the next change of one reads it.
func (f *Finder) files(ctx context.Context, r graph.Removal) (found []fleet.ImageUse, err error) {
	files, err := f.o.Files(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the deployments repo: %w", err)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if !bytes.Contains(files[path], []byte(r.Repository)) {
			continue
		}
		d, err := v1rc3.ParseDeployment(files[path])
		if err != nil {
			continue // no deployment, or one that must be corrected before it is read
		}
		site, _, _ := d.Device()
		for _, c := range d.Spec.Profile.Components {
			if f.names(r, c.Properties.Repository, c.Properties.Revision) {
				found = append(found, fleet.ImageUse{Kind: fleet.UsedByDeployment, Name: site + "/" + d.Metadata.Name, Needs: c.Properties.Repository + ":" + c.Properties.Revision})
			}
		}
	}
	return found, nil
}

// names reports whether the archive of a component is what goes.
func (f *Finder) names(r graph.Removal, repository, revision string) bool {
	return repository == "oci://"+f.o.Host+"/"+r.Repository && slices.Contains(r.Tags, revision)
}

// apps returns the versions in the catalog that name an archive or an image.
func (f *Finder) apps(ctx context.Context, r graph.Removal) (found []fleet.ImageUse, err error) {
	s := search{f, r, map[string][]string{}}
	page := fleet.Page{Limit: fleet.MaxLimit}
	for {
		apps, next, err := f.o.Store.Apps(ctx, page)
		if err != nil {
			return found, err
		}
		for _, app := range apps {
			for _, version := range app.Versions {
				needs, err := s.version(ctx, app.ID, version)
				for _, n := range needs {
					found = append(found, fleet.ImageUse{Kind: fleet.UsedByApplication, Name: app.ID + "@" + version, Needs: n})
				}
				if err != nil {
					return found, protocol.Errorf(protocol.Unavailable, "it is not known whether application %s %s uses it: bring its registry back, or remove this version: %w", app.ID, version, err)
				}
			}
		}
		if next == "" {
			return found, nil
		}
		page.Cursor = next
	}
}

// A search looks through the catalog, and reads each archive once.
type search struct {
	*Finder
	r      graph.Removal
	images map[string][]string // by component, archive and variables
}

// version returns what a version needs of what goes.
func (s *search) version(ctx context.Context, id, version string) (needs []string, err error) {
	v, err := s.o.Store.AppVersion(ctx, id, version)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, nil // it was removed meanwhile
	}
	if err != nil {
		return nil, err
	}
	app, err := v1rc3.ParseApplication([]byte(v.Document))
	if err != nil {
		return nil, err
	}
	for _, p := range app.Profiles {
		if p.Type != v1rc3.Compose {
			continue
		}
		for _, c := range p.Components {
			archive := c.Properties.Repository + ":" + c.Properties.Revision
			if s.names(s.r, c.Properties.Repository, c.Properties.Revision) {
				needs = append(needs, archive)
			}
			images, err := s.imagesOf(ctx, c, app.Variables(c.Name))
			if err != nil {
				return needs, err
			}
			for _, image := range images {
				if s.goes(image) {
					needs = append(needs, image+" in "+archive)
				}
			}
		}
	}
	return needs, nil
}

// imagesOf returns the images that the archive of a component names.
func (s *search) imagesOf(ctx context.Context, c v1rc3.Component, variables []v1rc3.Variable) ([]string, error) {
	key := fmt.Sprint(c.Name, " ", c.Properties.Repository, " ", c.Properties.Revision)
	for _, v := range variables {
		key += fmt.Sprintf(" %s %t", v.Name, v.Required)
		if v.Default != nil {
			key += fmt.Sprintf(" %q", *v.Default)
		}
	}
	if images, ok := s.images[key]; ok {
		return images, nil
	}
	tgz, _, err := s.o.Archive(ctx, c.Properties.Repository, c.Properties.Revision)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, nil // nothing can be deployed from it
	}
	if err != nil {
		return nil, err
	}
	part, _, err := s.o.Check(c.Name, tgz, variables)
	if protocol.KindOf(err) == protocol.Invalid {
		err = nil // nothing can be deployed from it; what was read of it counts
	}
	if err != nil {
		return nil, err
	}
	images := []string{}
	for _, container := range part.Containers {
		images = append(images, container.Image)
	}
	s.images[key] = images
	return images, nil
}

// goes reports whether an image, as a Compose file names it, is what goes.
func (s *search) goes(image string) bool {
	rest, own := strings.CutPrefix(image, s.o.Host+"/")
	rest, digest, pinned := strings.Cut(rest, "@")
	name, tag, tagged := strings.Cut(rest, ":")
	if !tagged {
		tag = "latest"
	}
	if !own || name != s.r.Repository {
		return false
	}
	return pinned && slices.Contains(s.r.Manifests, protocol.Digest(digest)) || !pinned && slices.Contains(s.r.Tags, tag)
}
