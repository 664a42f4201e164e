package data

import (
	"testing"
	"time"
)

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"90m": now.Add(-90 * time.Minute), "7d": now.AddDate(0, 0, -7), "0s": now, "2026-01-01T00:00:00Z": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := moment(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
