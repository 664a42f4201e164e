package desireddb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// SaveSpec stores an encoded DeploymentSpec and returns its digest.
func (s *Desired) SaveSpec(ctx context.Context, spec []byte) (protocol.Digest, error) {
	digest := protocol.DigestOf(spec)
	_, err := s.db.Exec(ctx, saveSpec, digest, spec)
	return digest, pgdb.Classify("save spec", err)
}

// Spec returns what has a digest: an encoded DeploymentSpec, or the encoded
// SiteDesired that SaveBodies stored last for a site, or before that.
func (s *Desired) Spec(ctx context.Context, digest protocol.Digest) ([]byte, error) {
	found, err := pgdb.Rows(ctx, s.db, pgx.RowTo[[]byte], `select spec from specs where digest = $1
		union all (select body from desired_bodies where digest = $1 limit 1)
		union all (select body from former_bodies where digest = $1 limit 1) limit 1`, digest)
	return pgdb.One("spec "+string(digest), found, err)
}

// SpecsWith returns the specifications that hold a text and that a deployment is to run, or a
// node has, in the order of the deployments.
func (s *Desired) SpecsWith(ctx context.Context, text string) ([]fleet.SpecUse, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (u fleet.SpecUse, err error) {
		err = row.Scan(&u.Site, &u.Deployment, &u.Desired, &u.Nodes, &u.Spec)
		return u, err
	}, `with found as (select digest, spec from specs where position($1::bytea in spec) > 0),
		has as (select d.site, d.name, d.digest, null as node from deployments d join found f on f.digest = d.digest where d.desired and d.archived_at is null
			union all select n.site, n.deployment, f.digest, n.node from deployment_nodes n join found f on f.digest in (n.digest, n.running) where n.state <> 'DELETED')
		select h.site, h.name, bool_or(h.node is null), coalesce(array_agg(h.node order by h.node) filter (where h.node is not null), '{}'), f.spec
		from has h join found f using (digest) group by h.site, h.name, h.digest, f.spec order by h.site, h.name, h.digest`, []byte(text))
	return list, pgdb.Classify("find specifications", err)
}

// SaveBodies makes each an encoded SiteDesired what its site finds under its digest, in place
// of the previous one. That is found as well until the next one: the site holds it, and fetches the difference.
func (s *Desired) SaveBodies(ctx context.Context, list []fleet.SiteBody) error {
	var text [2][]string // site, digest
	bodies := make([][]byte, len(list))
	for i, v := range list {
		text[0], text[1], bodies[i] = append(text[0], string(v.Site)), append(text[1], string(v.Digest)), v.Body
	}
	_, err := s.db.Exec(ctx, `with news as (select * from unnest($1::text[], $2::text[], $3::bytea[]) as u (site, digest, body)),
		former as (insert into former_bodies as f (site, digest, body)
			select b.site, b.digest, b.body from desired_bodies b join news n on n.site = b.site and n.digest <> b.digest order by b.site
			on conflict (site) do update set digest = excluded.digest, body = excluded.body)
		insert into desired_bodies as b (site, digest, body)
		select n.site, n.digest, n.body from news n order by n.site
		on conflict (site) do update set digest = excluded.digest, body = excluded.body where b.digest <> excluded.digest`, text[0], text[1], bodies)
	return pgdb.Classify("save desired states of sites", err)
}

// saveSpec saves a specification, and keeps one that is there from being collected.
const saveSpec = `insert into specs as s (digest, spec) values ($1, $2)
	on conflict (digest) do update set created_at = now() where s.created_at < now() - interval '1 day'`
