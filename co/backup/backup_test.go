package backup_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/backup"
	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A place is a cluster in which databases are made, and directories for COs.
type place struct {
	t   *testing.T
	own *pgtest.Own
}

func newPlace(t *testing.T) *place {
	t.Helper()
	return &place{t, pgtest.NewOwn(t)}
}

// database makes an empty database and returns its URL.
func (p *place) database(name string) string {
	p.t.Helper()
	p.exec(p.own.URL(), "create database "+name)
	return strings.Replace(p.own.URL(), "/postgres", "/"+name, 1)
}

func (p *place) exec(url, sql string) {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // a test
	if _, err := conn.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

func (p *place) query(url, sql string) string {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // a test
	var out string
	if err := conn.QueryRow(p.t.Context(), sql).Scan(&out); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// fill makes the schema of a CO in a database, with partitions and some rows, as a CO does.
func (p *place) fill(url, site string) {
	p.t.Helper()
	pool, err := db.Open(p.t.Context(), url, db.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		datadb.New(pool).KeepData(ctx)
	}()
	for p.query(url, `select count(*)::text from pg_inherits where inhparent = 'data_messages'::regclass`) == "0" {
		if p.t.Context().Err() != nil {
			p.t.Fatal("no partitions were made")
		}
	}
	cancel()
	<-done
	pool.Close()
	p.exec(url, `insert into sites (id) values ('`+site+`');
		insert into proposals (id, kind, commit) values ('`+site+`', 'removals', '`+site+`');
		insert into data_messages (received_at, seq, era, qos, retain, site, rule, topic, payload, content_type, response_topic, correlation, properties)
			values (now(), 1, 0, 0, false, '`+site+`', 'r', 't', '\x01', '', '', '', '{}')`)
}

// content is what a database holds: the rows of each table, and the partitions.
func (p *place) content(url string) string {
	p.t.Helper()
	return p.query(url, `select string_agg(c.relname || ' ' || c.relkind::text || ' ' || c.relispartition::text || ' ' ||
			case when c.relkind in ('r', 'p') then query_to_xml(format('select count(*) as n from %I', c.relname), false, true, '')::text else '' end, e'\n' order by c.relname)
		from pg_class c where c.relnamespace = 'public'::regnamespace`)
}

// co makes the directory and the repo of a CO.
// restored is the content of a database after a restore, without the rows that say so.
func (p *place) restored(url string) string {
	p.t.Helper()
	if n := p.query(url, `select count(*)::text from audit where operation = 'colony co restore'`); n != "1" {
		p.t.Errorf("the audit has %s rows of the restore, want 1", n)
	}
	if n := p.query(url, `select (select count(*) from restored_positions)::text || ' of ' || (select count(*) from sites)`); n == "0 of 0" || strings.Split(n, " of ")[0] != strings.Split(n, " of ")[1] {
		p.t.Errorf("the positions of %s sites are recorded as restored", n)
	}
	p.exec(url, `delete from restored_positions`)
	p.exec(url, `alter table audit disable trigger user; delete from audit where operation = 'colony co restore'; alter table audit enable trigger user`)
	return p.content(url)
}

func (p *place) co(url, message string) backup.Source {
	p.t.Helper()
	dir := p.t.TempDir()
	s := backup.Source{DatabaseURL: url, StateDir: filepath.Join(dir, "co"), Remote: filepath.Join(dir, "deployments.git"), Config: filepath.Join(dir, "co.yaml"), Keys: filepath.Join(dir, "keys"), KeyFiles: keys.Files(), Version: "1"}
	s.Root = store.At(nil, filepath.Join(s.StateDir, "identity"))
	p.write(s.Config, "databaseURL: x\n")
	if message == "" {
		return s
	}
	if err := git.InitBare(p.t.Context(), s.Remote, "main"); err != nil {
		p.t.Fatal(err)
	}
	r, err := git.Open(p.t.Context(), git.Options{Dir: filepath.Join(dir, "cache"), Remote: s.Remote})
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // a test
	if _, err := r.Commit(p.t.Context(), git.Change{Message: message, Files: map[string][]byte{"a": []byte(message)}}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := keys.Init(s.Keys); err != nil {
		p.t.Fatal(err)
	}
	p.write(filepath.Join(s.StateDir, "registry", "blobs", "uploads", "aa"), "blob")
	p.write(filepath.Join(s.StateDir, "registry", "uploads", "half"), "unfinished")
	return s
}

func (p *place) write(file, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// sameKeys checks that the keys of a CO are those of another one.
func (p *place) sameKeys(want, got string) {
	p.t.Helper()
	for _, name := range keys.Files() {
		a, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			p.t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(got, name)); err != nil || string(a) != string(b) {
			p.t.Errorf("%s of the keys is not restored (%v)", name, err)
		}
	}
	if _, err := keys.Open(got); err != nil {
		p.t.Error(err)
	}
}

func (p *place) head(remote string) string {
	p.t.Helper()
	out, err := exec.CommandContext(p.t.Context(), "git", "--git-dir="+remote, "log", "-1", "--format=%s", "main").CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestRestoreRevokesTokens restores a backup with a token that was revoked after it.
func TestRestoreRevokesTokens(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	from := p.co(p.database("a"), "Deploy hello")
	p.fill(from.DatabaseURL, "berlin")
	p.query(from.DatabaseURL, `insert into access_tokens (id, name, role, created_at, created_by, expires_at)
		select 'T' || n, 'ci', 'admin', now(), 'ann', now() + make_interval(hours => n) from generate_series(-1, 2) n returning id`)
	p.query(from.DatabaseURL, `insert into requests (site, kind, deployment, pending) values ('berlin', 'purge', 'a', true), ('berlin', 'purge', 'b', false) returning kind`)
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Create(t.Context(), from, dir); err != nil {
		t.Fatal(err)
	}
	const count = `select count(*)::text from access_tokens where revoked_at is null and expires_at > now()`
	to := p.co(p.database("b"), "")
	for _, tt := range []struct {
		choices backup.Choices
		revoked int
		counts  string
	}{{backup.Choices{KeepTokens: true}, 0, "2"}, {backup.Choices{Replace: true}, 2, "0"}} {
		got, err := backup.Restore(t.Context(), to, dir, tt.choices)
		if err != nil || got.TokensRevoked != tt.revoked {
			t.Fatalf("restore %+v: %d revoked, want %d; %v", tt.choices, got.TokensRevoked, tt.revoked, err)
		}
		if n := p.query(to.DatabaseURL, `select string_agg(deployment, ',') from requests`); n != "b" || got.RequestsDropped != 1 {
			t.Errorf("restore %+v: requests of %q are left and %d are dropped, want that of b, and one", tt.choices, n, got.RequestsDropped)
		}
		if n := p.query(to.DatabaseURL, count); n != tt.counts {
			t.Errorf("restore %+v: %s tokens count, want %s", tt.choices, n, tt.counts)
		}
	}
}

// TestRestoreIsInTheAudit restores a backup over a CO whose audit goes on after it.
func TestRestoreIsInTheAudit(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.co(p.database("a"), "Deploy hello")
	p.fill(s.DatabaseURL, "berlin")
	const row = `insert into audit (id, at, kind, principal) values ('%s', now(), 'intent', 'ann') returning id`
	p.query(s.DatabaseURL, fmt.Sprintf(row, "before"))
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Create(t.Context(), s, dir); err != nil {
		t.Fatal(err)
	}
	p.query(s.DatabaseURL, fmt.Sprintf(row, "after"))
	s.Checkpoints = filepath.Join(t.TempDir(), "checkpoints.jsonl")
	if err := os.WriteFile(s.Checkpoints, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := backup.Restore(t.Context(), s, dir, backup.Choices{Replace: true})
	if err != nil {
		t.Fatal(err)
	}
	list := p.query(s.DatabaseURL, `select string_agg(coalesce(nullif(principal, ''), operation || ': ' || detail), '; ' order by at) from audit`)
	if want := "ann; colony co restore: a backup of " + got.Manifest.Created.Format(time.RFC3339); !strings.HasPrefix(list, want) {
		t.Errorf("the audit says %q, want %q", list, want)
	}
	if b, err := os.ReadFile(got.CheckpointsAside); err != nil || string(b) != "{}\n" || filepath.Dir(got.CheckpointsAside) != filepath.Dir(s.Checkpoints) {
		t.Errorf("checkpoints of before in %q: %q (%v)", got.CheckpointsAside, b, err)
	}
	if _, err := os.Stat(s.Checkpoints); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the checkpoints of before are still there: %v", err)
	}
	// What was restored can be changed no more than what was there.
	conn, err := pgx.Connect(t.Context(), s.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // a test
	if _, err := conn.Exec(t.Context(), `delete from audit`); err == nil {
		t.Error("rows of the restored audit can be removed")
	}
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	from := p.co(p.database("a"), "Deploy hello")
	p.fill(from.DatabaseURL, "berlin")
	dir := filepath.Join(t.TempDir(), "backup")
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as an administrator makes one
		t.Fatal(err)
	}
	m, err := backup.Create(t.Context(), from, dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the directory: %v, %v; want that only its owner reads it", info.Mode(), err)
	}
	if !m.Repo || !m.Registry || m.Schema == 0 || m.Postgres == 0 || m.Created.IsZero() {
		t.Errorf("manifest %+v", m)
	}
	if _, err := backup.Create(t.Context(), from, dir); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a second backup into the same directory: %v", err)
	}

	to := p.co(p.database("b"), "")
	got, err := backup.Restore(t.Context(), to, dir, backup.Choices{})
	if err != nil || got.RepoExisted {
		t.Fatalf("restore: %v, repo existed %t", err, got.RepoExisted)
	}
	if d := cmp.Diff(p.content(from.DatabaseURL), p.restored(to.DatabaseURL)); d != "" {
		t.Errorf("content of the database (-saved +restored):\n%s", d)
	}
	if got := p.head(to.Remote); got != "Deploy hello" {
		t.Errorf("head of the deployments repo is %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(to.StateDir, "registry", "blobs", "uploads", "aa")); err != nil || string(b) != "blob" {
		t.Errorf("blob of the registry: %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(to.StateDir, "registry", "uploads")); !os.IsNotExist(err) {
		t.Errorf("unfinished uploads were restored: %v", err)
	}
	p.sameKeys(from.Keys, to.Keys)
	p.fill(to.DatabaseURL, "munich") // a CO works on it

	// Once more, over what is there now.
	if _, err := backup.Restore(t.Context(), to, dir, backup.Choices{}); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("restore over a database with content: %v", err)
	}
	unnamed := to
	unnamed.Keys = ""
	if _, err := backup.Restore(t.Context(), unnamed, dir, backup.Choices{Replace: true}); err == nil || !strings.Contains(err.Error(), "signing.dir") {
		t.Errorf("restore where the configuration names no directory for the keys: %v", err)
	}
	if got, err = backup.Restore(t.Context(), to, dir, backup.Choices{Replace: true}); err != nil || !got.RepoExisted || !got.KeysExisted {
		t.Errorf("restore with replace: %v, repo existed %t", err, got.RepoExisted)
	}
	if d := cmp.Diff(p.content(from.DatabaseURL), p.restored(to.DatabaseURL)); d != "" {
		t.Errorf("content of the database after a restore with replace (-saved +restored):\n%s", d)
	}
	if n := p.query(to.DatabaseURL, `select count(*)::text from pg_namespace where nspname like '%before%'`); n != "0" {
		t.Error("what was replaced is still there")
	}
}

// makeRoot makes the root of the fleet of a CO.
func makeRoot(t *testing.T, s backup.Source) *store.Store {
	t.Helper()
	files, err := store.Open(nil, filepath.Join(s.StateDir, "identity"))
	if err == nil {
		_, _, err = files.InitRoot(time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestRootOfTheFleet restores the root of the certificates with the CO, and refuses, before
// anything is changed, each restore after which the CO would not have that root.
func TestRootOfTheFleet(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	from := p.co(p.database("a"), "Deploy hello")
	p.fill(from.DatabaseURL, "berlin")
	root := makeRoot(t, from)
	want, err := root.ExportRoot()
	if err != nil {
		t.Fatal(err)
	}
	with, without := filepath.Join(t.TempDir(), "with"), filepath.Join(t.TempDir(), "without")
	m, err := backup.Create(t.Context(), from, with)
	if err != nil || !m.Root || m.RootFingerprint == "" || m.Sums["fleet-root.pem"] == "" {
		t.Fatalf("manifest %+v, %v", m, err)
	}
	if info, err := os.Stat(filepath.Join(with, "fleet-root.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the root: %v, %v", info, err)
	}
	from.NoRoot = true
	if m, err = backup.Create(t.Context(), from, without); err != nil || m.Root || m.RootFingerprint == "" {
		t.Fatalf("a backup without the root: %+v, %v", m, err)
	}
	if _, err := os.Stat(filepath.Join(without, "fleet-root.pem")); err == nil {
		t.Error("the root is in a backup that should not have it")
	}

	to := p.co(p.database("b"), "")
	p.fill(to.DatabaseURL, "munich")
	refused := func(what, want, dir string) {
		t.Helper()
		before := p.content(to.DatabaseURL)
		_, err := backup.Restore(t.Context(), to, dir, backup.Choices{Replace: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that says %q", what, err, want)
		}
		if d := cmp.Diff(before, p.content(to.DatabaseURL)); d != "" {
			t.Errorf("%s: the database has changed:\n%s", what, d)
		}
	}
	refused("without the root", "bring it first with colony ca import --config "+to.Config, without)
	got, err := backup.Restore(t.Context(), to, with, backup.Choices{Replace: true})
	if err != nil || got.RootExisted {
		t.Fatalf("restore: %v, root existed %t", err, got.RootExisted)
	}
	if now, err := store.At(nil, filepath.Join(to.StateDir, "identity")).ExportRoot(); err != nil || string(now) != string(want) {
		t.Errorf("the root is not restored: %v", err)
	}
	if got, err = backup.Restore(t.Context(), to, without, backup.Choices{Replace: true}); err != nil || !got.RootExisted {
		t.Errorf("restore without the root where it is: %v, existed %t", err, got.RootExisted)
	}
	if err := os.RemoveAll(filepath.Join(to.StateDir, "identity")); err != nil {
		t.Fatal(err)
	}
	makeRoot(t, to)
	refused("another root", "would lock out all machines", with)
}

// TestRestoreAfterOneThatWasKilled begins with what a restore leaves that is killed after it
// has put aside what the database held: that is never lost.
func TestRestoreAfterOneThatWasKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	from := p.co(p.database("a"), "Deploy hello")
	p.fill(from.DatabaseURL, "berlin")
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Create(t.Context(), from, dir); err != nil {
		t.Fatal(err)
	}
	to := p.co(p.database("b"), "Deploy hello")
	p.fill(to.DatabaseURL, "munich")
	before := p.content(to.DatabaseURL)
	const killed = `alter schema public rename to public_before_restore; create schema public`
	same := func(what string) {
		t.Helper()
		if d := cmp.Diff(before, p.content(to.DatabaseURL)); d != "" {
			t.Errorf("%s: the database is not as it was:\n%s", what, d)
		}
	}

	p.exec(to.DatabaseURL, killed)
	if _, err := backup.Restore(t.Context(), to, dir, backup.Choices{}); err == nil || !strings.Contains(err.Error(), "the database is not empty") {
		t.Errorf("restore without replace: %v", err)
	}
	same("killed before the backup was in it")

	p.exec(to.DatabaseURL, killed+`; create table public.restored ()`)
	_, err := backup.Restore(t.Context(), to, dir, backup.Choices{Replace: true})
	if err == nil || !strings.Contains(err.Error(), `drop schema "public_before_restore" cascade, or drop schema "public" cascade; create schema "public"`) {
		t.Errorf("restore where both schemas have content: %v", err)
	}
	if n := p.query(to.DatabaseURL, `select count(*)::text from pg_tables where schemaname = 'public'`); n != "1" {
		t.Errorf("schema public has %s tables, want 1", n)
	}
	p.exec(to.DatabaseURL, `drop schema public cascade; alter schema public_before_restore rename to public`)
	same("killed after the backup was in it")

	// As restores of this release leave it, which no CO works with meanwhile.
	const marked = killed + `; comment on schema public_before_restore is 'colony co restore is under way'`
	for _, state := range []string{marked, marked + `; create table public.restored ()`} {
		p.exec(to.DatabaseURL, state)
		if d, err := db.Open(t.Context(), to.DatabaseURL, db.Options{}); err == nil || !strings.Contains(err.Error(), `has left the schema "public_before_restore": run colony co restore --replace again`) {
			t.Errorf("a CO on a restore that did not end: %v", err)
			if err == nil {
				d.Close()
			}
		}
		if _, err := backup.Restore(t.Context(), to, dir, backup.Choices{}); err == nil || !strings.Contains(err.Error(), "the database is not empty") {
			t.Errorf("restore without replace: %v", err)
		}
		same("killed at any moment")
	}
	empty := p.co(p.database("c"), "Deploy hello")
	p.exec(empty.DatabaseURL, `drop schema if exists public cascade; create schema public; create table public.restored (); create schema public_before_restore; comment on schema public_before_restore is 'colony co restore is under way'`)
	if _, err := backup.Restore(t.Context(), empty, dir, backup.Choices{}); err != nil {
		t.Errorf("over one into an empty database that did not end: %v", err)
	}
	if n := p.query(empty.DatabaseURL, `select count(*)::text from pg_namespace where nspname like '%before_restore'`); n != "0" {
		t.Errorf("%s schemas are left", n)
	}

	p.exec(to.DatabaseURL, killed)
	if _, err := backup.Restore(t.Context(), to, dir, backup.Choices{Replace: true}); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(p.content(from.DatabaseURL), p.restored(to.DatabaseURL)); d != "" {
		t.Errorf("content of the database (-saved +restored):\n%s", d)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	from := p.co(p.database("a"), "Deploy hello")
	p.fill(from.DatabaseURL, "berlin")
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Create(t.Context(), from, dir); err != nil {
		t.Fatal(err)
	}
	refused := func(what, want string, to backup.Source, dir string, replace bool) {
		t.Helper()
		before := p.content(to.DatabaseURL)
		_, err := backup.Restore(t.Context(), to, dir, backup.Choices{Replace: replace})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that says %q", what, err, want)
		}
		if d := cmp.Diff(before, p.content(to.DatabaseURL)); d != "" {
			t.Errorf("%s: the database has changed:\n%s", what, d)
		}
	}
	lock, err := filelock.Acquire(filepath.Join(mkdir(t, filepath.Join(from.StateDir, "deployments")), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	refused("a CO runs", "a CO runs with the directory "+from.StateDir, from, dir, true)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	pool, err := db.Open(t.Context(), from.DatabaseURL, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	refused("another program is connected", "connections use the database: stop every CO", from, dir, true)
	pool.Close()
	refused("no backup", "is no backup", from, t.TempDir(), true)

	edit := func(change func(m *backup.Manifest)) {
		t.Helper()
		file := filepath.Join(dir, "manifest.json")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var m backup.Manifest
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		if b, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		p.write(file, string(b))
	}
	dump, err := os.ReadFile(filepath.Join(dir, "database.dump"))
	if err != nil {
		t.Fatal(err)
	}
	p.write(filepath.Join(dir, "database.dump"), string(dump[:len(dump)-2000]))
	refused("a dump that is cut", "is damaged: database.dump", from, dir, true)
	// The sum is right and the dump is not: what was there comes back.
	edit(func(m *backup.Manifest) {
		sum := sha256.Sum256(dump[:len(dump)-2000])
		m.Sums["database.dump"] = hex.EncodeToString(sum[:])
	})
	refused("a dump that cannot be read", "pg_restore", from, dir, true)
	edit(func(m *backup.Manifest) { m.Postgres = 99 })
	refused("an older server", "the backup is of PostgreSQL 99", from, dir, true)
	edit(func(m *backup.Manifest) { m.Schema, m.Version = 999, "9.0.0" })
	refused("a later schema", "restore it with Colony 9.0.0 or later", from, dir, true)
	edit(func(m *backup.Manifest) { m.Format = 2 })
	refused("a later format", "has format 2: restore it with Colony 9.0.0 or later", from, dir, true)

	if _, err := backup.Create(t.Context(), p.co(p.database("empty"), ""), filepath.Join(t.TempDir(), "b")); err == nil || !strings.Contains(err.Error(), "it holds no CO") {
		t.Errorf("backup of an empty database: %v", err)
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPasswordIsNotShown keeps the password of the database from the list of processes.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"postgres://colony:secret@db:5432/fleet?sslmode=require&pool_max_conns=4", "postgres://colony@db:5432/fleet?sslmode=require"},
		{`host=db user=colony password='se \'cret' dbname=fleet`, "host=db user=colony  dbname=fleet"},
		{"host=db password=secret", "host=db "},
	} {
		address, want := c[0], c[1]
		if got := backup.ForPrograms(address); got != want {
			t.Errorf("%q becomes %q, want %q", address, got, want)
		}
	}
}
