package api_test

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

// TestWritesOfAnotherReplica changes what another replica has just committed, and this one has not fetched: it must not be taken
// for what does not exist, nor for what the caller did not read.
func TestWritesOfAnotherReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.importApps()
	w.fleet()
	w.deploy(map[string]any{"site": "home", "app": "hello"})
	other, err := git.Open(t.Context(), git.Options{Dir: filepath.Join(t.TempDir(), "cache"), Remote: w.remote})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	content, _, err := other.File(t.Context(), intent.Path("home", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string, content []byte, expect string) string {
		t.Helper()
		commit, err := other.Put(t.Context(), path, content, expect, "by another replica")
		if err != nil {
			t.Fatal(err)
		}
		return commit
	}
	absent := func(path string) {
		t.Helper()
		if _, err := other.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := other.File(t.Context(), path); protocol.KindOf(err) != protocol.NotFound {
			t.Errorf("%s is in the repo after its removal: %v", path, err)
		}
	}

	second := intent.Path("home", "second")
	put(second, content, "")
	w.do(http.MethodDelete, "/api/v1/deployments/home/second", nil).into(http.StatusNoContent, nil)
	absent(second)

	commit := put(second, content, "")
	w.do(http.MethodDelete, "/api/v1/deployments/home/second", nil, "If-Match", `"`+commit+`"`).into(http.StatusNoContent, nil)
	absent(second)
	put(second, content, "")
	w.do(http.MethodDelete, "/api/v1/deployments/home/second", nil, "If-Match", `"`+commit+`"`).fails(http.StatusPreconditionFailed, "was changed since you read it")

	rules := []byte("apiVersion: colony/v1\nkind: Site\nmetadata: {id: home}\nspec: {data: {rules: [{name: temps, direction: up, topics: [\"t/#\"]}]}}\n")
	commit = put(sitefile.Path("home"), rules, "")
	w.do(http.MethodPut, "/api/v1/sites/home/data-rules", map[string]any{"rules": []any{}}, "If-Match", `"`+commit+`"`).into(http.StatusOK, nil)
	w.do(http.MethodPut, "/api/v1/sites/home/data-rules", map[string]any{"rules": []any{}}, "If-Match", `"`+commit+`"`).fails(http.StatusPreconditionFailed, "were changed since you read them")
}
