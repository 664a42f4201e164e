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
// SiteDesired that SaveBodies stored last for a site.
func (s *Desired) Spec(ctx context.Context, digest protocol.Digest) ([]byte, error) {
	found, err := pgdb.Rows(ctx, s.db, pgx.RowTo[[]byte], `select spec from specs where digest = $1
		union all (select body from desired_bodies where digest = $1 limit 1)`, digest)
	return pgdb.One("spec "+string(digest), found, err)
}

// SaveBodies makes each an encoded SiteDesired what its site finds under its digest, in place
// of the previous one.
func (s *Desired) SaveBodies(ctx context.Context, list []fleet.SiteBody) error {
	var text [2][]string // site, digest
	bodies := make([][]byte, len(list))
	for i, v := range list {
		text[0], text[1], bodies[i] = append(text[0], string(v.Site)), append(text[1], string(v.Digest)), v.Body
	}
	_, err := s.db.Exec(ctx, `insert into desired_bodies as b (site, digest, body)
		select u.site, u.digest, u.body from unnest($1::text[], $2::text[], $3::bytea[]) as u (site, digest, body) order by u.site
		on conflict (site) do update set digest = excluded.digest, body = excluded.body where b.digest <> excluded.digest`, text[0], text[1], bodies)
	return pgdb.Classify("save desired states of sites", err)
}

// saveSpec saves a specification, and keeps one that is there from being collected.
const saveSpec = `insert into specs as s (digest, spec) values ($1, $2)
	on conflict (digest) do update set created_at = now() where s.created_at < now() - interval '1 day'`
