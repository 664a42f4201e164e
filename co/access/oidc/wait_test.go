package oidc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/internal/testpart"
)

// TestProviderThatHangs has only some requests wait for the keys of a provider that does not answer, and none longer than its caller does: a stranger
// could otherwise hold a connection for each unknown token.
func TestProviderThatHangs(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	k := &keys{issuer: server.URL, turn: make(chan struct{}, 1), client: server.Client()}
	first := make(chan struct{})
	go func() { defer close(first); k.readSoon(t.Context(), 0) }()
	<-asked
	const all = 3 * mostWaiting
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended atomic.Int32
	for range all {
		go func() { defer ended.Add(1); k.readSoon(ctx, 0) }()
	}
	testpart.Eventually(t, "those who are too many do not wait", func() bool { return ended.Load() == all-mostWaiting+1 })
	cancel()
	testpart.Eventually(t, "nobody waits longer than their caller", func() bool { return ended.Load() == all })
	close(answer)
	<-first
	select {
	case <-asked:
		t.Error("somebody who did not wait any more has asked the provider")
	default:
	}
}
