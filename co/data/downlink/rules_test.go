package downlink_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/data/downlink"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestSlowReadOfTheRules has the session of a site read the rules of before a change, and
// get the answer after a message was matched with the rules of after it: the message is
// sent, whether the change was announced or not.
func TestSlowReadOfTheRules(t *testing.T) {
	t.Parallel()
	for name, announced := range map[string]bool{"announced": true, "not announced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, protocol.DataRule{Name: "set", Topics: []string{"#"}, Down: true, QoS: 1})
			var mu sync.Mutex
			first := true
			reading, answer := make(chan struct{}), make(chan struct{})
			d := downlink.New(downlink.Options{
				Store: b.st, Publish: b.receive, AckTimeout: 200 * time.Millisecond, RulesTTL: time.Hour,
				Rules: func(ctx context.Context, site protocol.SiteID) ([]fleet.DataRule, error) {
					mu.Lock()
					old := first
					first = false
					mu.Unlock()
					if !old {
						return b.st.sites.DataRules(ctx, site)
					}
					close(reading)
					<-answer
					return nil, nil // as they were
				},
			})
			t.Cleanup(d.Close)
			b.set(func() { b.d = d })
			d.Online("plant", "1")
			<-reading
			if announced {
				d.RulesChanged("plant")
			}
			b.accept("x", "1")
			close(answer)
			b.eventually("the message is there", func() bool { return slices.Contains(b.got, "colony/v1/plant/data/x=1") })
		})
	}
}
