// Package proposaldb is the record of proposals in PostgreSQL: which part of a change is held, and
// which person confirmed it. The desired state opens and closes proposals in the transaction that
// holds their effects.
package proposaldb

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the record of proposals. Its methods may be called concurrently. Errors are of
// the protocol's kinds.
type Store struct {
	db *db.DB
}

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{db: pool} }

// view shows proposals with the totals of their effects.
const view = `select p.id, p.kind, p.commit, p.state, e.held, e.sites, e.deployments, e.nodes, p.opened_at, p.closed_at, p.closed_by, p.number
	from proposals p, lateral (select count(*) filter (where state = 'open') as held, count(distinct site) as sites, count(*) as deployments,
		coalesce(sum(node_count), 0) as nodes from proposal_effects where proposal = p.id) e`

type row struct {
	proposal.Proposal
	number int64
}

func scan(r pgx.CollectableRow) (v row, err error) {
	err = r.Scan(&v.ID, &v.Kind, &v.Commit, &v.State, &v.Held, &v.Sites, &v.Deployments, &v.Nodes, &v.OpenedAt, &v.ClosedAt, &v.ClosedBy, &v.number)
	return v, err
}

// Proposals lists proposals without their effects, the newest first. An empty state lists
// those of every state.
func (s *Store) Proposals(ctx context.Context, state proposal.State, p fleet.Page) (list []proposal.Proposal, next string, err error) {
	before := int64(1<<63 - 1)
	if p.Cursor != "" {
		if before, err = strconv.ParseInt(p.Cursor, 10, 64); err != nil {
			return nil, "", protocol.Errorf(protocol.Invalid, "%q is no cursor of this list", p.Cursor)
		}
	}
	size := fleet.Size(p.Limit)
	rows, err := pgdb.Rows(ctx, s.db, scan, view+` where p.number < $1 and ($2 = '' or p.state = $2) order by p.number desc limit $3`,
		before, string(state), size+1)
	if err != nil {
		return nil, "", pgdb.Classify("list proposals", err)
	}
	rows, next = fleet.Cut(rows, size, func(last row) string { return strconv.FormatInt(last.number, 10) })
	list = make([]proposal.Proposal, len(rows))
	for i := range rows {
		list[i] = rows[i].Proposal
	}
	return list, next, nil
}

// Proposal returns one proposal with its effects.
func (s *Store) Proposal(ctx context.Context, id string) (proposal.Proposal, error) {
	return read(ctx, s.db, id)
}

func read(ctx context.Context, q pgdb.Querier, id string) (proposal.Proposal, error) {
	found, err := pgdb.Rows(ctx, q, scan, view+` where p.id = $1`, id)
	v, err := pgdb.One("proposal "+strconv.Quote(id), found, err)
	if err != nil {
		return v.Proposal, err
	}
	v.Effects, err = pgdb.Rows(ctx, q, func(r pgx.CollectableRow) (e proposal.Effect, err error) {
		err = r.Scan(&e.Site, &e.Deployment, &e.App, &e.AppVersion, &e.Cause, &e.State, &e.Nodes, &e.NodeCount)
		return e, err
	}, `select site, deployment, app, app_version, cause, state, nodes, node_count from proposal_effects where proposal = $1
		order by site, deployment limit $2`, id, proposal.MaxEffects)
	return v.Proposal, pgdb.Classify("read effects of proposal "+id, err)
}

// HeldRemovals counts the open proposals, and the removals that they hold.
func (s *Store) HeldRemovals(ctx context.Context) (proposals, removals int, err error) {
	err = s.db.QueryRow(ctx, `select count(distinct p.id), count(*) from proposals p join proposal_effects e on e.proposal = p.id
		where p.state = 'open' and e.state = 'open'`).Scan(&proposals, &removals)
	return proposals, removals, pgdb.Classify("count proposals", err)
}

// Confirm confirms an open proposal; the desired state follows. by is the person that confirms. A
// proposal that is confirmed already stays so. One that was closed otherwise is a Conflict.
func (s *Store) Confirm(ctx context.Context, id, by string) (proposal.Proposal, error) {
	return s.decide(ctx, id, by, proposal.Confirmed)
}

// Withdraw refuses what an open proposal holds: what runs stays as it is, until the files are
// back or each deployment is deleted by name. One that is withdrawn already stays so. One
// that is closed otherwise is a Conflict.
func (s *Store) Withdraw(ctx context.Context, id, by string) (proposal.Proposal, error) {
	return s.decide(ctx, id, by, proposal.Withdrawn)
}

func (s *Store) decide(ctx context.Context, id, by string, to proposal.State) (out proposal.Proposal, err error) {
	err = s.db.Tx(ctx, "decide on proposal "+id, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select from proposals where id = $1 for update`, id); err != nil {
			return err
		}
		if out, err = read(ctx, tx, id); err != nil || out.State == to {
			return err
		}
		if out.State != proposal.Open {
			return protocol.Errorf(protocol.Conflict, "proposal %s was %s already", id, out.State)
		}
		b := &pgx.Batch{}
		b.Queue(`update proposal_effects set state = $2 where proposal = $1 and state = 'open'`, id, to)
		b.Queue(`update proposals set state = $2, closed_at = now(), closed_by = $3 where id = $1`, id, to, pgdb.Storable(by))
		db.QueueEvents(b, []fleet.Event{{Kind: kinds[to], Message: sentence(out, to, by)}})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		out, err = read(ctx, tx, id)
		return err
	})
	return out, err
}

var kinds = map[proposal.State]string{
	proposal.Open: fleet.ProposalOpened, proposal.Confirmed: fleet.ProposalConfirmed,
	proposal.Superseded: fleet.ProposalSuperseded, proposal.Withdrawn: fleet.ProposalWithdrawn,
}

func sentence(p proposal.Proposal, to proposal.State, by string) string {
	text := fmt.Sprintf("proposal %s to remove %d deployments at %d sites (commit %.12s) was %s", p.ID, p.Deployments, p.Sites, p.Commit, to)
	if by != "" {
		text += " by " + by
	}
	return text
}

// ConfirmRemoval agrees to remove one deployment whose removal is held, or was withdrawn. It
// is NotFound where nothing is held of it.
func (s *Store) ConfirmRemoval(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, by string) error {
	return s.db.Tx(ctx, "confirm removal", func(tx pgx.Tx) error {
		found, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select p.id from proposal_effects e join proposals p on p.id = e.proposal
			where e.site = $1 and e.deployment = $2 and e.active and e.cause <> $3 order by p.id for update of p`, site, name, string(proposal.NoNode))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return protocol.Errorf(protocol.NotFound, "no removal of deployment %s/%s is held", site, name)
		}
		if _, err := tx.Exec(ctx, `update proposal_effects set state = 'confirmed' where proposal = $1 and site = $2 and deployment = $3 and active`,
			found[0], site, name); err != nil {
			return err
		}
		return closeDone(ctx, tx, found, by)
	})
}

// Standing returns all effects that are not done and not void.
func (s *Store) Standing(ctx context.Context) ([]fleet.Standing, error) {
	list, err := pgdb.Rows(ctx, s.db, func(r pgx.CollectableRow) (v fleet.Standing, err error) {
		err = r.Scan(&v.Site, &v.Deployment, &v.Proposal, &v.Commit, &v.Cause, &v.Confirmed, &v.Open)
		return v, err
	}, `select e.site, e.deployment, p.id, p.commit, e.cause, e.state = 'confirmed', p.state = 'open' from proposal_effects e join proposals p on p.id = e.proposal
		where e.active order by e.site, e.deployment`)
	return list, pgdb.Classify("read what proposals hold", err)
}

// NextID returns the id of a new proposal of a commit.
func (s *Store) NextID(ctx context.Context, kind proposal.Kind, commit string) (string, error) {
	list, err := pgdb.Rows(ctx, s.db, pgx.RowTo[string], `select id from proposals where kind = $1 and commit = $2`, kind, commit)
	if err != nil {
		return "", pgdb.Classify("read proposals of commit "+commit, err)
	}
	return proposal.ID(kind, commit, len(list)), nil
}
