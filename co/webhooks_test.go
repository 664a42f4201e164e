package co_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/webhook"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestWebhook has a site come online, which the CO posts once it has an answer.
func TestWebhook(t *testing.T) {
	t.Parallel()
	posted := make(chan webhook.Message, 10)
	r := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m webhook.Message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		posted <- m
	}))
	t.Cleanup(r.Close)
	b := start(t, func(o *co.Options) {
		o.Webhooks = []webhook.Hook{{Name: "ops", URL: r.URL, Kinds: []string{fleet.SiteOnline}}}
	})
	testpart.Eventually(t, "the hook has begun", func() bool {
		_, said := b.ask(http.MethodGet, "/metrics", "", "")
		return strings.Contains(said, `colony_co_webhook_position{hook="ops"}`)
	})
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	var m webhook.Message
	select {
	case m = <-posted:
	case <-time.After(time.Minute):
		t.Fatal("nothing was posted")
	}
	if m.Hook != "ops" || len(m.Events) != 1 || m.Events[0].Kind != fleet.SiteOnline || m.Events[0].Site == "" || m.Missed != 0 {
		t.Errorf("posted %+v", m)
	}
}
