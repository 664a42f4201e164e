package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/privatepg"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/migrations"
)

// connectWait bounds how long the server may take to answer.
const connectWait = 15 * time.Second

// A database is the CO's, with the programs of PostgreSQL that fit its server.
type database struct {
	conn  *pgx.Conn
	url   string // for the programs, without the password
	env   []string
	major int // version of the server
	// unfinished is the schema that says that a restore has not ended, quoted.
	unfinished string
}

func openDatabase(ctx context.Context, address string) (*database, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("databaseURL of the configuration: %w", err)
	}
	connecting, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	d := &database{conn: conn, url: forPrograms(address), env: append(os.Environ(), "PGPASSWORD="+config.Password, "LC_ALL=C")}
	var number string
	if err := conn.QueryRow(ctx, "show server_version_num").Scan(&number); err != nil {
		d.close()
		return nil, fmt.Errorf("ask the version of the database: %w", err)
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		d.close()
		return nil, fmt.Errorf("version of the database: %w", err)
	}
	d.major = n / 10000
	return d, nil
}

func (d *database) close() {
	ctx, cancel := context.WithTimeout(context.Background(), connectWait)
	defer cancel()
	_ = d.conn.Close(ctx)
}

var passwordForm = regexp.MustCompile(`\bpassword\s*=\s*('(\\.|[^'\\])*'|\S*)`)

// forLibpq are the parameters of a URL that the programs of PostgreSQL know as well.
var forLibpq = []string{"host", "port", "dbname", "user", "passfile", "connect_timeout", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "target_session_attrs", "options"}

// forPrograms returns an address of a database without its password, which others would see
// in the list of processes, and without what only the driver of the CO knows.
func forPrograms(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return passwordForm.ReplaceAllString(address, "")
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	for name := range q {
		if !slices.Contains(forLibpq, name) {
			q.Del(name)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// schema returns the number of the last migration, 0 where the database holds no CO.
func (d *database) schema(ctx context.Context) (n int, err error) {
	n, err = migrations.Version(ctx, d.conn)
	return n, wrap("read the schema of the database", err)
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// dump writes the content of the database, as of one moment, into a file.
func (d *database) dump(ctx context.Context, file string) error {
	program, err := d.program("pg_dump")
	if err != nil {
		return err
	}
	return d.run(ctx, program, "--format=custom", "--no-owner", "--no-privileges", "--file="+file, "--dbname="+d.url)
}

// leaveWait bounds how long the connections of a program that was just stopped may take to end.
const leaveWait = 10 * time.Second

// refuseUsers fails where another program is connected: a CO would write into what is being
// restored.
func (d *database) refuseUsers(ctx context.Context) error {
	tries := retry.Backoff{Policy: retry.Policy{Min: 50 * time.Millisecond, Max: time.Second}}
	waiting, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	for {
		var n int
		err := d.conn.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&n)
		if err != nil {
			return fmt.Errorf("see who uses the database: %w", err)
		}
		if n == 0 {
			return nil
		}
		if tries.Wait(waiting) != nil {
			return fmt.Errorf("restore: %d connections use the database: stop every CO and other program of it first", n)
		}
	}
}

// restore fills the database from a dump, or leaves it as it was. With replace, what it
// holds is put aside first and removed last: a restore over tables (pg_restore --clean) can fail
// on the partitions, whose inherited constraints cannot be dropped by themselves.
func (d *database) restore(ctx context.Context, file string, replace bool) error {
	program, err := d.program("pg_restore")
	if err != nil {
		return err
	}
	var schema string
	if err := d.conn.QueryRow(ctx, "select coalesce(current_schema(), '')").Scan(&schema); err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	if schema == "" {
		return errors.New("restore: the database has no schema that its user works in: make one (create schema public)")
	}
	if err := d.takeBack(ctx, schema); err != nil {
		return err
	}
	var full bool
	err = d.conn.QueryRow(ctx, `select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname not like 'pg\_%' and n.nspname <> 'information_schema')`).Scan(&full)
	if err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	if full && !replace {
		return errors.New("restore: the database is not empty: restore into an empty one (createdb), or replace its content with --replace")
	}
	name := pgx.Identifier{schema}.Sanitize()
	aside := pgx.Identifier{schema + migrations.BeforeRestore}.Sanitize()
	d.unfinished = aside
	put, undo := []string{"create schema " + aside}, []string{"drop schema " + aside}
	if full {
		put, undo = []string{"alter schema " + name + " rename to " + aside, "create schema " + name}, putBack(name, aside)
	}
	if err := d.exec(ctx, append(put, "comment on schema "+aside+" is '"+underWay+"'")...); err != nil {
		return err
	}
	err = d.run(ctx, program, "--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--dbname="+d.url, file)
	if err != nil {
		// With its own deadline: the database is to be as it was, also where ctx has ended.
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectWait)
		defer cancel()
		return errors.Join(err, d.exec(back, undo...))
	}
	return nil
}

// putBack are the statements that give a schema the content back that was put aside.
func putBack(name, aside string) []string {
	return []string{"drop schema " + name + " cascade", "alter schema " + aside + " rename to " + name, "comment on schema " + name + " is null"}
}

// finish notes that the restore of the database has ended: until then no CO works with it.
func (d *database) finish(ctx context.Context) error {
	return d.exec(ctx, "drop schema "+d.unfinished+" cascade")
}

// revokeTokens ends all tokens of people and programs that count, and returns how many they were.
func (d *database) revokeTokens(ctx context.Context) (int, error) {
	var there bool
	if err := d.conn.QueryRow(ctx, "select to_regclass('access_tokens') is not null").Scan(&there); err != nil || !there {
		return 0, wrap("look at the tokens", err)
	}
	tag, err := d.conn.Exec(ctx, "update access_tokens set revoked_at = now() where revoked_at is null and expires_at > now()")
	return int(tag.RowsAffected()), wrap("revoke the tokens", err)
}

// dropRequests removes what people had asked for by name and the CO had not begun when the backup was made, as purges of volumes and removals of
// sites: they may be done since, and what they name may be of later. It returns how many there were.
func (d *database) dropRequests(ctx context.Context) (int, error) {
	var there bool
	if err := d.conn.QueryRow(ctx, "select to_regclass('requests') is not null").Scan(&there); err != nil || !there {
		return 0, wrap("look at the requests", err)
	}
	// One that was asked for once more is in the desired state already.
	tag, err := d.conn.Exec(ctx, "update requests set pending = false where pending and generation > 0")
	if err != nil {
		return 0, wrap("drop the requests", err)
	}
	published := tag.RowsAffected()
	tag, err = d.conn.Exec(ctx, "delete from requests where pending")
	return int(published + tag.RowsAffected()), wrap("drop the requests", err)
}

// markPositions records at which position the desired state of each site was restored, see co/db/fleet/desired.
func (d *database) markPositions(ctx context.Context) error {
	var there bool
	if err := d.conn.QueryRow(ctx, "select to_regclass('sites') is not null and exists (select from information_schema.columns where table_schema = current_schema() and table_name = 'sites' and column_name = 'generation')").Scan(&there); err != nil || !there {
		return wrap("look at the sites", err)
	}
	for _, statement := range []string{
		"create table if not exists restored_positions (site text primary key, epoch bigint not null, generation bigint not null)",
		"delete from restored_positions",
		"insert into restored_positions select id, epoch, generation from sites",
	} {
		if err := d.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// recordRestore adds to the audit, where the backup has one, that it was restored.
func (d *database) recordRestore(ctx context.Context, m Manifest) error {
	var there bool
	if err := d.conn.QueryRow(ctx, "select to_regclass('audit') is not null").Scan(&there); err != nil || !there {
		return wrap("look at the audit", err)
	}
	r := audit.NewRow(time.Now(), audit.Row{
		Kind: audit.Local, Operation: "colony co restore",
		Detail: "a backup of " + m.Created.Format(time.RFC3339) + " was restored: what was done since then is not in this audit",
	})
	_, err := d.conn.Exec(ctx, "insert into audit (id, at, kind, operation, detail) values ($1, $2, $3, $4, $5)", r.ID, r.At, r.Kind, r.Operation, r.Detail)
	return wrap("write the audit", err)
}

// underWay is the comment on the schema that is put aside: what stands in its place is of a restore that has not ended.
const underWay = "colony co restore is under way"

// takeBack gives a schema the content back that a restore which was killed had put aside. It
// fails where the schema has content as well, of which it is not known that the restore made it: only a person knows which of the two is meant.
func (d *database) takeBack(ctx context.Context, schema string) error {
	var left, full, content, marked bool
	const has = `exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1)`
	err := d.conn.QueryRow(ctx, `select exists (select from pg_namespace where nspname = $2), `+has+`, `+strings.ReplaceAll(has, "$1", "$2")+`,
		exists (select from pg_namespace where nspname = $2 and obj_description(oid, 'pg_namespace') = $3)`, schema, schema+migrations.BeforeRestore, underWay).Scan(&left, &full, &content, &marked)
	if err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	if !left {
		return nil
	}
	name, aside := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{schema + migrations.BeforeRestore}.Sanitize()
	if !content && marked { // the database was empty before
		return d.exec(ctx, "drop schema "+aside, "drop schema "+name+" cascade", "create schema "+name)
	}
	if full && !marked {
		return fmt.Errorf("restore: a restore that did not end has left schema %s, with what the database held before it, beside schema %s: "+
			"drop the one that is not needed (drop schema %s cascade, or drop schema %s cascade; create schema %s), and restore again",
			aside, name, aside, name, name)
	}
	return d.exec(ctx, putBack(name, aside)...)
}

// exec runs statements as one transaction.
func (d *database) exec(ctx context.Context, statements ...string) error {
	return wrap("prepare the database", pgx.BeginFunc(ctx, d.conn, func(tx pgx.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}))
}

// program finds a client program of PostgreSQL that is not older than the server.
func (d *database) program(name string) (string, error) {
	for _, version := range []string{strconv.Itoa(d.major), "*"} {
		dir, err := privatepg.BinDir(version)
		if err != nil {
			continue
		}
		path := filepath.Join(dir, name)
		if n, err := majorOf(path); err == nil && n >= d.major {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		if n, err := majorOf(path); err == nil && n >= d.major {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s of PostgreSQL %d or later on this machine: install postgresql-client-%d", name, d.major, d.major)
}

var majorForm = regexp.MustCompile(`\) (\d+)`)

// majorOf returns the major version of a program of PostgreSQL.
func majorOf(path string) (int, error) {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := majorForm.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s --version says %q", path, out)
	}
	return strconv.Atoi(string(m[1]))
}

func (d *database) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // a program of PostgreSQL
	var printed bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, &printed, &printed
	if err := childproc.Run(cmd, syscall.SIGKILL); err != nil { // a child alone would leave its work unfinished
		text := strings.Join(strings.Fields(printed.String()), " ")
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, text[:min(len(text), 1000)])
	}
	return nil
}
