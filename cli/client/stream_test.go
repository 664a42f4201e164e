package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
)

// TestStreamResumes checks that a broken stream goes on after the last event.
func TestStreamResumes(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		asked <- last
		first := 6
		if last == "7" {
			first = 8
		}
		for id := first; id < first+2; id++ {
			fmt.Fprintf(w, ": beat\n\nid: %d\nevent: x\ndata: {\"id\":%d,\"kind\":\"x\"}\n\n", id, id)
		}
	}))
	defer s.Close()
	var got []int64
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := &Client{Base: s.URL, HTTP: s.Client()}
	err := c.Events(ctx, url.Values{"site": {"s"}}, 5, func(e fleet.Event) bool {
		got = append(got, e.ID)
		return e.ID < 9
	})
	if err != nil || fmt.Sprint(got) != "[6 7 8 9]" {
		t.Errorf("events %v, %v", got, err)
	}
	if a, b := <-asked, <-asked; a != "5" || b != "7" {
		t.Errorf("it resumed after %s and %s", a, b)
	}
}
