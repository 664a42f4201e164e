package packaging

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A Registry is where packages are pushed.
type Registry interface {
	// PushArchive stores the Compose archive of a component.
	PushArchive(ctx context.Context, repository, revision string, tgz []byte) (protocol.Digest, error)
	// PushPackage stores an application package under a tag that is its version.
	PushPackage(ctx context.Context, ref string, pkg fs.FS) (protocol.Digest, error)
}

// A Pushed is an artifact of a package.
type Pushed struct {
	Kind      string          `json:"kind"` // component or package
	Name      string          `json:"name"`
	Reference string          `json:"reference"`        // where it was pushed: REPOSITORY:TAG
	Digest    protocol.Digest `json:"digest,omitempty"` // "" where it was not pushed
	// Note says why a component was not pushed.
	Note string `json:"note,omitempty"`
}

// Push packs the components of the package in folder and pushes each to where its
// margo.yaml says, and then the package itself to ref, with its version as the tag: what a
// package names is there before it. It returns what it pushed, also with an error.
func Push(ctx context.Context, r Registry, folder fs.FS, ref string) (pushed []Pushed, err error) {
	doc, err := fs.ReadFile(folder, "margo.yaml")
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "margo.yaml: %w; want the folder of a package", cause(err))
	}
	app, err := v1rc3.ParseApplication(doc)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "margo.yaml: %w", err)
	}
	done := map[string]bool{}
	for _, profile := range app.Profiles {
		for _, c := range profile.Components {
			p := Pushed{Kind: "component", Name: c.Name, Reference: c.Properties.Repository + ":" + c.Properties.Revision}
			if done[p.Reference] {
				continue
			}
			done[p.Reference] = true
			if profile.Type != v1rc3.Compose {
				p.Note = fmt.Sprintf("not pushed: it is of type %s, and Colony packs compose", profile.Type)
			} else if err := p.pushComponent(ctx, r, folder, c); err != nil {
				return pushed, fmt.Errorf("component %s: %w", c.Name, err)
			}
			pushed = append(pushed, p)
		}
	}
	p := Pushed{Kind: "package", Name: app.ID, Reference: tagged(ref, app.Metadata.Version)}
	if p.Digest, err = r.PushPackage(ctx, p.Reference, folder); err != nil {
		return pushed, err
	}
	return append(pushed, p), nil
}

// pushComponent packs and pushes a component, where it lies in the folder.
func (p *Pushed) pushComponent(ctx context.Context, r Registry, folder fs.FS, c v1rc3.Component) error {
	at := path.Join("components", c.Name)
	if _, err := fs.Stat(folder, path.Join(at, composeFile)); err != nil {
		p.Note = fmt.Sprintf("not pushed: there is no %s", path.Join(at, composeFile))
		return nil
	}
	sub, err := fs.Sub(folder, at)
	if err != nil {
		return err
	}
	tgz, err := archive.Build(c.Name, sub)
	if err != nil {
		return err
	}
	p.Digest, err = r.PushArchive(ctx, c.Properties.Repository, c.Properties.Revision, tgz)
	return err
}

// tagged returns ref with a tag, the version where it has none.
func tagged(ref, version string) string {
	if strings.Contains(ref[strings.LastIndexByte(ref, '/')+1:], ":") {
		return ref
	}
	return ref + ":" + version
}
