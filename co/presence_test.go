package co

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

// TestWillWhileTheRecordIsAway loses a site while nothing can be recorded.
func TestWillWhileTheRecordIsAway(t *testing.T) {
	t.Parallel()
	db, err := db.Open(t.Context(), pgtest.New(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := fleetdb.New(db)
	p := newPresence(s, slog.New(slog.DiscardHandler))
	m := protocol.Presence{V: protocol.Version, Online: true, Session: "one"}
	for _, site := range []protocol.SiteID{"plant", "mill"} {
		if err := p.accept(t.Context(), site, protocol.Marshal(&m)); err != nil {
			t.Fatal(err)
		}
	}
	away, cancel := context.WithCancel(t.Context())
	cancel()
	m.Online = false
	for _, site := range []protocol.SiteID{"plant", "mill"} {
		if err := p.accept(away, site, protocol.Marshal(&m)); err == nil {
			t.Fatal("the will was recorded")
		}
	}
	// The other one comes back before its will is recorded.
	m.Online, m.Session = true, "two"
	if err := p.accept(t.Context(), "mill", protocol.Marshal(&m)); err != nil {
		t.Fatal(err)
	}
	p.saveWills(t.Context())
	for site, online := range map[protocol.SiteID]bool{"plant": false, "mill": true} {
		if got, err := s.Site(t.Context(), site); err != nil || got.Online != online {
			t.Errorf("site %s: online %t, %v; want %t", site, got.Online, err, online)
		}
	}
	if len(p.unsaved) != 0 {
		t.Errorf("left to record: %v", p.unsaved)
	}
	ended, end := context.WithTimeout(t.Context(), time.Minute)
	end()
	p.expire(ended, time.Hour) // ends with its context
}
