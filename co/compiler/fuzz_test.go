package compiler

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/protocol"
)

// Whatever a package holds, it is compiled or refused as invalid.
func FuzzTranslate(f *testing.F) {
	files, err := filepath.Glob("../../examples/components/*/compose.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("services: {a: {image: i, volumes: [{type: bind, source: /a, target: /b}], ports: [{target: 1, published: '2'}]}}"))
	f.Add([]byte("services: {a: {image: i, depends_on: {b: {condition: service_healthy}}}, b: {image: i, healthcheck: {test: x}}}"))
	f.Add([]byte("services: {a: {image: i, env_file: [{path: a.env}], deploy: {resources: {limits: {cpus: '1'}}}}}\nx-a: &a [1]\nvolumes: {v: }"))
	f.Fuzz(func(t *testing.T, compose []byte) {
		a := &composearchive.Archive{Files: map[string][]byte{composeFile: compose, "a.env": []byte("A=${B}\n")}}
		containers, err := newTranslation("web", a, map[string]string{"PORT": "8088", "B": "b"}).containers(t.Context())
		if err != nil {
			if protocol.KindOf(err) != protocol.Invalid {
				t.Fatalf("kind %s: %v", protocol.KindOf(err), err)
			}
			return
		}
		if len(containers) == 0 {
			t.Fatal("no containers and no error")
		}
		spec := protocol.DeploymentSpec{V: protocol.Version, Components: []protocol.Component{{Name: "web", Containers: containers}}}
		var again protocol.DeploymentSpec
		if err := protocol.Unmarshal(protocol.Marshal(&spec), &again); err != nil {
			t.Fatalf("the spec cannot be read back: %v", err)
		}
	})
}
