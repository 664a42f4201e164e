// Package pgtest gives tests a real PostgreSQL. There is one private cluster for each test process,
// which the first test starts, and a separate schema for each test: so tests run in parallel and
// see nothing of each other.
//
// The package under test needs
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/privatepg"
)

// server is the cluster of this process. A package variable, because TestMain and
// the tests have nothing else in common.
var server struct {
	sync.Mutex
	managed bool // Main runs and will stop it
	dir     string
	cluster *privatepg.Cluster
	err     error
}

var schemas atomic.Int64

// Main runs the tests, stops the cluster if one was started, and fails where
// goroutines are left. It returns the exit status.
func Main(m *testing.M) int {
	server.Lock()
	server.managed = true
	server.Unlock()
	code := m.Run()
	server.Lock()
	defer server.Unlock()
	if server.cluster != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.cluster.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	if server.dir != "" {
		_ = os.RemoveAll(server.dir) // below the temporary directory
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: goroutines left:", err)
			code = 1
		}
	}
	return code
}

// New returns the URL of an empty schema of the test's own. The schema goes with
// the test. Where PostgreSQL is not installed, the test fails and says what to do.
func New(t testing.TB) string {
	t.Helper()
	base, err := running()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	schema := fmt.Sprintf("test_%d", schemas.Add(1))
	exec(t, base, "create schema "+schema)
	t.Cleanup(func() { exec(t, base, "drop schema "+schema+" cascade") })
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// An Own is a cluster for one test alone, for tests that stop or kill it.
type Own struct {
	t       testing.TB
	dir     string
	cluster *privatepg.Cluster
}

// NewOwn starts a cluster for this test. It is stopped with the test.
func NewOwn(t testing.TB) *Own {
	t.Helper()
	dir, err := tempDir()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	o := &Own{t: t, dir: dir}
	t.Cleanup(func() {
		o.Stop()
		_ = os.RemoveAll(dir) // below the temporary directory
	})
	o.Start()
	return o
}

// URL returns the URL of an empty database, the same after a restart.
func (o *Own) URL() string { return o.cluster.URL("postgres") }

// Stop shuts the cluster down.
func (o *Own) Stop() {
	if o.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := o.cluster.Stop(ctx); err != nil {
		o.t.Logf("pgtest: %v", err)
	}
}

// Start starts the cluster again, with the same data and URL.
func (o *Own) Start() {
	o.t.Helper()
	c, err := start(o.dir)
	if err != nil {
		o.t.Fatalf("pgtest: %v", err)
	}
	o.cluster = c
}

func running() (string, error) {
	server.Lock()
	defer server.Unlock()
	if !server.managed {
		return "", fmt.Errorf("not managed: add a TestMain that calls pgtest.Main to this package")
	}
	if server.cluster == nil && server.err == nil {
		if server.dir, server.err = tempDir(); server.err == nil {
			server.cluster, server.err = start(server.dir)
		}
	}
	if server.err != nil {
		return "", server.err
	}
	return server.cluster.URL("postgres"), nil
}

// tempDir makes a directory that the server's user can reach, which t.TempDir of
// a root user is not.
func tempDir() (string, error) {
	dir, err := os.MkdirTemp("", "colony-pgtest-")
	if err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("open directory: %w", err)
	}
	return dir, nil
}

func start(dir string) (*privatepg.Cluster, error) {
	return privatepg.Start(context.Background(), privatepg.Options{
		Dir: dir + "/pg", NoFsync: true, DieWithParent: true,
		Settings: map[string]string{"max_connections": "200"},
	})
}

func exec(t testing.TB, base, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}
