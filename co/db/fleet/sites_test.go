package fleetdb_test

import (
	"testing"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestPresenceAsRecorded writes nothing for a presence that says what is recorded, and each one that says more.
func TestPresenceAsRecorded(t *testing.T) {
	t.Parallel()
	database := openDB(t)
	s := fleetdb.New(database)
	version := func() (v string) {
		t.Helper()
		if err := database.QueryRow(t.Context(), `select xmin::text from sites where id = 'home'`).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	set := func(p protocol.Presence) {
		t.Helper()
		if err := s.SetSitePresence(t.Context(), "home", p); err != nil {
			t.Fatal(err)
		}
	}
	first := protocol.Presence{V: 1, Online: true, Session: "1", Version: "0.3.0"}
	set(first)
	before := version()
	adopted := first
	adopted.Held.Position.Generation = 7
	set(adopted)
	if version() != before {
		t.Error("the presence after an adoption is written, though the journal reports that")
	}
	for what, p := range map[string]protocol.Presence{
		"a problem":       {V: 1, Online: true, Session: "1", Version: "0.3.0", Problem: "disk full"},
		"another version": {V: 1, Online: true, Session: "1", Version: "0.4.0"},
		"a new session":   {V: 1, Online: true, Session: "2", Version: "0.3.0"},
		"the end":         {V: 1, Session: "1"},
	} {
		set(first)
		before := version()
		if set(p); version() == before {
			t.Errorf("%s is not written", what)
		}
		set(protocol.Presence{V: 1, Session: p.Session}) // offline, so that first is accepted
	}
}
