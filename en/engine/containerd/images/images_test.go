package images

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"

	"github.com/containerd/errdefs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/registryhosts"
	"github.com/colonyfleet/colony/protocol"
)

// TestRegistryWithoutSpace pulls from a registry whose disk is full: the fault names it and
// what the registry says of it.
func TestRegistryWithoutSpace(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"errors":[{"code":"UNAVAILABLE","message":"10 bytes are free on the disk of /lo"}]}`: "10 bytes are free on the disk of /lo",
		`{"errors":[{"code":"NO_SPACE","message":"enlarge the disk"}]}`:                        "pull r/web: the image cache of the site's local orchestrator has no room for it: enlarge the disk",
		"": "free some space there",
	} {
		err := fmt.Errorf("copy: %w", remoteerrors.ErrUnexpectedStatus{Status: "507 Insufficient Storage", StatusCode: http.StatusInsufficientStorage, Body: []byte(body)})
		got := new(Store).pullFault(err, "r/web")
		if code := engine.CodeOf(got); code != protocol.NoSpace || !strings.Contains(got.Error(), want) || body != "" && strings.Contains(got.Error(), "free some space") {
			t.Errorf("a pull refused with 507 and %q: code %s, %v; want %s with %q", body, code, got, protocol.NoSpace, want)
		}
	}
}

// TestImageOfAnotherRegistry asks for an image that the registry lacks: where the node may ask a
// mirror alone, the fault names that, and says nothing of the image's own registry.
func TestImageOfAnotherRegistry(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]registryhosts.Options{
		"the registry does not have it":                      {Mirror: "http://lo.example:8887"},
		"the mirror http://lo.example:8887 does not have it": {Mirror: "http://lo.example:8887", MirrorOnly: true},
	} {
		c := registryhosts.New(o)
		defer c.Close()
		got := New(Options{Registries: c}).pullFault(fmt.Errorf("docker.io/library/web: %w", errdefs.ErrNotFound), "docker.io/library/web")
		if code := engine.CodeOf(got); code != protocol.ImageNotFound || !strings.Contains(got.Error(), want) {
			t.Errorf("code %s, %v; want %s with %q", code, got, protocol.ImageNotFound, want)
		}
	}
}
