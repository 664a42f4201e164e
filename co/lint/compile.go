package lint

import (
	"context"
	"path"
	"strings"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A component is one that lies in the folder, and with which nothing is wrong.
type component struct {
	folder string
	tgz    []byte
}

// packed are components by their reference in a registry. It is a resolver of the compiler
// that knows of no registry: any image is there, with a check of its health.
type packed map[string]component

func reference(repository, revision string) string {
	return repository + ":" + revision
}

// Archive returns a component of the folder, or an error of kind NotFound.
func (p packed) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	c, ok := p[reference(repository, revision)]
	if !ok {
		return nil, "", protocol.Errorf(protocol.NotFound, "the folder has no component %s", reference(repository, revision))
	}
	return c.tgz, protocol.DigestOf(c.tgz), nil
}

// Image pins a reference by a digest that stands for the one that it has.
func (packed) Image(_ context.Context, ref string) (string, error) {
	name, _, _ := strings.Cut(ref, "@")
	return name + "@" + string(protocol.DigestOf([]byte(ref))), nil
}

// Health returns a check, which the image may have.
func (packed) Health(context.Context, string) (*protocol.Health, error) {
	return &protocol.Health{Command: []string{"true"}}, nil
}

// compile compiles a deployment whose components lie in the folder, with the values of its
// file. What is wrong is shown where it stands in the component.
func (l *linter) compile(file string, d *v1rc3.Deployment) {
	_, _, err := compiler.Compile(context.Background(), d, l.packed)
	if err == nil || protocol.KindOf(err) == protocol.NotFound {
		return // a component that was refused, or that is elsewhere, was reported
	}
	for _, c := range d.Spec.Profile.Components {
		held, ok := l.packed[reference(c.Properties.Repository, c.Properties.Revision)]
		list, of := strings.CutPrefix(err.Error(), "component "+c.Name+": "+composeFile+":\n")
		if !ok || !of {
			continue
		}
		for line := range strings.SplitSeq(list, "\n") {
			l.lines(path.Join(held.folder, composeFile), line+"; so it is with the values of "+file, false)
		}
		return
	}
	l.problems(file, err)
}
