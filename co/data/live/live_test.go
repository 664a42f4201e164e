package live_test

import (
	"sync"
	"testing"

	"github.com/colonyfleet/colony/co/data/live"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

func message(site protocol.SiteID, seq uint64, topic string) fleet.Delivery {
	return fleet.Delivery{Site: site, Seq: seq, Message: protocol.DataMessage{Topic: topic}}
}

func all(fleet.Delivery) bool { return true }

func TestHub(t *testing.T) {
	t.Parallel()
	var h live.Hub
	h.Deliver([]fleet.Delivery{message("home", 1, "a")}) // there is no subscription
	every := h.Subscribe("home", 10, all)
	some := h.Subscribe("home", 10, func(d fleet.Delivery) bool { return d.Message.Topic == "b" })
	other := h.Subscribe("away", 10, all)
	h.Deliver([]fleet.Delivery{message("home", 2, "a"), message("home", 3, "b")})
	for s, want := range map[*live.Subscription][]uint64{every: {2, 3}, some: {3}, other: nil} {
		select {
		case <-s.C():
			if want == nil {
				t.Error("woken for nothing")
			}
		default:
			if want != nil {
				t.Error("not woken")
			}
		}
		list, lost := s.Next()
		var got []uint64
		for _, d := range list {
			got = append(got, d.Seq)
		}
		if len(got) != len(want) || lost != 0 || len(want) > 0 && (got[0] != want[0] || got[len(got)-1] != want[len(want)-1]) {
			t.Errorf("got %v, lost %d; want %v", got, lost, want)
		}
	}
	h.Committed("home")
	h.Committed("home")
	<-every.C()
	<-some.C()
	select {
	case <-every.C():
		t.Error("woken twice")
	case <-other.C():
		t.Error("woken for another site")
	default:
	}
	every.Close()
	h.Deliver([]fleet.Delivery{message("home", 4, "b")})
	if list, _ := every.Next(); len(list) != 0 {
		t.Errorf("got %v after the end", list)
	}
	if list, _ := some.Next(); len(list) != 1 {
		t.Errorf("got %v", list)
	}
}

// TestSlowSubscriber fills a subscription that is not read, from many goroutines: what finds no
// room is counted, and what was there first stays.
func TestSlowSubscriber(t *testing.T) {
	t.Parallel()
	var h live.Hub
	s := h.Subscribe("home", 5, all)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint64(100) {
				h.Deliver([]fleet.Delivery{message("home", i, "a")})
				passing := h.Subscribe("home", 1, all)
				passing.Close()
			}
		})
	}
	wg.Wait()
	if list, lost := s.Next(); len(list) != 5 || lost != 395 {
		t.Errorf("%d messages, %d lost", len(list), lost)
	}
	h.Deliver([]fleet.Delivery{message("home", 7, "a")})
	if list, lost := s.Next(); len(list) != 1 || list[0].Seq != 7 || lost != 0 {
		t.Errorf("%v, %d lost; want the next one", list, lost)
	}
}
