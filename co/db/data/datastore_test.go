package datadb_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A record is a database with the store that is tested, and the one beside it.
type record struct {
	*datadb.Store
	sites *fleetdb.Store
	db    *db.DB
}

func open(t testing.TB) *record {
	t.Helper()
	return openURL(t, pgtest.New(t))
}

func openURL(t testing.TB, url string) *record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := db.Open(ctx, url, db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &record{datadb.New(pool), fleetdb.New(pool), pool}
}

func wantKind(t *testing.T, err error, kind protocol.Kind, text string) {
	t.Helper()
	if err == nil || protocol.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (kind %s), want kind %s and %q", err, protocol.KindOf(err), kind, text)
	}
}

func rule(name string, change ...func(*fleet.DataRule)) fleet.DataRule {
	r := fleet.DataRule{DataRule: protocol.DataRule{Name: name, Topics: []string{name + "/#"}, QoS: 1}}
	for _, f := range change {
		f(&r)
	}
	return r
}
