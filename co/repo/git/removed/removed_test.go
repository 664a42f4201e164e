package removed

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const log = "\x01c3\x1f\x00\nA\x00back\x00D\x00gone\x00\x01c2\x1fColony-Confirm: a/b\n\n  Other: x \n\x00\nD\x00back\x00D\x00early\x00\x01c1\x1f\x00\nD\x00gone\x00A\x00early\x00"
	want := map[string]Removal{"gone": {Commit: "c3"}, "early": {Commit: "c2", Trailers: []string{"Colony-Confirm: a/b", "Other: x"}}}
	if diff := cmp.Diff(want, Parse(log)); diff != "" {
		t.Errorf("removals (-want +got):\n%s", diff)
	}
}
