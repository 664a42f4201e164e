package sitefile_test

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/repo/sitefile"
)

// TestExec allows and refuses programs in containers of a site, in a file with comments and in none, and reads what is no such word.
func TestExec(t *testing.T) {
	t.Parallel()
	const file = "# ours\napiVersion: colony/v1\nkind: Site\nmetadata:\n  id: plant\nspec:\n  data:\n    rules: [] # none yet\n"
	for name, raw := range map[string]string{"a file": file, "no file": "", "short": "{apiVersion: colony/v1, kind: Site, metadata: {id: plant}, spec: {}}\n"} {
		content := []byte(raw)
		for _, allowed := range []bool{true, false, true, true} {
			var err error
			if content, err = sitefile.SetExec("plant", content, allowed); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if c, err := sitefile.Parse("plant", content); err != nil || c.Exec != allowed {
				t.Errorf("%s: allowed %v, want %v: %v\n%s", name, c.Exec, allowed, err, content)
			}
		}
		if raw == file && (!strings.Contains(string(content), "# ours") || !strings.Contains(string(content), "# none yet")) {
			t.Errorf("comments are lost:\n%s", content)
		}
		c, err := sitefile.Parse("plant", content)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := sitefile.Marshal("plant", nil, c.Further()); err != nil || !strings.Contains(string(again), "exec: allowed") {
			t.Errorf("written anew: %v\n%s", err, again)
		}
	}
	if _, err := sitefile.Parse("plant", []byte(file+"  exec: yes\n")); err == nil || !strings.Contains(err.Error(), "want allowed or refused") {
		t.Errorf("exec: yes: %v", err)
	}
	if _, err := sitefile.SetExec("plant", []byte("kind: Site\n"), true); err == nil {
		t.Error("a bad file is changed")
	}
}
