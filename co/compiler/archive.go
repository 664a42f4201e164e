package compiler

import (
	"context"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/protocol"
)

const composeFile = composearchive.ComposeFile

// CheckArchive says whether a Compose archive can be compiled, as far as that can
// be known without the values of parameters: its layout, every key of its
// compose.yaml, and every value that depends on no parameter. An import calls it, so
// that a package that can never run is refused at once. Name is that of the
// component, for messages; variables are those that parameters may set. Warnings name
// what runs and is probably not meant. The component that is returned holds what is
// known by now, for CheckShared. Errors are of kind protocol.Invalid.
func CheckArchive(name string, tgz []byte, variables []string) (component protocol.Component, warnings []string, err error) {
	component.Name = name
	a, err := readArchive(name, tgz)
	if err != nil {
		return component, nil, err
	}
	t := &translation{component: name, archive: a, open: map[string]bool{}, unknown: map[string]bool{}}
	values := map[string]string{}
	for _, v := range variables {
		if !variableName.MatchString(v) {
			return component, nil, protocol.Errorf(protocol.Invalid, "component %s: a parameter has the pointer %q: %s", name, v, wantVariable)
		}
		t.open[v], values[v] = true, placeholder
	}
	t.readVariables(values)
	if component.Containers, err = t.containers(context.Background()); err != nil {
		return component, t.warnings, err
	}
	for i := range component.Containers {
		if c := &component.Containers[i]; t.unknown[c.Name] {
			c.Image = "" // a deployment will say it
		}
	}
	return component, t.warnings, CheckShared([]protocol.Component{component})
}

func readArchive(component string, tgz []byte) (*composearchive.Archive, error) {
	a, err := composearchive.Read(tgz)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "component %s: %w", component, err)
	}
	return a, nil
}
