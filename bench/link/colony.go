package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/bench/link/wire"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// poll is how often the database is asked how far it is.
const poll = 20 * time.Millisecond

// newColony makes a CO and an LO of the built program, on the bench's PostgreSQL,
// for what nodes report.
func newColony(_ context.Context, b *bench, dir, nearDir string, number int) (*link, error) {
	l, _, err := b.colony(dir, nearDir, number)
	return l, err
}

// rule is the data rule of the bench.
const rule = "press"

const siteFile = `apiVersion: colony/v1
kind: Site
metadata: {id: %s}
spec:
  data:
    rules:
      - name: ` + rule + `
        direction: up
        topics: ["` + rule + `/#"]
        store: {}
`

// newColonyData makes the same for machine data, with a rule that brings it to
// PostgreSQL.
func newColonyData(_ context.Context, b *bench, dir, nearDir string, number int) (*link, error) {
	l, loHTTP, err := b.colony(dir, nearDir, number)
	if err != nil {
		return nil, err
	}
	if err := commitSiteFile(dir, siteOf(number)); err != nil {
		return nil, errors.Join(err, l.wan.Close())
	}
	l.consumer.(*tables).data = true
	l.topic = func(n int) string { return topic.ForTail(topic.Data, siteOf(number), rule+"/"+string(node(n))) }
	local := l.near[0]
	local.Ready = func(ctx context.Context) error {
		text, err := fetch(ctx, loHTTP, "/status")
		if err == nil && !strings.Contains(text, `"`+rule+`"`) {
			err = errors.New("the data rule is not in force yet")
		}
		return err
	}
	return l, nil
}

// commitSiteFile puts the site's file into the deployments repo.
func commitSiteFile(dir string, site protocol.SiteID) error {
	work := filepath.Join(dir, "work")
	path := filepath.Join(work, filepath.FromSlash(sitefile.Path(site)))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write site file: %w", err)
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, siteFile, site), 0o644); err != nil {
		return fmt.Errorf("write site file: %w", err)
	}
	for _, args := range [][]string{
		{"init", "--quiet", "-b", "main"},
		{"add", "."},
		{"-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "--quiet", "-m", "A rule for machine data"},
		{"push", "--quiet", filepath.Join(dir, reposName), "main"},
	} {
		if out, err := exec.Command("git", append([]string{"-C", work}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("commit site file: git %s: %w: %s", args[0], err, out)
		}
	}
	return nil
}

const reposName = "deployments.git"

// colony makes both roles.
func (b *bench) colony(dir, nearDir string, number int) (made *link, loHTTP string, err error) {
	url, err := b.newDatabase(number)
	if err != nil {
		return nil, "", err
	}
	site := siteOf(number)
	addrs := make([]string, 4)
	for i := range addrs {
		if addrs[i], err = freeport.Loopback(); err != nil {
			return nil, "", err
		}
	}
	coMQTT, coHTTP, loMQTT := addrs[0], addrs[1], addrs[2]
	loHTTP = addrs[3]
	wan, err := impair.Listen(coMQTT, impair.Profile{}, 1)
	if err != nil {
		return nil, "", err
	}
	repo := filepath.Join(dir, reposName)
	if out, err := exec.Command("git", "init", "--quiet", "--bare", "-b", "main", repo).CombinedOutput(); err != nil {
		return nil, "", errors.Join(fmt.Errorf("make deployments repo: %w: %s", err, out), wan.Close())
	}
	c := co.DefaultOptions()
	c.StateDir, c.DatabaseURL, c.HTTP, c.MQTT, c.Git.Remote = filepath.Join(dir, "co"), url, coHTTP, coMQTT, repo
	l := lo.DefaultOptions()
	l.Site, l.StateDir, l.MQTT, l.HTTP = site, filepath.Join(nearDir, "lo"), loMQTT, loHTTP
	l.CO.MQTT, l.CO.KeepAlive = []string{"tcp://" + wan.Addr()}, wire.KeepAlive*time.Second
	coBroker, err := b.role(dir, "co", c, coHTTP)
	if err != nil {
		return nil, "", errors.Join(err, wan.Close())
	}
	local, err := b.role(dir, "lo", l, loHTTP)
	if err != nil {
		return nil, "", errors.Join(err, wan.Close())
	}
	return &link{
		publish: loMQTT, near: []*process.Process{local}, far: []*process.Process{coBroker}, wan: wan, nearDir: nearDir,
		consumer: &tables{url: url, site: site}, farCPU: func() time.Duration { return process.ServerCPU(b.postgres.PID()) },
		patience: b.slowPatience, topic: func(n int) string { return topic.ForStatus(site, node(n), deployment) },
	}, loHTTP, nil
}

// newDatabase makes a database for a trial: one belongs to one deployments repo.
func (b *bench) newDatabase(number int) (url string, err error) {
	name := fmt.Sprintf("trial_%d", number)
	out, err := exec.Command("psql", "--no-psqlrc", "--quiet", "-c", "create database "+name, b.postgres.URL("postgres")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make database: %w: %s", err, out)
	}
	return b.postgres.URL(name), nil
}

// siteOf is the site of the n-th trial.
func siteOf(n int) protocol.SiteID { return protocol.SiteID(fmt.Sprintf("bench-%d", n)) }

// role makes a process of the built program.
func (b *bench) role(dir, name string, options any, httpAddr string) (*process.Process, error) {
	text, err := configfile.Marshal(options)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return &process.Process{
		Name: "colony " + name, Args: []string{b.program, name, "--config", path, "--log-level", "warn"}, Log: filepath.Join(dir, name+".log"),
		Ready: func(ctx context.Context) error {
			_, err := fetch(ctx, httpAddr, "/healthz")
			return err
		},
	}, nil
}

// fetch asks a role over HTTP.
func fetch(ctx context.Context, addr, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s%s: %s", addr, path, resp.Status)
	}
	return string(text), nil
}

// tables is the consumer that counts for Colony: the table of events, or that of
// machine data. While messages come it asks only how far the site's journal or
// queue is committed, so that it does not slow down what it measures.
type tables struct {
	url  string
	site protocol.SiteID
	data bool

	db     *db.DB
	store  *fleetdb.Store
	stored *datadb.Store
	ledger *ledger.Ledger
	cancel context.CancelFunc
	done   sync.WaitGroup

	after     int64           // the last event read
	positions fleet.Positions // the last messages read
	rows      uint64          // that came from the journal or queue
	reports   uint64          // of them, those of the bench
}

func (d *tables) start(ctx context.Context, l *ledger.Ledger) error {
	var err error
	if d.db, err = db.Open(ctx, d.url, db.Options{MaxConns: 2}); err != nil {
		return err
	}
	d.store, d.stored = fleetdb.New(d.db), datadb.New(d.db)
	d.ledger = l
	ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.done.Go(func() { d.watch(ctx) })
	return nil
}

// watch notes when the position moves.
func (d *tables) watch(ctx context.Context) {
	last := uint64(0)
	for retry.Sleep(ctx, poll) == nil {
		at, err := d.position(ctx)
		if err != nil || at == last {
			continue // not there yet, or nothing new
		}
		d.ledger.Reached(at)
		last = at
	}
}

// position is the last sequence that is committed.
func (d *tables) position(ctx context.Context) (uint64, error) {
	streams, err := d.stored.Streams(ctx, d.site)
	name := ""
	if d.data {
		name = protocol.DataStream(rule)
	}
	for _, l := range streams {
		if l.Name == name {
			return l.Committed, nil
		}
	}
	return 0, err
}

// settle reads what was not read yet.
func (d *tables) settle(ctx context.Context) (superseded int, err error) {
	// First, so that whatever it counts can be read after it.
	at, err := d.position(ctx)
	if err != nil {
		return 0, fmt.Errorf("read position of the site: %w", err)
	}
	read := d.readEvents
	if d.data {
		read = d.readMessages
	}
	for more := true; more; {
		if more, err = read(ctx); err != nil {
			return 0, err
		}
	}
	return max(0, int(at)-int(d.rows)), nil
}

func (d *tables) readEvents(ctx context.Context) (more bool, err error) {
	events, err := d.store.Events(ctx, fleet.EventFilter{After: d.after, Site: d.site, Limit: fleet.MaxLimit})
	if err != nil {
		return false, fmt.Errorf("read events: %w", err)
	}
	for i := range events {
		if err := d.read(&events[i]); err != nil {
			return false, err
		}
	}
	return len(events) == fleet.MaxLimit, nil
}

func (d *tables) readMessages(ctx context.Context) (more bool, err error) {
	page, err := d.stored.Messages(ctx, fleet.MessageFilter{Site: d.site, Rule: rule, After: d.positions, Limit: fleet.MaxLimit})
	if err != nil {
		return false, fmt.Errorf("read messages: %w", err)
	}
	d.positions = page.Read
	for i := range page.Messages {
		n, seq, err := parseReport(page.Messages[i].Message.Payload)
		if err != nil {
			return false, err
		}
		d.rows++
		d.reports++
		d.ledger.Deliver(n, seq)
	}
	return page.More, nil
}

func (d *tables) read(e *fleet.Event) error {
	d.after = e.ID
	switch e.Kind {
	case fleet.SiteAdded, fleet.SiteOnline, fleet.SiteOffline, fleet.SiteProblem, fleet.JournalGap:
		return nil // of the CO itself
	}
	d.rows++
	if e.Kind != string(protocol.StatusEvent) || e.Pulled == 0 {
		return nil // of the LO itself
	}
	n, err := number(e.Node)
	if err != nil {
		return err
	}
	d.reports++
	d.ledger.Deliver(n, uint32(e.Pulled))
	return nil
}

// perMessage counts the transitions that the LO puts before a report too.
func (d *tables) perMessage() float64 { return float64(d.rows) / float64(max(d.reports, 1)) }

func (d *tables) stop() {
	if d.db == nil {
		return
	}
	d.cancel()
	d.done.Wait()
	d.db.Close()
}
