package cli

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

func TestImageCommands(t *testing.T) {
	t.Parallel()
	d := protocol.DigestOf(nil)
	hello := images.Image{Repository: "samples/hello", Tag: "1.0.0", Digest: d, Kind: "image", Bytes: 2048}
	removed := images.Image{Repository: "samples/hello", Digest: d, Bytes: 1024, RemovedAt: past(2 * time.Hour)}
	s := serve(t, map[string]any{
		"GET /images?":                                  images.Images{Items: []images.Image{hello}, Next: "c"},
		"GET /images?cursor=c":                          images.Images{Items: []images.Image{removed}},
		"GET /images?repository=a":                      images.Images{Items: []images.Image{}},
		"GET /images/uses?image=samples%2Fhello%3A1":    images.Uses{Uses: []fleet.ImageUse{{Kind: fleet.UsedByNode, Name: "plant/gw-1", Needs: "x"}}},
		"DELETE /images?image=samples%2Fhello%3A1":      images.Removal{Tags: []string{"1"}, Manifests: []protocol.Digest{d}},
		"DELETE /images?image=a%40" + "sha256%3A" + "0": images.Removal{Tags: []string{"1", "2"}},
	})
	const head = "REPOSITORY TAG DIGEST SIZE KIND STATE"
	wantRun(t, s.URL, "image list", table(head, "samples/hello 1.0.0 "+string(d)+" 2.0 KiB image -", "samples/hello - "+string(d)+" 1.0 KiB - removed 2h ago"), "", exitOK)
	wantRun(t, s.URL, "image list a", table(head), "", exitOK)
	wantRun(t, s.URL, "image uses samples/hello:1", table("USED-BY NAME NEEDS", "node plant/gw-1 x"), "", exitOK)
	wantRun(t, s.URL, "image remove samples/hello:1", table("samples/hello:1: removed", "samples/hello@"+string(d)+": removed in one day, unless something needs it then"), "", exitOK)
	wantRun(t, s.URL, "image remove a@sha256:0", table("a:1: removed", "a:2: removed", "the image stays: another tag or an index names it"), "", exitOK)
}
