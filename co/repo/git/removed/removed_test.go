package removed

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const added, removed = ":000000 100644 0000 b1 A\x00", ":100644 000000 b2 0000 D\x00"
	const log = "\x01c3\x1f\x00\n" + added + "back\x00" + removed + "gone\x00\x01c2\x1fColony-Confirm: a/b\n\n  Other: x \n\x00\n" +
		removed + "back\x00" + removed + "early\x00\x01c1\x1f\x00\n" + removed + "gone\x00" + added + "early\x00"
	want := map[string]Removal{"gone": {Commit: "c3", Blob: "b2"}, "early": {Commit: "c2", Trailers: []string{"Colony-Confirm: a/b", "Other: x"}, Blob: "b2"}}
	if diff := cmp.Diff(want, Parse(log)); diff != "" {
		t.Errorf("removals (-want +got):\n%s", diff)
	}
}
