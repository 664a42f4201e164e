package cli

import "testing"

// TestDidYouMean answers a mistyped command with the one that was meant.
func TestDidYouMean(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"deployment list --sate=FAILED": "unknown flag: --sate: did you mean --site or --state? (see colony deployment list --help)\n",
		"site list --requst-timeout=3s": "unknown flag: --requst-timeout: did you mean --request-timeout? (see colony site list --help)\n",
		"site list --zzz":               "unknown flag: --zzz (see colony site list --help)\n",
		"docter":                        "there is no command \"docter\" here: did you mean doctor? (see colony --help)\n",
		"node lst":                      "there is no command \"lst\" here: did you mean list? (see colony node --help)\n",
		"deploymnt":                     "there is no command \"deploymnt\" here: did you mean deployment? (see colony --help)\n",
		"data histry":                   "there is no command \"histry\" here: did you mean history? (see colony data --help)\n",
		"elsewhither":                   "there is no command \"elsewhither\" here (see colony --help)\n",
	} {
		wantRun(t, "http://127.0.0.1:1", line, "", want, exitUsage)
	}
}
