package testproc

import "testing"

// TestTwice looks for keys that lines have twice.
func TestTwice(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"msg":"a","component":"link","component":"mqtt_client"}`: "component",
		`{"msg":"a","one":{"msg":"b"},"two":{"msg":"c"}}`:          "",
		`{"msg":"a","component":"link","compo`:                     "",
		`goroutine 1 [running]:`:                                   "",
		``:                                                         "",
	} {
		if got := twice([]byte(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
