package commandsdb_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/db"
	commandsdb "github.com/colonyfleet/colony/co/db/commands"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A record is a CO's record of commands and of its fleet, with a site that reports.
type record struct {
	t *testing.T
	*commandsdb.Store
	fleet *fleetdb.Store
	db    *db.DB
	seq   map[protocol.SiteID]uint64
	made  int // commands
}

func open(t *testing.T) *record {
	t.Helper()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := &record{t, commandsdb.New(pool), fleetdb.New(pool), pool, map[protocol.SiteID]uint64{}, 0}
	r.report("plant", nodeUp("gw-1"), nodeUp("gw-2"))
	r.report("north", nodeUp("gw-1"))
	return r
}

func (r *record) report(site protocol.SiteID, events ...protocol.Event) {
	r.t.Helper()
	b := protocol.Batch{V: 1, Epoch: "e", First: r.seq[site] + 1, Count: uint32(len(events))}
	r.seq[site] += uint64(len(events))
	if _, err := r.fleet.CommitBatch(r.t.Context(), site, b, events); err != nil {
		r.t.Fatal(err)
	}
}

func nodeUp(node protocol.NodeID) protocol.Event {
	return protocol.Event{Kind: protocol.NodeOnlineEvent, Node: node, Body: protocol.Marshal(protocol.Presence{V: 1, Online: true, Session: "x"})}
}

func received(id command.ID, nodes uint64, code command.Code) protocol.Event {
	return protocol.Event{Kind: protocol.CommandReceived, Body: protocol.Marshal(command.Received{V: 1, ID: id, Nodes: nodes, Code: code, Message: string(code)})}
}

func result(r command.Result) protocol.Event {
	r.V = 1
	return protocol.Event{Kind: protocol.CommandResult, Node: r.Node, Body: protocol.Marshal(r)}
}

// id returns another id each time.
func id() command.ID {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return command.ID(hex.EncodeToString(b[:]))
}

// create records a command for nodes of sites, whose deadline is in a time.
func (r *record) create(life time.Duration, targets ...fleet.CommandTarget) command.ID {
	r.t.Helper()
	r.made++ // no two are made at one time
	now := time.Now().UTC().Truncate(time.Millisecond).Add(time.Duration(r.made) * time.Millisecond)
	c := fleet.NewCommand{Targets: targets, Encoded: protocol.Marshal(command.Subject{Deployment: "meter"}), Command: fleet.Command{
		ID: id(), Kind: command.Restart, Args: command.Subject{Deployment: "meter"}, Actor: "Ann", CreatedAt: now.Add(min(life, 0)), Deadline: now.Add(life),
	}}
	if life <= 0 {
		c.CreatedAt = c.Deadline.Add(-time.Minute)
	}
	if err := r.Create(r.t.Context(), c); err != nil {
		r.t.Fatal(err)
	}
	return c.ID
}

func named(site protocol.SiteID, nodes ...protocol.NodeID) fleet.CommandTarget {
	return fleet.CommandTarget{Site: site, Nodes: nodes}
}

func all(site protocol.SiteID) fleet.CommandTarget { return fleet.CommandTarget{Site: site, All: true} }

func (r *record) at(id command.ID) fleet.Command {
	r.t.Helper()
	c, err := r.Command(r.t.Context(), id, siteset.Set{})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// brief is what became of a command on each node, as site/node=state by.
func (r *record) brief(id command.ID) string {
	r.t.Helper()
	list, _, err := r.Results(r.t.Context(), id, fleet.ResultFilter{}, fleet.Page{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, v := range list {
		out = append(out, fmt.Sprintf("%s/%s=%s by %s", v.Site, v.Node, v.State, v.By))
	}
	return strings.Join(out, " ")
}

// TestWhichResultCounts has results of a node come in every order, in one batch and in several: the record is the same.
func TestWhichResultCounts(t *testing.T) {
	t.Parallel()
	r := open(t)
	const byLO = true
	list := []command.Result{
		{Node: "gw-1", State: command.Running}, {Node: "gw-1", State: command.Expired, ByLO: byLO}, {Node: "gw-1", State: command.Done, Output: "ok"},
	}
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, order := range orders {
		for _, together := range []bool{true, false} {
			id := r.create(time.Hour, named("plant", "gw-1"))
			events := []protocol.Event{received(id, 1, "")}
			for _, i := range order {
				v := list[i]
				v.ID = id
				events = append(events, result(v), result(v)) // duplicates do no harm
			}
			if together {
				r.report("plant", events...)
			} else {
				for _, e := range events {
					r.report("plant", e)
				}
			}
			c := r.at(id)
			if got := r.brief(id); got != "plant/gw-1=done by node" || c.Counts != (fleet.CommandCounts{Nodes: 1, Done: 1}) || c.State != "ended" {
				t.Errorf("in the order %v, together %t: %s, %+v", order, together, got, c.Counts)
			}
		}
	}
	// What the LO says of a node that has not ended ends it; the first of two ends of one maker stays.
	id := r.create(time.Hour, named("plant", "gw-1", "gw-2"))
	r.report("plant", received(id, 2, ""), result(command.Result{ID: id, Node: "gw-1", State: command.Running}))
	r.report("plant", result(command.Result{ID: id, Node: "gw-1", State: command.Unknown, ByLO: byLO}), result(command.Result{ID: id, Node: "gw-2", State: command.Failed}))
	r.report("plant", result(command.Result{ID: id, Node: "gw-2", State: command.Done}), result(command.Result{ID: id, Node: "gw-1", State: command.Running}))
	if got, c := r.brief(id), r.at(id); got != "plant/gw-1=unknown by lo plant/gw-2=failed by node" || c.Counts != (fleet.CommandCounts{Nodes: 2, Unknown: 1, Failed: 1}) {
		t.Errorf("%s, %+v", got, c.Counts)
	}
	// A result of what is no command of the site is an event and nothing else.
	other := r.create(time.Hour, named("north", "gw-1"))
	r.report("plant", received(other, 5, ""), result(command.Result{ID: other, Node: "gw-1", State: command.Done}), result(command.Result{ID: id2, Node: "gw-1", State: command.Done}))
	if got, c := r.brief(other), r.at(other); got != "" || c.Sites[0].State != fleet.CommandWaiting {
		t.Errorf("a report of another site: %s, %+v", got, c)
	}
	// What cannot be a report is an anomaly.
	r.report("plant", protocol.Event{Kind: protocol.CommandResult, Node: "gw-2", Body: protocol.Marshal(command.Result{V: 1, ID: id, Node: "gw-1", State: command.Done})},
		result(command.Result{ID: "x", Node: "gw-1", State: command.Done}), result(command.Result{ID: id, Node: "gw-1", State: "dancing"}))
	var anomalies int
	if err := r.db.QueryRow(t.Context(), `select count(*) from anomalies where site = 'plant'`).Scan(&anomalies); err != nil || anomalies != 3 {
		t.Errorf("%d anomalies, want 3 (%v)", anomalies, err)
	}
}

const id2 command.ID = "ffffffffffffffffffffffffffffffff"

// TestRefusedBySite has a site refuse a command as a whole, and take one that no node is meant by.
func TestRefusedBySite(t *testing.T) {
	t.Parallel()
	r := open(t)
	for _, code := range []command.Code{command.BadSignature, command.NoNode} {
		id := r.create(time.Hour, all("plant"))
		r.report("plant", received(id, 0, code))
		if c := r.at(id); c.State != "ended" || c.Sites[0].State != fleet.CommandRefused || c.Sites[0].Code != code {
			t.Errorf("%s: %+v", code, c)
		}
	}
	id := r.create(time.Hour, all("plant"))
	r.report("plant", received(id, 0, ""))
	if c := r.at(id); c.Sites[0].State != fleet.CommandEnded {
		t.Errorf("no node is meant: %+v", c)
	}
}

// TestSiteRefuses counts the sites that refuse a command as a whole, with a code.
func TestSiteRefuses(t *testing.T) {
	t.Parallel()
	r := open(t)
	id := r.create(time.Hour, named("plant", "gw-1"), all("north"))
	if c := r.at(id); c.RefusedSites != 0 || c.RefusedCode != "" {
		t.Errorf("before: %+v", c)
	}
	r.report("plant", received(id, 0, command.Busy))
	if c := r.at(id); c.RefusedSites != 1 || c.RefusedCode != command.Busy {
		t.Errorf("after: %+v", c)
	}
}

// TestGiveUp ends what is past its deadline: at once where the site was silent, and a day later where it has it.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	r := open(t)
	silent := r.create(-2*time.Minute, named("plant", "gw-1", "gw-2"), all("north"))
	recent := r.create(-time.Second, named("plant", "gw-1"))
	begun := r.create(-25*time.Hour, named("plant", "gw-1", "gw-2"))
	r.report("plant", received(begun, 2, ""), result(command.Result{ID: begun, Node: "gw-1", State: command.Running}))
	waits := r.create(-time.Hour, named("plant", "gw-1"))
	r.report("plant", received(waits, 1, ""))
	for range 2 { // again it finds nothing
		if more, err := r.GiveUp(t.Context(), time.Now()); err != nil || more {
			t.Fatalf("%t, %v", more, err)
		}
	}
	for id, want := range map[command.ID]string{
		silent: "plant/gw-1=expired by co plant/gw-2=expired by co", recent: "", waits: "",
		begun: "plant/gw-1=unknown by co plant/gw-2=expired by co",
	} {
		if got := r.brief(id); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if c := r.at(silent); c.State != "ended" || c.Counts.Expired != 2 || c.Sites[0].State != fleet.CommandExpired || c.Sites[1].State != fleet.CommandExpired {
		t.Errorf("silent: %+v", c)
	}
	if c := r.at(begun); c.State != "ended" || c.Counts != (fleet.CommandCounts{Nodes: 2, Unknown: 1, Expired: 1}) {
		t.Errorf("begun: %+v", c)
	}
	// What the site says after all counts more.
	r.report("plant", received(silent, 2, ""), result(command.Result{ID: silent, Node: "gw-1", State: command.Done}), result(command.Result{ID: silent, Node: "gw-2", State: command.Expired, ByLO: true}))
	if got := r.brief(silent); got != "plant/gw-1=done by node plant/gw-2=expired by lo" {
		t.Errorf("reported late: %s", got)
	}
	if c := r.at(silent); c.Sites[1].Counts != (fleet.CommandCounts{Nodes: 2, Done: 1, Expired: 1}) || c.Sites[1].State != fleet.CommandEnded {
		t.Errorf("reported late: %+v", c.Sites)
	}
}

// TestPending returns what the broker of a site may have, until it is cleared.
func TestPending(t *testing.T) {
	t.Parallel()
	r := open(t)
	open := r.create(time.Hour, named("plant", "gw-2", "gw-1"), fleet.CommandTarget{Site: "north", Selector: map[string]string{"line": "3"}})
	done := r.create(time.Hour, all("plant"))
	r.report("plant", received(done, 1, ""), result(command.Result{ID: done, Node: "gw-1", State: command.Done}))
	brief := func(site protocol.SiteID, since time.Time) string {
		t.Helper()
		list, err := r.Pending(t.Context(), site, since)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, p := range list {
			out = append(out, fmt.Sprintf("%s %s %t %v %v", p.Site, p.State, p.ID == open, p.Nodes, p.Selector))
		}
		return strings.Join(out, "; ")
	}
	if got, want := brief("", time.Time{}), "north waiting true [] map[line:3]; plant waiting true [gw-2 gw-1] map[]; plant ended false [] map[]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := brief("north", time.Now().Add(time.Hour)); got != "" {
		t.Errorf("changed later: %s", got)
	}
	read := func() []fleet.PendingCommand {
		t.Helper()
		list, err := r.Pending(t.Context(), "plant", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	cleared := func(list []fleet.PendingCommand) {
		t.Helper()
		if err := r.Cleared(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	seen := read()
	r.report("plant", result(command.Result{ID: done, Node: "gw-1", State: command.Done})) // while the broker clears it
	cleared(seen)
	if got, want := brief("plant", time.Time{}), "plant waiting true [gw-2 gw-1] map[]; plant ended false [] map[]"; got != want {
		t.Errorf("reported meanwhile: %s, want %s", got, want)
	}
	cleared(read()) // open has not ended
	if got, want := brief("plant", time.Time{}), "plant waiting true [gw-2 gw-1] map[]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r.report("plant", result(command.Result{ID: done, Node: "gw-1", State: command.Done})) // so the site has it
	if got, want := brief("plant", time.Time{}), "plant waiting true [gw-2 gw-1] map[]; plant ended false [] map[]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestListsAreScoped lists commands of several sites, in pages, for a principal that may see some
// of the sites.
func TestListsAreScoped(t *testing.T) {
	t.Parallel()
	r := open(t)
	var both []command.ID
	for range 5 {
		both = append(both, r.create(time.Hour, named("plant", "gw-1"), named("north", "gw-1")))
	}
	plant := r.create(time.Hour, named("plant", "gw-1"))
	r.report("plant", received(both[0], 1, ""), result(command.Result{ID: both[0], Node: "gw-1", State: command.Done}))
	within := func(entries ...string) siteset.Set {
		s, err := siteset.Parse(entries)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pages := func(f fleet.CommandFilter) (ids []command.ID) {
		t.Helper()
		for cursor := ""; ; {
			list, next, err := r.Commands(t.Context(), f, fleet.Page{Cursor: cursor, Limit: 2})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list {
				ids = append(ids, c.ID)
			}
			if cursor = next; next == "" {
				return ids
			}
		}
	}
	newest := slices.Clone(both)
	slices.Reverse(newest)
	for name, tt := range map[string]struct {
		f    fleet.CommandFilter
		want []command.ID
	}{
		"all":             {fleet.CommandFilter{}, append([]command.ID{plant}, newest...)},
		"of a site":       {fleet.CommandFilter{Site: "north"}, newest},
		"of a beginning":  {fleet.CommandFilter{Within: within("no*")}, newest},
		"of a token":      {fleet.CommandFilter{Within: within("plant")}, append([]command.ID{plant}, newest...)},
		"of no site":      {fleet.CommandFilter{Within: within("west*")}, nil},
		"ended there":     {fleet.CommandFilter{Within: within("plant"), State: "ended"}, both[:1]},
		"ended elsewhere": {fleet.CommandFilter{Within: within("north"), State: "ended"}, nil},
		"by whom":         {fleet.CommandFilter{Text: "ann", Site: "plant", State: "open"}, append([]command.ID{plant}, newest[:4]...)},
	} {
		if diff := cmp.Diff(tt.want, pages(tt.f)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	c, err := r.Command(t.Context(), both[0], within("plant"))
	if err != nil || c.SiteCount != 1 || c.State != "ended" || len(c.Sites) != 1 || c.Sites[0].Site != "plant" {
		t.Errorf("one with the token of plant: %+v, %v", c, err)
	}
	if _, err := r.Command(t.Context(), plant, within("north")); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("one of another site: %v", err)
	}
	if list, _, err := r.Results(t.Context(), both[0], fleet.ResultFilter{Within: within("north")}, fleet.Page{}); err != nil || len(list) != 0 {
		t.Errorf("results of another site: %+v, %v", list, err)
	}
	// A principal of one site cancels it there.
	if sites, err := r.Cancel(t.Context(), both[1], within("north")); err != nil || len(sites) != 1 || sites[0] != "north" {
		t.Errorf("cancelled at %v, %v", sites, err)
	}
	if c := r.at(both[1]); c.Sites[0].State != fleet.CommandCancelled || c.Sites[1].State != fleet.CommandWaiting {
		t.Errorf("cancelled at one site: %+v", c.Sites)
	}
	if _, err := r.Cancel(t.Context(), both[1], within("north")); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("cancelled twice: %v", err)
	}
	if _, _, err := r.Commands(t.Context(), fleet.CommandFilter{}, fleet.Page{Cursor: "x"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a cursor that is none: %v", err)
	}
}

// TestAway finds nodes that are not online.
func TestAway(t *testing.T) {
	t.Parallel()
	r := open(t)
	r.report("plant", protocol.Event{Kind: protocol.NodeOfflineEvent, Node: "gw-2", Body: protocol.Marshal(protocol.Presence{V: 1})})
	away, err := r.Away(t.Context(), "plant", []protocol.NodeID{"gw-1", "gw-2", "gw-3"})
	if err != nil || len(away) != 2 || away["gw-2"].IsZero() || !away["gw-3"].IsZero() {
		t.Errorf("%v, %v", away, err)
	}
}

// TestManyResults commits the results of a site of many nodes.
func TestManyResults(t *testing.T) {
	t.Parallel()
	const n = 10_000
	r := open(t)
	id := r.create(time.Hour, all("plant"))
	began, ended := make([]protocol.Event, n), make([]protocol.Event, n)
	for i := range n {
		node := protocol.NodeID(fmt.Sprintf("gw-%05d", i))
		began[i] = result(command.Result{ID: id, Node: node, State: command.Running})
		ended[i] = result(command.Result{ID: id, Node: node, State: []command.State{command.Done, command.Failed}[i%2], Output: "restarted"})
	}
	r.report("plant", received(id, n, ""))
	r.report("plant", began...)
	if c := r.at(id); c.Counts != (fleet.CommandCounts{Nodes: n, Running: n}) || c.State != "open" {
		t.Errorf("begun: %+v", c.Counts)
	}
	r.report("plant", ended...)
	if c := r.at(id); c.Counts != (fleet.CommandCounts{Nodes: n, Done: n / 2, Failed: n / 2}) || c.State != "ended" {
		t.Errorf("ended: %+v", c.Counts)
	}
	count := 0
	for page := (fleet.Page{Limit: 1000}); ; {
		list, next, err := r.Results(t.Context(), id, fleet.ResultFilter{State: "failed"}, page)
		if err != nil {
			t.Fatal(err)
		}
		count += len(list)
		if page.Cursor = next; next == "" {
			break
		}
	}
	if count != n/2 {
		t.Errorf("%d results failed, want %d", count, n/2)
	}
}

// TestRetention removes old commands, with all that belongs to them.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := open(t)
	old, young := r.create(-48*time.Hour, named("plant", "gw-1")), r.create(time.Hour, named("plant", "gw-1"))
	for _, id := range []command.ID{old, young} {
		r.report("plant", received(id, 1, ""), result(command.Result{ID: id, Node: "gw-1", State: command.Done}))
	}
	if err := r.fleet.Retain(t.Context(), upkeepdb.Retention{History: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"commands", "command_sites", "command_nodes"} {
		var n int
		if err := r.db.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows of %s, want 1 (%v)", n, table, err)
		}
	}
	r.at(young)
}

// TestCreateIsBounded records commands until a site has as many as it may.
func TestCreateIsBounded(t *testing.T) {
	t.Parallel()
	r := open(t)
	if _, err := r.db.Exec(t.Context(), `insert into command_sites (command, site, created_at, deadline, every)
		select lpad(i::text, 32, '0'), 'plant', now(), now() + interval '1 hour', true from generate_series(1, $1) i`, commandsdb.MaxOpen); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := fleet.NewCommand{Command: fleet.Command{ID: id(), Kind: command.Inventory, CreatedAt: now, Deadline: now.Add(time.Hour)}, Targets: []fleet.CommandTarget{all("north"), all("plant")}}
	if err := r.Create(t.Context(), c); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(fmt.Sprint(err), "colony command cancel") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := r.Command(t.Context(), c.ID, siteset.Set{}); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("it was recorded in part: %v", err)
	}
}
