package engine_test

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

func TestIDOrder(t *testing.T) {
	t.Parallel()
	want := []engine.ID{
		{Deployment: "a", Component: "z", Name: "z"},
		{Deployment: "b", Component: "a", Name: "z"},
		{Deployment: "b", Component: "b", Name: "a"},
		{Deployment: "b", Component: "b", Name: "b"},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, engine.ID.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("sorted %v, want %v", got, want)
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("update: %w", engine.Errorf(protocol.NoSpace, "pull: %w", io.ErrShortWrite))
	if engine.CodeOf(err) != protocol.NoSpace || engine.CodeOf(io.EOF) != protocol.InternalError {
		t.Errorf("codes %s and %s", engine.CodeOf(err), engine.CodeOf(io.EOF))
	}
	if e := engine.Errorf(protocol.NoSpace, "pull: %w", io.ErrShortWrite); fmt.Sprint(e) != "pull: short write" {
		t.Errorf("message %q", e)
	}
}
