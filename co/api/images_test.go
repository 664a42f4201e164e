package api_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// pushImage stores an empty image of its own under a tag of the registry.
func (w *world) pushImage(repository, tag, text string) protocol.Digest {
	w.t.Helper()
	body := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[],"annotations":{"x":"` + text + `"}}`
	req := httptest.NewRequestWithContext(w.t.Context(), http.MethodPut, "/v2/"+repository+"/manifests/"+tag, strings.NewReader(body))
	answer := httptest.NewRecorder()
	w.registry.ServeHTTP(answer, req)
	if answer.Code != http.StatusCreated {
		w.t.Fatalf("push %s:%s: %d %s", repository, tag, answer.Code, answer.Body)
	}
	return protocol.DigestOf([]byte(body))
}

// TestImages lists what the registry holds, and removes it once nothing names it any more:
// the catalog names the image in the archives of its versions, and the archives; a deployment
// of the repo names its archive.
func TestImages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	w.importApps()
	hello := w.pushImage("samples/hello", "1.0.0", "image")
	w.pushImage("samples/hello", "2.0.0", "unused")
	w.pushImage("samples/compose/hello", "1.0.0", "archive")
	var page images.Images
	w.get("/api/v1/images?limit=2").into(http.StatusOK, &page)
	if len(page.Items) != 2 || page.Items[0].Repository != "samples/compose/hello" || page.Items[1].Digest != hello || page.Next == "" {
		t.Errorf("first page %+v", page)
	}
	var second images.Images
	w.get("/api/v1/images?repository=samples/hello&cursor="+url.QueryEscape(page.Next)).into(http.StatusOK, &second)
	if len(second.Items) != 1 || second.Items[0].Tag != "2.0.0" || second.Next != "" {
		t.Errorf("second page %+v", second)
	}

	const at = "/api/v1/images?image="
	remove := func(image string) answer { t.Helper(); return w.do(http.MethodDelete, at+url.QueryEscape(image), nil) }
	remove("samples/hello").fails(http.StatusUnprocessableEntity, "REPOSITORY:TAG")
	remove("../hello:1").fails(http.StatusNotFound, "no repository")
	remove("samples/hello:9").fails(http.StatusNotFound, "samples/hello:9")
	remove("samples/hello:2.0.0").into(http.StatusOK, nil)
	remove("samples/hello:1.0.0").fails(http.StatusConflict, "in use by application hello@1.0.0, application hello@1.1.0")
	remove("samples/hello@"+string(hello)).fails(http.StatusConflict, "application hello@1.0.0")
	var uses images.Uses
	w.get("/api/v1/images/uses?image=samples/hello:1.0.0").into(http.StatusOK, &uses)
	const archive = "oci://registry.colony/samples/compose/hello:1."
	want := []fleet.ImageUse{
		{Kind: fleet.UsedByApplication, Name: "hello@1.0.0", Needs: "registry.colony/samples/hello:1.0.0 in " + archive + "0.0"},
		{Kind: fleet.UsedByApplication, Name: "hello@1.1.0", Needs: "registry.colony/samples/hello:1.0.0 in " + archive + "1.0"},
	}
	if diff := cmp.Diff(want, uses.Uses); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}

	d := w.deploy(map[string]any{"app": "hello", "version": "1.0.0", "site": "home", "name": "one", "node": "gw-1"})
	remove("samples/compose/hello:1.0.0").fails(http.StatusConflict, "application hello@1.0.0, deployment home/one")
	w.do(http.MethodDelete, "/api/v1/deployments/home/one", nil, "If-Match", "*").into(http.StatusNoContent, nil)
	w.eventually(func() bool {
		got, err := w.store.Deployment(t.Context(), d.Site, d.Name)
		return err == nil && got.Archived
	})
	for _, version := range []string{"1.0.0", "1.1.0"} {
		w.do(http.MethodDelete, "/api/v1/apps/hello/versions/"+version, nil).into(http.StatusNoContent, nil)
	}
	var removed images.Removal
	remove("samples/hello:1.0.0").into(http.StatusOK, &removed)
	if diff := cmp.Diff(images.Removal{Image: "samples/hello:1.0.0", Tags: []string{"1.0.0"}, Manifests: []protocol.Digest{hello}}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	remove("samples/compose/hello:1.0.0").into(http.StatusOK, nil)
	var left images.Images
	w.get("/api/v1/images").into(http.StatusOK, &left)
	for _, i := range left.Items {
		if i.Tag != "" || i.RemovedAt == nil {
			t.Errorf("left: %+v", i)
		}
	}
}
