package allowance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/allowance"
)

func TestTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := allowance.New(10*time.Second, 2)
		let, counted := 0, 0
		for range 100 { // one in a second
			if ok, leftOut := a.Allow(); ok {
				let, counted = let+1, counted+leftOut
			}
			<-time.After(time.Second)
		}
		if let != 11 { // two at once, and nine in the seconds after
			t.Errorf("%d of 100 events were let through, want 11", let)
		}
		<-time.After(10 * time.Second)
		ok, leftOut := a.Allow()
		if counted += leftOut; !ok || let+counted != 100 {
			t.Errorf("let through %d and then one: %v, %d counted; want all 100", let, ok, counted)
		}
	})
}
