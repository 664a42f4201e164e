package privatepg_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/privatepg"
	"github.com/colonyfleet/colony/internal/testproc"
)

// ownerDir, set in the environment, makes the test binary the owner of a cluster
// that it starts and then waits to be killed.
const ownerDir = "PRIVATEPG_TEST_OWNER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerDir); dir != "" {
		c, err := privatepg.Start(context.Background(), privatepg.Options{Dir: dir})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(c.PID())
		<-c.Done()
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// openDir returns a directory that the server's user can reach, which t.TempDir
// of a root user is not.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "privatepg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pg")
}

func start(t *testing.T, dir string) *privatepg.Cluster {
	t.Helper()
	c, err := privatepg.Start(t.Context(), privatepg.Options{Dir: dir, DieWithParent: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t *testing.T, c *privatepg.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil && !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("stop: %v", err)
	}
}

func query(t *testing.T, c *privatepg.Cluster, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var out string
	if err := conn.QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func remember(t *testing.T, c *privatepg.Cluster) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "create table t as select 'kept'::text as v"); err != nil {
		t.Fatal(err)
	}
}

func TestStartStopStart(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	c := start(t, dir)
	if got := query(t, c, "show fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	if got := query(t, c, "show listen_addresses"); got != "" {
		t.Errorf("listens on %q: want no network", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "data")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v", info, err)
	}
	remember(t, c)
	if _, err := privatepg.Start(t.Context(), privatepg.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("second start of a running cluster: %v", err)
	}
	stop(t, c)
	if err := c.Err(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if got := query(t, start(t, dir), "select v from t"); got != "kept" {
		t.Errorf("after a restart: %q", got)
	}
}

// A killed server leaves postmaster.pid; its number may belong to any process.
func TestStaleFilesOfAKilledServer(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	c := start(t, dir)
	remember(t, c)
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if c.Err() == nil {
		t.Error("a killed server ended without error")
	}
	stop(t, c)
	for _, path := range []string{"data/postmaster.pid", "run/.s.PGSQL.5432.lock"} {
		path = filepath.Join(dir, path)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "\n")
		if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := query(t, start(t, dir), "select v from t"); got != "kept" {
		t.Errorf("after recovery: %q", got)
	}
}

// The server outlives a killed owner; the next one takes over its data.
func TestServerThatLostItsOwner(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	orphan := testproc.Orphan(t, nil, ownerDir+"="+dir)
	if err := syscall.Kill(orphan, 0); err != nil {
		t.Fatalf("the server did not outlive its owner: %v", err)
	}
	c := start(t, dir)
	if c.PID() == orphan {
		t.Error("not a server of its own")
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", orphan)); err == nil && strings.Contains(exe, "postgres") {
		t.Error("two servers")
	}
	if got := query(t, c, "select 'up'"); got != "up" {
		t.Error(got)
	}
}

func TestUnfinishedInitialisation(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := query(t, start(t, dir), "select 'up'"); got != "up" {
		t.Error(got)
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	other := openDir(t)
	if err := os.MkdirAll(filepath.Join(other, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "data", "PG_VERSION"), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := openDir(t)
	for name, tc := range map[string]struct {
		opts privatepg.Options
		want string
	}{
		"no directory":  {privatepg.Options{}, "no directory given"},
		"other version": {privatepg.Options{Dir: other}, "install postgresql-7"},
		"no programs":   {privatepg.Options{Dir: openDir(t), BinDir: t.TempDir()}, "scripts/setup"},
		"bad setting": {
			privatepg.Options{Dir: bad, NoFsync: true, Settings: map[string]string{"shared_buffers": "nonsense"}},
			"shared_buffers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := privatepg.Start(t.Context(), tc.opts)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to say %q", err, tc.want)
			}
		})
	}
}
