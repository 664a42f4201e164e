package co

import (
	"context"
	"fmt"
	"maps"

	rolloutsapi "github.com/colonyfleet/colony/co/api/rollouts"
	accessdb "github.com/colonyfleet/colony/co/db/access"
	rolloutdb "github.com/colonyfleet/colony/co/db/fleet/rollouts"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/rollout/driver"
	"github.com/colonyfleet/colony/co/rollout/gates"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// newDriver makes what spreads fleet deployments. It calls changed where the desired states will be others.
func (c *CO) newDriver(s stores, changed func()) (*driver.Driver, error) {
	store := rolloutdb.New(s.db)
	return driver.New(driver.Options{
		Facts: s.fleet.Facts, Limits: proposal.Limits(c.opts.Removals),
		Read: readSnapshot(s.repo), Watch: s.repo.Watch, Store: store, Sites: store.FleetSites, Groups: siteGroups(s), Changed: changed, Logger: c.log, Gates: gates.New(c.opts.Rollouts.Gates),
		App: func(ctx context.Context, id, version string) ([]byte, error) {
			v, err := s.fleet.AppVersion(ctx, id, version)
			return []byte(v.Document), err
		},
	})
}

// siteGroups returns the groups of sites by name.
func siteGroups(s stores) func(context.Context) (map[string]siteset.Set, error) {
	record := accessdb.New(s.db)
	return func(ctx context.Context) (map[string]siteset.Set, error) {
		list, err := record.SiteGroups(ctx)
		if err != nil {
			return nil, err
		}
		out := make(map[string]siteset.Set, len(list))
		for _, g := range list {
			if out[g.Name], err = siteset.Parse(g.Sites); err != nil {
				return nil, fmt.Errorf("group of sites %s: %w", g.Name, err)
			}
		}
		return out, nil
	}
}

// resolve is that of the admission. What a fleet deployment expands to is no file of the repo.
func resolve(s stores, d *driver.Driver) func(context.Context, string, string, *v1rc3.Deployment) (*v1rc3.Deployment, error) {
	return func(ctx context.Context, path, commit string, doc *v1rc3.Deployment) (*v1rc3.Deployment, error) {
		if d.Expanded(path) {
			commit = ""
		}
		return s.admission.Resolve(ctx, path, commit, doc)
	}
}

// usedFiles returns the files of the deployments repo, and for each revision of a fleet deployment that is in use one that
// names its archives.
func usedFiles(s *stores) func(context.Context) (map[string][]byte, error) {
	return func(ctx context.Context) (map[string][]byte, error) {
		snapshot, err := s.repo.Read(ctx)
		if err != nil {
			return nil, err
		}
		sources, err := rolloutdb.New(s.db).Sources(ctx)
		if err != nil || len(sources) == 0 {
			return snapshot.Files, err
		}
		files := maps.Clone(snapshot.Files)
		for name, list := range sources {
			for i, raw := range list {
				if files[fmt.Sprintf("fleet/%s/%d", name, i)], err = driver.Needs(name, raw); err != nil {
					return nil, err
				}
			}
		}
		return files, nil
	}
}

// rolloutActions are what the API has done for fleet deployments.
func rolloutActions(s stores, sites *sites) rolloutsapi.Options {
	return rolloutsapi.Options{
		Store: rolloutdb.New(s.db), Plan: sites.driver.Plan, Staged: s.fleet.Staged, Changed: sites.loop.Notify, Sync: s.repo.Sync, Groups: siteGroups(s), Sites: s.fleet,
		Read: func(ctx context.Context) (rolloutsapi.Head, error) {
			snapshot, err := s.repo.Read(ctx)
			return rolloutsapi.Head{Commit: snapshot.Commit, Files: snapshot.Files, Commits: snapshot.Commits}, err
		},
		Commit: func(ctx context.Context, files map[string][]byte, expect map[string]string, message string) error {
			_, err := s.repo.Commit(ctx, git.Change{Message: message, Files: files, Expect: expect})
			return err
		},
	}
}
