package compiler

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestArchiveThatCanRunNothing refuses, when it is imported, what has no image to run.
func TestArchiveThatCanRunNothing(t *testing.T) {
	t.Parallel()
	for compose, want := range map[string]string{
		"services: {}":                  "line 1: services: no service runs: want one at least",
		"services: {a: {command: [x]}}": "line 1: services.a: it has no image: name one in image",
		"services: {a: {image: ''}}":    "line 1: services.a: it has no image: name one in image",
		"services: {a: {image: '${SET}'}, b: {command: ['${SET}']}}": "line 1: services.b: it has no image: name one in image",
	} {
		_, _, err := CheckArchive("c", composeArchive(t, compose, nil), open("SET"))
		if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", compose, err, want)
		}
	}
	if _, _, err := CheckArchive("c", composeArchive(t, "services: {a: {image: '${SET}'}}", nil), open("SET")); err != nil {
		t.Errorf("an image that a parameter names: %v", err)
	}
}
