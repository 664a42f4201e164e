package rollouts_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/rollouts"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
)

// wait runs "colony rollout wait meter" at an API that has these answers about the rollout, one after the other, the last one from then on. A
// number is a status without an answer. The file is that of commit c2.
func wait(t *testing.T, answers ...any) (string, error) {
	t.Helper()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = api.FleetDeployment{Name: "meter", Commit: "c2"}
		if strings.HasSuffix(r.URL.Path, "/rollout") {
			answer = answers[min(int(asked.Add(1)), len(answers))-1]
		}
		if status, ok := answer.(int); ok {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			answer = map[string]any{"status": status, "detail": "for a moment"}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	var out bytes.Buffer
	cmd := rollouts.Command(&command.Env{URL: s.URL, Format: "table", Out: &out, Err: &out})
	cmd.SetArgs([]string{"wait", "meter"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestWait waits for the rollout of the file as it is, also while there is none yet, or one of before, or the CO is away; and fails with one that
// stops, or whose place another one takes.
func TestWait(t *testing.T) {
	t.Parallel()
	is := func(revision int64, state rollout.State, reason string) rollout.Rollout {
		commit := "c2"
		if revision == 1 {
			commit = "c1"
		}
		return rollout.Rollout{Fleet: "meter", Revision: revision, State: state, Reason: reason, Commit: commit}
	}
	for name, c := range map[string]struct {
		answers []any
		shows   string
		err     string
	}{
		"done":         {[]any{http.StatusNotFound, is(1, rollout.Done, "all"), is(2, rollout.Running, ""), is(2, rollout.Running, "wave 1"), http.StatusServiceUnavailable, is(2, rollout.Done, "all waves are through")}, "revision 2 of meter is running\nrevision 2 of meter is running: wave 1\nrevision 2 of meter is done: all waves are through\n", ""},
		"paused":       {[]any{is(2, rollout.Paused, "1 site failed")}, "", "revision 2 of meter is paused: 1 site failed"},
		"another one":  {[]any{is(2, rollout.Running, "wave 1"), is(3, rollout.Running, "wave 1")}, "revision 2 of meter is running", "is that of revision 3, and not of 2"},
		"not allowed":  {[]any{http.StatusForbidden}, "", "for a moment"},
		"aborted then": {[]any{is(2, rollout.Aborted, "aborted")}, "", "revision 2 of meter is aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := wait(t, c.answers...)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("ends with %v, want %q", err, c.err)
			}
			if !strings.Contains(out, c.shows) {
				t.Errorf("shows %q, want %q", out, c.shows)
			}
		})
	}
}
