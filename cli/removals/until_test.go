package removals

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestUntil(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, tt := range map[string]struct {
		timeout, every time.Duration
		answers        []error // of each time that it is asked; nil is not yet
		want           error
	}{
		"late":                   {timeout: 0, every: time.Hour, answers: []error{nil}, want: errLate},
		"late while it is asked": {timeout: 0, every: time.Hour, answers: []error{context.DeadlineExceeded}, want: errLate},
		"removed":                {timeout: time.Hour, every: time.Millisecond, answers: []error{nil, nil}},
		"refused":                {timeout: time.Hour, every: time.Millisecond, answers: []error{nil, refused}, want: refused},
	} {
		asked := 0
		err := until(t.Context(), tt.timeout, tt.every, func(context.Context) (bool, error) {
			asked++
			if asked > len(tt.answers) {
				return true, nil
			}
			return false, tt.answers[asked-1]
		})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v after %d times, want %v", name, err, asked, tt.want)
		}
	}
}
