package sitefile

import (
	"strings"
	"testing"
)

func TestWithhold(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("0a", 32)
	hash := "$2b$10$" + strings.Repeat("x.", 26) + "y"
	was := "a: {sha256: '" + sum + "'} # was " + hash + "\nb: {bcrypt: \"" + hash + "\"}\nbad: [\n"
	got := string(Withhold([]byte(was)))
	if want := "a: {sha256: 'withheld-1'} # was withheld-2\nb: {bcrypt: \"withheld-3\"}\nbad: [\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	edited := strings.Replace(got, "bad: [", "c: withheld-4 withheld-99999999999999999999 withheld-0", 1)
	if back, want := string(Restore([]byte(edited), []byte(was))), strings.Replace(was, "bad: [", "c: withheld-4 withheld-99999999999999999999 withheld-0", 1); back != want {
		t.Errorf("%q, want %q", back, want)
	}
}
