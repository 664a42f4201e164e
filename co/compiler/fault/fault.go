// Package fault says where in the file of a deployment stands what keeps one of its components
// from being compiled. It is pure.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A Fault is an error of one component.
type Fault struct {
	Component string
	Variables []string // of the places in its Compose file that are at fault
	Err       error
}

// Error returns the text of the error.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the error, which has a kind.
func (f *Fault) Unwrap() error { return f.Err }

// Locate returns an error of a compilation with the line in the file of the deployment, raw: that
// of the parameter whose value is at fault, else that of the component. Where several parameters
// fill what is at fault, it names all. An error that may pass by itself, and one of no component,
// is returned as it is.
func Locate(err error, d *v1rc3.Deployment, raw []byte) error {
	f, ok := errors.AsType[*Fault](err)
	kind := protocol.KindOf(err)
	if !ok || len(raw) == 0 || kind == protocol.Unavailable || kind == protocol.Internal || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	path, message := "", err.Error()
	for i, c := range d.Spec.Profile.Components {
		if c.Name == f.Component {
			path = fmt.Sprintf("spec.deploymentProfile.components[%d]", i)
		}
	}
	if names := parameters(f, d); len(names) > 0 {
		path = "spec.parameters." + names[0] + ".value"
		if last := len(names) - 1; last > 0 {
			message = fmt.Sprintf("with the values of %s and %s: %s", strings.Join(names[:last], ", "), names[last], message)
		}
	}
	return protocol.Errorf(kind, "%w", document.Locate(raw, v1rc3.Problems{{Path: path, Message: message}}))
}

// parameters returns the parameters that set variables of a fault.
func parameters(f *Fault, d *v1rc3.Deployment) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
		if slices.ContainsFunc(d.Spec.Parameters[name].Targets, func(t v1rc3.Target) bool {
			return slices.Contains(t.Components, f.Component) && slices.Contains(f.Variables, t.Pointer)
		}) {
			names = append(names, name)
		}
	}
	return names
}
