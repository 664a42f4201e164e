package damage

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/begun"
	"github.com/colonyfleet/colony/internal/statefile"
)

func TestReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found statefile.Damage
		want  string
	}{
		"missing store":  {statefile.Damage{Identity: statefile.Identity{Role: Sessions, Name: begun.Missing}, Err: fs.ErrNotExist}, "is missing, although it was begun; the clients that have sessions"},
		"lost records":   {statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions"}, Lost: 3, Err: errors.New("x")}, "3 records or more are lost"},
		"unknown loss":   {statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions"}, Err: errors.New("x")}, "is not known"},
		"nothing lost":   {statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions"}, Kept: true, Err: errors.New("x")}, "nothing of the sessions of its broker is lost"},
		"something else": {statefile.Damage{Identity: statefile.Identity{Role: "co/begun"}, Err: errors.New("x")}, "co/begun was damaged and set aside"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var events []fleet.Event
			r := New(func(_ context.Context, e fleet.Event) error { events = append(events, e); return nil }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err := r.Report(t.Context(), &c.found); err != nil {
				t.Fatal(err)
			}
			if len(events) != 1 || events[0].Kind != "state_damaged" || !strings.Contains(events[0].Message, c.want) || !strings.HasSuffix(events[0].Message, "check the disk of the CO") {
				t.Errorf("%+v, want %q", events, c.want)
			}
			if got := testutil.ToFloat64(r.count.WithLabelValues(c.found.Role)); got != 1 {
				t.Errorf("counted %v times", got)
			}
		})
	}
}

// What cannot be recorded is an error, so that it is found once more at the next start.
func TestReportFails(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	r := New(func(context.Context, fleet.Event) error { return away }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := r.Report(t.Context(), &statefile.Damage{Identity: statefile.Identity{Role: Sessions}, Err: fs.ErrNotExist}); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}
