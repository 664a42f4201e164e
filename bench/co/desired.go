package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/db/dbtest"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A desiredWorld is a deployments repo with a fleet in it, and what follows it.
type desiredWorld struct {
	fleet  dbtest.Size
	repo   *git.Repo
	db     *db.DB
	server *server
	out    io.Writer

	mu        sync.Mutex // protects what follows
	published int
	last      time.Time
}

// measureDesired measures how long it takes until the last site has its desired state: of a
// whole fleet, after a start, and after commits that change some sites.
func measureDesired(ctx context.Context, s *server, l load, dir string, out io.Writer) error {
	pool, err := db.Open(ctx, s.url(), db.Options{})
	if err != nil {
		return err
	}
	defer pool.Close()
	remote := filepath.Join(dir, "deployments.git")
	if err := git.InitBare(ctx, remote, "main"); err != nil {
		return err
	}
	w := &desiredWorld{fleet: l.fleet, db: pool, server: s, out: out}
	if w.repo, err = git.Open(ctx, git.Options{Dir: filepath.Join(dir, "cache"), Remote: remote}); err != nil {
		return err
	}
	defer w.repo.Close() //nolint:errcheck // the directory is temporary
	fmt.Fprintf(out, "\n### Desired state\n\n%d sites with %d deployments each, compiled without a registry.\n\n| what | sites | s to the last one | s of CO | s of PostgreSQL |\n|---|---|---|---|---|\n",
		l.fleet.Sites, l.fleet.Deployments)
	if err := w.push(ctx, l.fleet.Sites, l.fleet.Deployments, 1); err != nil {
		return err
	}
	if err := w.session(ctx, func(*desired.Loop) error {
		return w.line(ctx, "the first start", l.fleet.Sites, nil)
	}); err != nil {
		return err
	}
	return w.session(ctx, func(loop *desired.Loop) error {
		if err := w.line(ctx, "a start", l.fleet.Sites, nil); err != nil {
			return err
		}
		for i, sites := range []int{1, max(1, l.fleet.Sites/10), l.fleet.Sites} {
			if err := w.push(ctx, sites, 1, 2+i); err != nil {
				return err
			}
			if err := w.line(ctx, "a commit", sites, loop.Notify); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// session runs a Loop for as long as do lasts.
func (w *desiredWorld) session(ctx context.Context, do func(*desired.Loop) error) error {
	store := fleetdb.New(w.db)
	w.set(func() { w.published, w.last = 0, time.Now() })
	loop, err := desired.New(desired.Options{
		Store: store, Positions: store, Nodes: store.PlacementNodes, Proposals: proposaldb.New(w.db), History: benchHistory{},
		Read: func(ctx context.Context) (desired.Snapshot, error) {
			s, err := w.repo.Read(ctx)
			return desired.Snapshot{Commit: s.Commit, Files: s.Files, Blobs: s.Blobs, Commits: s.Commits, Skipped: s.Skipped}, err
		},
		Watch:     func(ctx context.Context, _ time.Duration, _ func(string)) error { <-ctx.Done(); return nil },
		Judgement: desired.Judgement{Compile: compileNothing},
		Outcomes: desired.Outcomes{Publish: func(context.Context, protocol.SiteID, []byte) error {
			w.set(func() { w.published, w.last = w.published+1, time.Now() })
			return nil
		}},
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- loop.Run(running) }()
	err = do(loop)
	stop()
	return errors.Join(err, <-done)
}

func (w *desiredWorld) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// line waits until as many sites have been published as are to be, since the session began or
// since start was called, and writes a line.
func (w *desiredWorld) line(ctx context.Context, what string, sites int, start func()) error {
	began, own, postgres := time.Now(), ownCPU(), w.server.cpu()
	if start != nil {
		start()
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < sites; w.set(func() { n = w.published }) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	own, postgres = ownCPU()-own, w.server.cpu()-postgres
	var took time.Duration
	w.set(func() { took = w.last.Sub(began); w.published = 0 })
	fmt.Fprintf(w.out, "| %s | %d | %.2f | %.2f | %.2f |\n", what, sites, took.Seconds(), own.Seconds(), postgres.Seconds())
	fmt.Fprintf(os.Stderr, "%s of %d sites: %.2f s\n", what, sites, took.Seconds())
	return nil
}

// push commits deployments of the first sites, at a revision.
func (w *desiredWorld) push(ctx context.Context, sites, deployments, revision int) error {
	files := map[string][]byte{}
	for site := range sites {
		for d := range deployments {
			files[fmt.Sprintf("deployments/%s/%s/deployment.yaml", dbtest.Site(site), dbtest.Deployment(d))] = deploymentFile(site, d, revision)
		}
	}
	_, err := w.repo.Commit(ctx, git.Change{Message: fmt.Sprint("revision ", revision), Files: files})
	return err
}

func deploymentFile(site, deployment, revision int) []byte {
	return fmt.Appendf(nil, `id: 00000000-0000-4000-8000-%06d%06d
metadata:
  name: %s
  namespace: colony
  deviceId: %s/*
spec:
  applicationId: %s
  deploymentProfile:
    type: compose
    components:
      - name: app
        properties:
          repository: oci://registry.colony/app
          revision: 1.0.%d
  x-colony-extensions:
    applicationVersion: 1.0.%d
    profile: app-compose
`, site, deployment, dbtest.Deployment(deployment), dbtest.Site(site), dbtest.Deployment(deployment), revision, revision)
}

// compileNothing makes a specification of the usual size.
func compileNothing(_ context.Context, _, _ string, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
	spec := &protocol.DeploymentSpec{
		App: d.Spec.ApplicationID, AppVersion: d.Spec.Colony.ApplicationVersion, Profile: d.Spec.Colony.Profile,
		Components: []protocol.Component{{Name: "app", Containers: []protocol.Container{{
			Name: "app", Image: "registry.colony/app@" + string(protocol.DigestOf([]byte(d.ID))), Env: []string{"SETTINGS=" + strings.Repeat("x", 1000)},
		}}}},
	}
	raw := protocol.Marshal(spec)
	return protocol.SiteEntry{Deployment: protocol.DeploymentName(d.Metadata.Name), Digest: protocol.DigestOf(raw), Spec: raw}, spec, nil
}

// benchHistory holds nothing: no file is removed.
type benchHistory struct{}

func (benchHistory) Removals(context.Context, string) (map[string]desired.Removal, error) {
	return nil, errors.New("nothing is to be removed")
}

// Ancestors is not asked either.
func (benchHistory) Ancestors(context.Context, string) ([]string, error) { return nil, nil }

// Line is not asked: no file is removed.
func (benchHistory) Line(context.Context) ([]string, error) { return nil, nil }

func (benchHistory) Confirmations(context.Context) ([]desired.Confirmation, error) { return nil, nil }
