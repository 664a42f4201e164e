package cli

import "testing"

// TestDidYouMean answers a mistyped command with the one that was meant.
func TestDidYouMean(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"docter":      "there is no command \"docter\" here: did you mean doctor? (see colony --help)\n",
		"node lst":    "there is no command \"lst\" here: did you mean list? (see colony node --help)\n",
		"deploymnt":   "there is no command \"deploymnt\" here: did you mean deployment? (see colony --help)\n",
		"data histry": "there is no command \"histry\" here: did you mean history? (see colony data --help)\n",
		"elsewhither": "there is no command \"elsewhither\" here (see colony --help)\n",
	} {
		wantRun(t, "http://127.0.0.1:1", line, "", want, exitUsage)
	}
}
