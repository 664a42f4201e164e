package db

import (
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/protocol"
)

// Deployments are the keys of deployments, as arguments of a query. The zero value has none.
type Deployments struct{ Sites, Names []string }

// Add adds one deployment.
func (n *Deployments) Add(site protocol.SiteID, name protocol.DeploymentName) {
	n.Sites, n.Names = append(n.Sites, string(site)), append(n.Names, string(name))
}

// QueueCount counts the nodes of deployments anew. Their states are to be derived then.
func QueueCount(b *pgx.Batch, of Deployments) {
	if len(of.Names) > 0 {
		b.Queue(`select count_deployments($1, $2)`, of.Sites, of.Names)
	}
}

// QueueDerive derives the states of deployments.
func QueueDerive(b *pgx.Batch, of Deployments) {
	if len(of.Names) > 0 {
		b.Queue(`select derive_deployments($1, $2)`, of.Sites, of.Names)
	}
}

// QueueArchive archives those of the deployments that the repo does not want and
// no node has any more, and revives those that a node reports.
func QueueArchive(b *pgx.Batch, of Deployments) {
	if len(of.Names) > 0 {
		b.Queue(`select archive_deployments($1, $2)`, of.Sites, of.Names)
	}
}

// Replicas is how many nodes should run what is placed so; 0: every node that matches.
func Replicas(p protocol.Placement) int64 {
	if p.Replicas == 0 && p.Node != "" {
		return 1
	}
	return int64(min(p.Replicas, math.MaxInt32))
}
