package uses_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/co/registry/uses"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// record has one application, whose archive names images, and specifications by what they
// hold.
type record struct {
	images  []string // of the archive oci://registry.colony/apps/meter:1.0.0
	away    error    // of the archive
	specs   []fleet.SpecUse
	removed bool // the version, since it was listed
}

func (r *record) SpecsWith(_ context.Context, text string) (found []fleet.SpecUse, err error) {
	for _, u := range r.specs {
		if strings.Contains(string(u.Spec), text) {
			found = append(found, u)
		}
	}
	return found, nil
}

func (r *record) Apps(_ context.Context, p fleet.Page) ([]fleet.App, string, error) {
	if p.Cursor == "" {
		return nil, "next", nil
	}
	return []fleet.App{{ID: "meter", Versions: []string{"1.0.0"}}}, "", nil
}

const document = `apiVersion: v1
id: meter
metadata:
  name: Meter
  version: "1.0.0"
  catalog: {organization: [{name: Colony}]}
deploymentProfiles:
  - type: compose
    id: meter-compose
    components:
      - name: meter
        properties: {repository: "oci://registry.colony/apps/meter", revision: 1.0.0}
`

func (r *record) AppVersion(context.Context, string, string) (fleet.AppVersion, error) {
	if r.removed {
		return fleet.AppVersion{}, protocol.Errorf(protocol.NotFound, "removed")
	}
	return fleet.AppVersion{Document: document}, nil
}

func (r *record) finder() *uses.Finder {
	return uses.New(uses.Options{
		Host: "registry.colony", Store: r,
		Archive: func(context.Context, string, string) ([]byte, protocol.Digest, error) { return nil, "", r.away },
		Check: func(name string, _ []byte, _ []v1rc3.Variable) (protocol.Component, []string, error) {
			c := protocol.Component{Name: name}
			for _, image := range r.images {
				c.Containers = append(c.Containers, protocol.Container{Image: image})
			}
			return c, nil, nil
		},
		Files: func(context.Context) (map[string][]byte, error) { return nil, nil },
	})
}

func spec(image string) []byte {
	return protocol.Marshal(&protocol.DeploymentSpec{V: 1, Components: []protocol.Component{{Name: "x", Containers: []protocol.Container{{Name: "x", Image: image}}}}})
}

// TestWhoUses asks for the users of what goes with a name: by tag the catalog, by digest also
// specifications, each by the registry and the repository, too.
func TestWhoUses(t *testing.T) {
	t.Parallel()
	d := protocol.DigestOf(nil)
	own := "registry.colony/hello"
	all := graph.Removal{Repository: "hello", Tags: []string{"1", "latest"}, Manifests: []protocol.Digest{d}}
	for name, tt := range map[string]struct {
		record
		goes graph.Removal
		want string
	}{
		"a tag":                            {record{images: []string{own + ":1"}}, all, "application meter@1.0.0"},
		"no tag means latest":              {record{images: []string{own}}, all, "application meter@1.0.0"},
		"a digest":                         {record{images: []string{own + "@" + string(d)}}, all, "application meter@1.0.0"},
		"a tag with the digest":            {record{images: []string{own + ":9@" + string(d)}}, all, "application meter@1.0.0"},
		"a digest that stays":              {record{images: []string{own + "@" + string(d)}}, graph.Removal{Repository: "hello", Tags: []string{"1"}}, ""},
		"another tag":                      {record{images: []string{own + ":2"}}, all, ""},
		"another repository":               {record{images: []string{own + "s:1", "registry.colony/hello/b:1"}}, all, ""},
		"another registry":                 {record{images: []string{"docker.io/hello:1", "hello:1"}}, all, ""},
		"an image that a parameter says":   {record{images: []string{""}}, all, ""},
		"the archive":                      {record{}, graph.Removal{Repository: "apps/meter", Tags: []string{"1.0.0"}}, "application meter@1.0.0"},
		"another archive":                  {record{}, graph.Removal{Repository: "apps/meter", Tags: []string{"1.0.1"}}, ""},
		"a version that is removed":        {record{images: []string{own + ":1"}, removed: true}, all, ""},
		"a version that cannot be had":     {record{away: protocol.Errorf(protocol.NotFound, "no archive")}, all, ""},
		"a version of a registry away":     {record{away: protocol.Errorf(protocol.Unavailable, "no route")}, all, "unavailable"},
		"a version of a registry denied":   {record{away: protocol.Errorf(protocol.Denied, "log in")}, all, "unavailable"},
		"a desired deployment":             {record{specs: []fleet.SpecUse{{Site: "plant", Deployment: "x", Desired: true, Spec: spec(own + "@" + string(d))}}}, all, "deployment plant/x"},
		"a node that runs another version": {record{specs: []fleet.SpecUse{{Site: "plant", Deployment: "x", Nodes: []protocol.NodeID{"gw"}, Spec: spec(own + "@" + string(d))}}}, all, "node plant/gw"},
		"the digest in another repository": {record{specs: []fleet.SpecUse{{Site: "plant", Deployment: "x", Desired: true, Spec: spec("registry.colony/b@" + string(d))}}}, all, ""},
		"a specification that is unknown":  {record{specs: []fleet.SpecUse{{Site: "plant", Deployment: "x", Desired: true, Spec: []byte("?" + d)}}}, all, "deployment plant/x"},
	} {
		found, err := tt.finder().Of(t.Context(), tt.goes)
		var got []string
		for _, u := range found {
			got = append(got, u.Kind+" "+u.Name)
		}
		if err != nil {
			got = append(got, string(protocol.KindOf(err)))
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		guarded := tt.finder().Guard(t.Context(), tt.goes)
		if (guarded == nil) != (tt.want == "") {
			t.Errorf("%s: the guard says %v", name, guarded)
		}
	}
}

// The refusal names some of many, and how many more there are.
func TestGuardNamesSome(t *testing.T) {
	t.Parallel()
	d := protocol.DigestOf(nil)
	r := record{}
	for n := range 12 {
		r.specs = append(r.specs, fleet.SpecUse{Site: "plant", Deployment: protocol.DeploymentName(fmt.Sprintf("d%02d", n)), Desired: true, Spec: spec("registry.colony/hello@" + string(d))})
	}
	err := r.finder().Guard(t.Context(), graph.Removal{Repository: "hello", Tags: []string{"1"}, Manifests: []protocol.Digest{d}})
	if protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), "hello:1 is in use by deployment plant/d00") || !strings.Contains(err.Error(), "plant/d09 and 2 more") {
		t.Errorf("the guard says %v", err)
	}
}
