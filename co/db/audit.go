package db

import (
	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/audit"
)

// AuditColumns are those of a row of the audit.
const AuditColumns = `id, at, kind, of, principal, role, token, remote, operation, target, status, commits, detail, issuer, subject`

// QueueAudit adds a row to the audit. A second outcome of one intent is left out.
func QueueAudit(b *pgx.Batch, r audit.Row) {
	b.Queue(`insert into audit (`+AuditColumns+`) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, coalesce($12::text[], '{}'), $13, $14, $15)
		on conflict (of, kind) where of <> '' do nothing`,
		r.ID, r.At, r.Kind, r.Of, r.Principal, r.Role, r.Token, r.Remote, r.Operation, r.Target, r.Status, r.Commits, r.Detail, r.Issuer, r.Subject)
}
