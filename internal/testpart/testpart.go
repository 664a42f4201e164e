// Package testpart starts parts of a tier in a test, and stops them at its end.
package testpart

import (
	"context"
	"sync"
	"testing"
	"time"
)

// stopTimeout bounds the end of one part: far more than any needs, on a busy machine too.
const stopTimeout = time.Minute

// A Part is what runs between Start and Stop, such as a broker, a client or a tier.
type Part interface {
	Start(context.Context) error
	Stop(context.Context) error
}

// Start starts a part with the test's context. The part is stopped by stop, or when the
// test ends, before what was started earlier. An error of either fails the test.
func Start(t testing.TB, p Part) (stop func()) {
	t.Helper()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}
