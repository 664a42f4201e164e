package composefile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/compiler/composefile"
)

// TestExtendsIsBounded reads small files whose services take over far more than the files
// hold.
func TestExtendsIsBounded(t *testing.T) {
	t.Parallel()
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString("services:\n  s0: {image: a}\n")
		for i := 1; i < n; i++ {
			fmt.Fprintf(&b, "  s%d: {extends: s%d}\n", i, i-1)
		}
		return b.String()
	}
	var wide strings.Builder
	wide.WriteString("services:\n  base:\n    image: a\n    environment:\n")
	for i := range 8000 {
		fmt.Fprintf(&wide, "      - V%d=1\n", i)
	}
	for i := range 300 {
		fmt.Fprintf(&wide, "  s%d: {extends: base}\n", i)
	}
	for name, c := range map[string]struct{ file, want string }{
		"a chain of 20":                        {chain(20), ""},
		"a chain of 1,000":                     {chain(1000), "more than 20 services extend one another in a row"},
		"300 services that extend a large one": {wide.String(), "take over more than 100000 values"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := composefile.Read(map[string][]byte{"compose.yaml": []byte(c.file)}, "compose.yaml", nil)
			if c.want == "" && err != nil {
				t.Error(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}
