package fleetdb_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const patience = 30 * time.Second

// commitOf commits one batch of a site: a deployment is installed on a node.
func commitOf(ctx context.Context, s *fleetdb.Store, site, node string) (protocol.Ack, error) {
	j := &journal{epoch: "e"}
	j.life("d", node)
	j.add(protocol.NodeOnlineEvent, protocol.NodeID(node), protocol.Presence{V: 1, Online: true})
	b := protocol.Batch{V: 1, Epoch: "e", First: 1, Count: uint32(len(j.events)), Backlog: protocol.Backlog{Last: uint64(len(j.events))}}
	return s.CommitBatch(ctx, protocol.SiteID(site), b, j.events)
}

// stopped opens a database in which no transaction can lock a site until release is called.
func stopped(t *testing.T) (pool *db.DB, release func()) {
	t.Helper()
	pool = openDB(t)
	held, done := make(chan struct{}), make(chan error, 1)
	free := make(chan struct{})
	go func() {
		done <- pool.Tx(context.WithoutCancel(t.Context()), "hold", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `lock table sites in exclusive mode`)
			close(held)
			<-free
			return err
		})
	}()
	<-held
	release = sync.OnceFunc(func() {
		close(free)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release) // a test that fails must not keep the pool from closing
	return pool, release
}

// waiting returns when so many connections wait for a lock.
func waiting(t *testing.T, pool *db.DB, n int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for got := -1; got < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections wait for a lock, want %d", got, n)
		}
		err := pool.Feed.QueryRow(t.Context(), `select count(*) from pg_locks where not granted and relation = 'sites'::regclass`).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSitesShareTransactions has many sites commit while none can: once they can, a few
// transactions do for all, and the record of each is its own.
func TestSitesShareTransactions(t *testing.T) {
	t.Parallel()
	pool, release := stopped(t)
	s := fleetdb.New(pool)
	const sites = 100
	var g errgroup.Group
	for i := range sites {
		g.Go(func() error {
			ack, err := commitOf(t.Context(), s, fmt.Sprintf("s%d", i), fmt.Sprintf("n%d", i))
			if err == nil && (ack.Epoch != "e" || ack.Seq != 4) {
				err = fmt.Errorf("site s%d: ack %+v", i, ack)
			}
			return err
		})
	}
	waiting(t, pool, 3) // the rest gathers behind them
	release()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var transactions int
	if err := pool.QueryRow(t.Context(), `select count(distinct xmin::text) from deployment_nodes`).Scan(&transactions); err != nil {
		t.Fatal(err)
	}
	// One for each of those that went ahead, and those that came while they worked.
	if transactions > sites/4 {
		t.Errorf("%d transactions for %d sites", transactions, sites)
	}
	for i := range sites {
		site := protocol.SiteID(fmt.Sprintf("s%d", i))
		v := testpart.Must[fleet.Site](t)(s.Site(t.Context(), site))
		d := testpart.Must[fleet.Deployment](t)(s.Deployment(t.Context(), site, "d"))
		if v.JournalSeq != 4 || v.NodesUnknown != 1 || d.State != lifecycle.Installed || len(d.Nodes) != 1 || d.Nodes[0].Node != protocol.NodeID(fmt.Sprintf("n%d", i)) {
			t.Errorf("site %s: %+v, %+v", site, v, d)
		}
		events := testpart.Must[[]fleet.Event](t)(s.Events(t.Context(), fleet.EventFilter{Site: site}))
		history := testpart.Must[[]fleet.Transition](t)(s.Transitions(t.Context(), site, "d", 0))
		if len(events) != 4 || len(history) != 3 || history[0].To != lifecycle.Installed {
			t.Errorf("site %s: events %v, history %+v", site, kinds(events), history)
		}
	}
}

// TestOneBadBatchHurtsNoOther commits the batch of a site that the database refuses in
// a group with others.
func TestOneBadBatchHurtsNoOther(t *testing.T) {
	t.Parallel()
	pool, release := stopped(t)
	if _, err := pool.Exec(t.Context(), `alter table nodes add check (id <> 'bad')`); err != nil {
		t.Fatal(err)
	}
	s := fleetdb.New(pool)
	const sites = 20
	errs := make([]error, sites)
	var g errgroup.Group
	for i := range sites {
		g.Go(func() error {
			node := "good"
			if i == 7 {
				node = "bad"
			}
			_, errs[i] = commitOf(t.Context(), s, fmt.Sprintf("s%d", i), node)
			return nil
		})
	}
	waiting(t, pool, 3)
	release()
	_ = g.Wait()
	for i, err := range errs {
		if (err != nil) != (i == 7) {
			t.Errorf("site s%d: %v", i, err)
		}
	}
	wantKind(t, errs[7], protocol.Internal, "commit events of site s7")
}

// TestLeaderLeaves ends the contexts of those whose transactions carry others.
func TestLeaderLeaves(t *testing.T) {
	t.Parallel()
	pool, release := stopped(t)
	s := fleetdb.New(pool)
	ctx, cancel := context.WithCancel(t.Context())
	var leaders, others errgroup.Group
	for i := range 3 {
		leaders.Go(func() error {
			_, err := commitOf(ctx, s, fmt.Sprintf("leader%d", i), "n")
			return err
		})
	}
	waiting(t, pool, 3)
	for i := range 10 {
		others.Go(func() error {
			_, err := commitOf(t.Context(), s, fmt.Sprintf("s%d", i), "n")
			return err
		})
	}
	cancel()
	if err := leaders.Wait(); err == nil {
		t.Error("a commit succeeded while no site could be locked")
	}
	release()
	if err := others.Wait(); err != nil {
		t.Error(err)
	}
}

// TestCommitsReadWhatTheyChange commits reports on few of a site's many rows, in a
// database that has no statistics: what PostgreSQL reads of the table grows with the
// reports, and not with the rows of the site.
func TestCommitsReadWhatTheyChange(t *testing.T) {
	t.Parallel()
	// The table of the test is small enough to be read as a whole for a batch; that of a
	// fleet is not.
	url := pgtest.New(t) + "&enable_seqscan=off"
	const deployments, nodes, batches, each = 40, 100, 20, 50
	withStore := func(do func(s *fleetdb.Store, pool *db.DB)) {
		t.Helper()
		pool, err := db.Open(t.Context(), url, db.Options{MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close() // with its connections, PostgreSQL counts what they did
		do(fleetdb.New(pool), pool)
	}
	j := &journal{epoch: "e"}
	for d := range deployments {
		for n := range nodes {
			j.status(fmt.Sprintf("d%d", d), fmt.Sprintf("n%d", n), lifecycle.Pending, lifecycle.LO)
		}
	}
	seeded := len(j.events)
	for i := range batches * each { // every fourth row, all over the site
		j.status(fmt.Sprintf("d%d", i%deployments), fmt.Sprintf("n%d", i*7%nodes), lifecycle.Pending, lifecycle.LO)
	}
	withStore(func(s *fleetdb.Store, pool *db.DB) {
		for _, sql := range []string{`alter table deployment_nodes set (autovacuum_enabled = off)`, `alter table deployments set (autovacuum_enabled = off)`} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		testpart.Must[protocol.Ack](t)(j.send(t.Context(), s, 1, seeded, 0))
	})
	before := rowsRead(t, url, deployments*nodes)
	withStore(func(s *fleetdb.Store, _ *db.DB) {
		for i := range batches {
			testpart.Must[protocol.Ack](t)(j.send(t.Context(), s, seeded+i*each+1, seeded+(i+1)*each, 0))
		}
	})
	after := rowsRead(t, url, deployments*nodes+batches*each)
	// One to find the state, one to change it, and one for each deployment of a batch
	// that may have to be archived; some versions of a row that were not removed yet.
	if read := after - before; read > 8*batches*each {
		t.Errorf("%d rows were read for %d reports at a site of %d rows", read, batches*each, deployments*nodes)
	} else {
		t.Logf("%d rows were read for %d reports", read, batches*each)
	}
}

// rowsRead returns how many rows of deployment_nodes, or entries of its indexes, were
// ever read, once so many were written.
func rowsRead(t *testing.T, url string, written int) (read int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	deadline := time.Now().Add(patience)
	for n := 0; n < written; {
		if time.Now().After(deadline) {
			t.Fatalf("PostgreSQL has counted %d rows written, want %d", n, written)
		}
		err := conn.QueryRow(t.Context(), `select n_tup_ins + n_tup_upd, coalesce(seq_tup_read, 0)
			+ (select sum(idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)
			from pg_stat_user_tables t where relid = 'deployment_nodes'::regclass`).Scan(&n, &read)
		if err != nil {
			t.Fatal(err)
		}
	}
	return read
}
