package desireddb

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Running returns what the nodes of a site ran when it reported last, by node.
func (s *Desired) Running(ctx context.Context, site protocol.SiteID) ([]protocol.NodeRunning, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (n protocol.NodeRunning, err error) {
		err = row.Scan(&n.Node, &n.Deployments)
		return n, err
	}, `select node, array_agg(deployment order by deployment) from deployment_nodes where site = $1 and state <> 'DELETED' group by node order by node`, site)
	return list, pgdb.Classify("read what site "+string(site)+" runs", err)
}

// NodeUse returns what a node runs, and what is placed on it by its name.
func (s *Desired) NodeUse(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.NodeUse, error) {
	var use fleet.NodeUse
	running, err := s.Running(ctx, site)
	if err != nil {
		return use, err
	}
	for _, n := range running {
		if n.Node == node {
			use.Runs = n.Deployments
		}
	}
	desired, err := s.desired(ctx, site)
	for _, d := range desired {
		if d.Entry.Placement.Node == node {
			use.Named = append(use.Named, d.Name)
		}
	}
	return use, err
}

// SiteUse returns the deployments that a site is to run, or runs, by name.
func (s *Desired) SiteUse(ctx context.Context, site protocol.SiteID) ([]protocol.DeploymentName, error) {
	list, err := s.desired(ctx, site)
	if err != nil {
		return nil, err
	}
	names := map[protocol.DeploymentName]bool{}
	for _, d := range list {
		names[d.Name] = true
	}
	running, err := s.Running(ctx, site)
	for _, n := range running {
		for _, name := range n.Deployments {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), err
}
