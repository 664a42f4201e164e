package co_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// TestMissingStores removes stores of a CO as a whole: it starts, and says once what is missing and what follows.
func TestMissingStores(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.pushSample()
	damaged := func() (messages []string) {
		t.Helper()
		var page form.List[fleet.Event]
		b.call(http.MethodGet, "/api/v1/events?limit=1000&kind="+string(protocol.StateDamaged), nil, &page)
		for _, e := range page.Items {
			messages = append(messages, e.Message)
		}
		return messages
	}
	restart := func() {
		t.Helper()
		o := b.options
		o.Registerer = nil
		var err error
		if b.co, err = co.New(o); err != nil {
			t.Fatal(err)
		}
		b.coStop = testpart.Start(t, b.co)
	}
	if got := damaged(); len(got) > 0 {
		t.Errorf("a new CO reports %q", got)
	}
	b.coStop()
	for i, c := range []struct{ name, want string }{
		{"sessions", "the clients that have sessions at its broker have lost what waited for them"},
		{"registry", "applications and images have to be imported again"},
	} {
		if err := os.RemoveAll(filepath.Join(b.options.StateDir, c.name)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			restart()
			if got := damaged(); len(got) != i+1 || !slices.ContainsFunc(got, func(m string) bool { return strings.Contains(m, c.want) }) {
				t.Errorf("without %s: %q, want %q", c.name, got, c.want)
			}
			b.coStop()
		}
	}
}
