package compiler

import (
	"context"
	"maps"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/co/compiler/examination"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const composeFile = composearchive.ComposeFile

// CheckArchive says whether a Compose archive can be compiled: its layout, every key of its
// compose.yaml, every value that depends on no parameter, and the values that it has with
// the defaults of the parameters. An import calls it, so that a package that cannot run as
// it is is refused at once. Name is that of the component, for messages; variables are
// those that parameters set. Warnings name what runs and is probably not meant, and what
// does not compile unless a deployment gives a value. The component that is returned holds
// what is known by now, for CheckShared, with the defaults; the image of a container is
// empty where a deployment must say a part of it. Errors are of kind protocol.Invalid.
func CheckArchive(name string, tgz []byte, variables []v1rc3.Variable) (component protocol.Component, warnings []string, err error) {
	e, err := examine(name, tgz, variables)
	if err != nil {
		return protocol.Component{Name: name}, nil, err
	}
	component, warnings = protocol.Component{Name: name, Containers: e.Containers}, byLine(e.Warnings)
	if err := refused(name, e.Problems); err != nil {
		return component, warnings, err
	}
	return component, warnings, CheckShared([]protocol.Component{component})
}

// Images returns the images of the services of an archive that CheckArchive has read, as far as
// they are known before there is a deployment. Variables are those that parameters set.
func Images(name string, tgz []byte, variables []v1rc3.Variable) []packagecheck.Image {
	a, err := readArchive(name, tgz)
	if err != nil {
		return nil
	}
	t := newTranslation(name, a, nil)
	if t.document, err = composefile.Read(a.Files, composeFile, t.variables); err != nil {
		return nil
	}
	maps.Copy(t.variables, t.document.Variables)
	all := packagecheck.Images(t.document.Values, variables, func(text string, values map[string]string) (string, error) {
		return interpolate.Text(text, func(name string) (string, bool) {
			if v, ok := values[name]; ok {
				return v, true
			}
			return t.lookup(name)
		})
	})
	for i := range all {
		path, line := t.located("services."+all[i].Service+".image", "")
		all[i].At = line + path
	}
	return all
}

// Unfit lists those variables whose defaults keep an archive from compiling, so that a
// deployment must give them values. It is empty where the archive cannot be read.
func Unfit(name string, tgz []byte, variables []v1rc3.Variable) []string {
	e, err := examine(name, tgz, variables)
	if err != nil {
		return nil
	}
	return e.Unfit
}

func readArchive(component string, tgz []byte) (*composearchive.Archive, error) {
	a, err := composearchive.Read(tgz)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "component %s: %w", component, err)
	}
	return a, nil
}

// examine looks at a component before there is a deployment.
func examine(name string, tgz []byte, variables []v1rc3.Variable) (examination.Result, error) {
	a, err := readArchive(name, tgz)
	if err != nil {
		return examination.Result{}, err
	}
	for _, v := range variables {
		if !packagecheck.IsVariable(v.Name) {
			return examination.Result{}, protocol.Errorf(protocol.Invalid, "component %s: the parameter %s has the pointer %q: %s", name, v.Parameter, v.Name, packagecheck.WantVariable)
		}
	}
	return examination.Run(variables, func(in examination.Input) examination.Outcome {
		for v := range in.Open {
			in.Values[v] = placeholder
		}
		t := newTranslation(name, a, in.Values)
		t.open, t.unknown, t.parameters = in.Open, map[string]bool{}, in.Parameters
		containers, _ := t.containers(context.Background()) // what is wrong is in t.problems
		return examination.Outcome{
			Containers: containers, Problems: t.problems, Warnings: t.warnings, Paths: t.paths, Uses: t.uses,
			Profiles: t.optional, Chosen: t.profiles(), Open: t.unknown, Values: t.variables,
		}
	}), nil
}
