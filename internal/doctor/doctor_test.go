package doctor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func checks(list ...Finding) []Check {
	out := make([]Check, len(list))
	for i, f := range list {
		out[i] = Check{Name: "check-" + string(rune('a'+i)), Run: func(context.Context) []Finding { return []Finding{f} }}
	}
	return out
}

// TestReport shows findings in the order of the checks, as text and as JSON.
func TestReport(t *testing.T) {
	t.Parallel()
	r := Run(t.Context(), "lo", "0.1.0", checks(Okf("all of %d", 3), Warnf("wait", "late\n\n\tby an hour\n"), Failf("buy a disk", "no disk"), Warnf("wait", "late, too")))
	var text, machine strings.Builder
	if err := r.Write(&text, false); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"ok    check-a  all of 3",
		"warn  check-b  late; by an hour",
		"               fix: wait",
		"fail  check-c  no disk",
		"               fix: buy a disk",
		"warn  check-d  late, too",
		"               fix: wait",
		"lo 0.1.0: 1 ok, 2 warn, 1 fail", "",
	}, "\n")
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if err := r.Write(&machine, true); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal([]byte(machine.String()), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if r.Status != Fail || r.Err() == nil {
		t.Errorf("status %s, %v; want fail and an error", r.Status, r.Err())
	}
}

// TestStatus takes the worst of the findings; warnings are no error.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		list []Finding
		want Status
	}{
		{nil, OK}, {[]Finding{Okf("a")}, OK}, {[]Finding{Okf("a"), Warnf("f", "b"), Okf("c")}, Warn}, {[]Finding{Failf("f", "a"), Warnf("f", "b")}, Fail},
	} {
		r := Run(t.Context(), "co", "1", checks(tt.list...))
		if r.Status != tt.want || (r.Err() != nil) != (tt.want == Fail) {
			t.Errorf("status %s, error %v; want %s", r.Status, r.Err(), tt.want)
		}
	}
}

// TestHangingCheck does not wait for a check that does not end with its context, and hears
// out one that does.
func TestHangingCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		r := Run(t.Context(), "en", "1", []Check{
			{Name: "hangs", Run: func(context.Context) []Finding { <-end; return nil }},
			{Name: "ends", Run: func(ctx context.Context) []Finding {
				<-ctx.Done()
				return []Finding{Failf("f", "no answer of 10.0.0.5")}
			}},
		})
		close(end)
		if len(r.Findings) != 2 || r.Findings[0].Check != "hangs" || r.Findings[0].Status != Fail || r.Findings[1].Message != "no answer of 10.0.0.5" {
			t.Errorf("findings %+v, want a failure of each check", r.Findings)
		}
	})
}
