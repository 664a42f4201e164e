package presence_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/presence"
	"github.com/colonyfleet/colony/protocol"
)

// A record is a Store in memory that can be away.
type record struct {
	mu     sync.Mutex
	away   error
	online map[protocol.SiteID]string // the session of each site that is recorded as online
}

func (r *record) SetSitePresence(_ context.Context, site protocol.SiteID, p protocol.Presence) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch session, online := r.online[site]; {
	case r.away != nil:
		return r.away
	case p.Online:
		r.online[site] = p.Session
	case online && session == p.Session:
		delete(r.online, site)
	}
	return nil
}

func (r *record) SetOfflineExcept(_ context.Context, connected []protocol.SiteID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return r.away
	}
	maps.DeleteFunc(r.online, func(s protocol.SiteID, _ string) bool { return !slices.Contains(connected, s) })
	return nil
}

func (r *record) setAway(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = err
}

func (r *record) sites() []protocol.SiteID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.online))
}

func wantOnline(t *testing.T, when string, r *record, want ...protocol.SiteID) {
	t.Helper()
	if diff := cmp.Diff(want, r.sites()); diff != "" {
		t.Errorf("sites recorded as online %s (-want +got):\n%s", when, diff)
	}
}

// run runs a Monitor until the test ends.
func run(t *testing.T, o presence.Options) *presence.Monitor {
	t.Helper()
	m, err := presence.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return m
}

func accept(t *testing.T, m *presence.Monitor, site protocol.SiteID, session string, online bool) {
	t.Helper()
	if err := m.Accept(t.Context(), site, message(session, online)); err != nil {
		t.Fatal(err)
	}
}

func message(session string, online bool) []byte {
	return protocol.Marshal(protocol.Presence{V: protocol.Version, Online: online, Session: session})
}

// TestSiteThatDoesNotReportIsOffline starts with two sites that are recorded as
// online, of which one reports.
func TestSiteThatDoesNotReportIsOffline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &record{online: map[protocol.SiteID]string{"plant": "1", "mill": "1"}}
		m := run(t, presence.Options{Store: r, Grace: time.Minute})
		accept(t, m, "plant", "2", true)
		<-time.After(time.Minute - time.Second)
		wantOnline(t, "within the grace", r, "mill", "plant")
		<-time.After(2 * time.Second)
		wantOnline(t, "after the grace", r, "plant")
	})
}

// TestGraceEndsWhileTheRecordIsAway has the expiry repeated until it is recorded, and
// then no more: a site that another CO has recorded since stays online.
func TestGraceEndsWhileTheRecordIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &record{online: map[protocol.SiteID]string{"mill": "1"}, away: errors.New("away")}
		run(t, presence.Options{Store: r, Grace: time.Minute, Retry: time.Second})
		<-time.After(2 * time.Minute)
		wantOnline(t, "while the record is away", r, "mill")
		r.setAway(nil)
		<-time.After(2 * time.Second)
		if got := r.sites(); len(got) != 0 {
			t.Errorf("sites recorded as online once the record is back: %v, want none", got)
		}
		if err := r.SetSitePresence(t.Context(), "mill", protocol.Presence{Online: true}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		wantOnline(t, "after it expired once", r, "mill")
	})
}

// TestWillWhileTheRecordIsAway loses two sites while nothing can be recorded. One of
// them connects again before its will is recorded.
func TestWillWhileTheRecordIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &record{online: map[protocol.SiteID]string{}}
		m := run(t, presence.Options{Store: r, Grace: time.Hour, Retry: time.Second})
		accept(t, m, "plant", "1", true)
		accept(t, m, "mill", "1", true)
		away := errors.New("away")
		r.setAway(away)
		for _, site := range []protocol.SiteID{"plant", "mill"} {
			if err := m.Accept(t.Context(), site, message("1", false)); !errors.Is(err, away) {
				t.Errorf("will of %s: error %v, want %v", site, err, away)
			}
		}
		r.setAway(nil)
		accept(t, m, "mill", "2", true)
		wantOnline(t, "before the wills are recorded", r, "mill", "plant")
		<-time.After(time.Hour + time.Second)
		wantOnline(t, "after the wills are recorded", r, "mill")
	})
}

func TestChangedIsCalledForWhatIsRecorded(t *testing.T) {
	t.Parallel()
	r := &record{online: map[protocol.SiteID]string{}}
	var got []protocol.Presence
	m, err := presence.New(presence.Options{Store: r, Changed: func(_ protocol.SiteID, p protocol.Presence) { got = append(got, p) }})
	if err != nil {
		t.Fatal(err)
	}
	accept(t, m, "plant", "1", true)
	if err := m.Accept(t.Context(), "plant", nil); err != nil {
		t.Errorf("cleared presence: %v", err)
	}
	if err := m.Accept(t.Context(), "plant", []byte("x")); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("presence that cannot be read: error %v, want one of kind %s", err, protocol.Invalid)
	}
	r.setAway(errors.New("away"))
	if err := m.Accept(t.Context(), "plant", message("1", false)); err == nil {
		t.Error("presence while the record is away: no error")
	}
	want := []protocol.Presence{{V: protocol.Version, Online: true, Session: "1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls of Changed (-want +got):\n%s", diff)
	}
}

func TestStoreIsRequired(t *testing.T) {
	t.Parallel()
	if _, err := presence.New(presence.Options{}); err == nil {
		t.Error("New without a Store returned no error")
	}
}
