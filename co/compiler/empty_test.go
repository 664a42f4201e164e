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
		"services: {}":                  "services: empty: want at least one service",
		"services: {a: {command: [x]}}": `service "a" has neither an image`,
		"services: {a: {image: ''}}":    `service "a" has neither an image`,
		"services: {a: {image: '${SET}'}, b: {command: ['${SET}']}}": `service "b" has neither an image`,
	} {
		_, _, err := CheckArchive("c", composeArchive(t, compose, nil), []string{"SET"})
		if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", compose, err, want)
		}
	}
	if _, _, err := CheckArchive("c", composeArchive(t, "services: {a: {image: '${SET}'}}", nil), []string{"SET"}); err != nil {
		t.Errorf("an image that a parameter names: %v", err)
	}
}
