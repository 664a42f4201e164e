package idfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/en/engine"
)

// No flipped bit of an id becomes another one, or goes unnoticed; what an agent wrote without a header is read.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := engine.ID{Deployment: "shop", Component: "main", Name: "web"}
	keyOf := func(id engine.ID) string { return string(id.Deployment) + "-" + id.Name }
	key := keyOf(id)
	path := filepath.Join(dir, key, Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, key, id); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, content []byte, held bool) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		ids, damaged, err := All(dir, keyOf)
		if _, ok := ids[key]; err != nil || ok != held || len(damaged) > 0 == held || ok && ids[key] != id {
			t.Errorf("%s: ids %v, damaged %v, %v", what, ids, damaged, err)
		}
	}
	want("as it was written", whole, true)
	for bit := range 8 * len(whole) {
		b := append([]byte(nil), whole...)
		b[bit/8] ^= 1 << (bit % 8)
		want("a flipped bit", b, false)
	}
	plain, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	want("without a header", plain, true)
	other, err := json.Marshal(engine.ID{Deployment: "shop", Component: "main", Name: "db"})
	if err != nil {
		t.Fatal(err)
	}
	want("that of another container", other, false)
	want("nothing", nil, false)
}
