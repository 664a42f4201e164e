package packagecheck

import (
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// An Image is that of a service, as far as it is known before there is a deployment.
type Image struct {
	Service string
	At      string // where it stands: "line 3: services.web.image"
	// Reference is the one that it has with the defaults of parameters; empty where a
	// deployment must say a part of it.
	Reference string
	// Known is Reference, with a letter for each part that a deployment must say.
	Known string
	// Settled says that no deployment changes the registry that it comes from.
	Settled bool
}

// unknown stands for what a deployment says. No name of an image has it.
const unknown = "\x00"

// Images returns the images of the services of a Compose document, by their names. Fill fills the
// variables of a text in, first those that are given and then those of the document.
func Images(document map[string]any, variables []v1rc3.Variable, fill func(text string, values map[string]string) (string, error)) (all []Image) {
	defaults, open := map[string]string{}, map[string]string{}
	for _, v := range variables {
		open[v.Name] = unknown
		if v.Default != nil {
			defaults[v.Name] = *v.Default
		} else if v.Required {
			defaults[v.Name] = unknown
		}
	}
	services, _ := document["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, _ := services[name].(map[string]any)
		text, _ := service["image"].(string)
		reference, err := fill(text, defaults)
		if err != nil || reference == "" {
			continue // another check says what is wrong
		}
		i := Image{Service: name, Known: strings.ReplaceAll(reference, unknown, "x")}
		if i.Known == reference {
			i.Reference = reference
		}
		if marked, err := fill(text, open); err == nil {
			i.Settled = settled(marked)
		}
		all = append(all, i)
	}
	return all
}

// Lookups returns those of the images that are looked up when a component is deployed: those of
// services that run, as far as their registry is known beforehand.
func Lookups(c protocol.Component, images []Image) (all []Image) {
	for _, i := range images {
		runs := slices.ContainsFunc(c.Containers, func(c protocol.Container) bool { return c.Name == i.Service })
		if runs && (i.Reference != "" || i.Settled) {
			all = append(all, i)
		}
	}
	return all
}

// Pinned reports whether an image is named by its digest: nodes alone pull it.
func (i Image) Pinned() bool { return strings.Contains(i.Known, "@") }

// settled reports whether nothing unknown is in the part of a name that says its registry: what
// stands before the first slash, or, without one, the whole name of an image of Docker Hub.
func settled(marked string) bool {
	host, _, slash := strings.Cut(marked, "/")
	if !slash {
		host, _, _ = strings.Cut(marked, ":")
	}
	return !strings.Contains(host, unknown)
}
