// Package fault says where in the file of a deployment stands what keeps one of its components
// from being compiled. It is pure.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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
// of the parameter whose value is at fault, else that of the component. An error that may pass
// by itself, and one of no component, is returned as it is.
func Locate(err error, d *v1rc3.Deployment, raw []byte) error {
	f, ok := errors.AsType[*Fault](err)
	kind := protocol.KindOf(err)
	if !ok || len(raw) == 0 || kind == protocol.Unavailable || kind == protocol.Internal || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	path := parameter(f, d)
	for i, c := range d.Spec.Profile.Components {
		if c.Name == f.Component && path == "" {
			path = fmt.Sprintf("spec.deploymentProfile.components[%d]", i)
		}
	}
	return protocol.Errorf(kind, "%w", document.Locate(raw, v1rc3.Problems{{Path: path, Message: err.Error()}}))
}

// parameter returns the path of the first parameter that sets one of the variables of a fault.
func parameter(f *Fault, d *v1rc3.Deployment) string {
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
		for _, t := range d.Spec.Parameters[name].Targets {
			if slices.Contains(t.Components, f.Component) && slices.Contains(f.Variables, t.Pointer) {
				return "spec.parameters." + name + ".value"
			}
		}
	}
	return ""
}
