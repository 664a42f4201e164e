package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// leaseTime is how long a lease lasts that is not renewed, by the clock of the database.
	leaseTime = 10 * time.Second
	// leaseRenewal is how often its holder renews it, and leasePoll how often others ask for it.
	leaseRenewal = leaseTime / 4
	leasePoll    = time.Second
	// leaseMargin is how much earlier its holder believes it to end.
	leaseMargin = time.Second
)

// RegistryLocks returns the locks of replicas that keep the registry in object storage: of its content, which is
// held for moments, and of the collection of garbage.
func (d *DB) RegistryLocks() (content, cleaning *pgdb.Lock) {
	return d.Lock("colony registry", time.Minute), d.Lock("colony registry cleaning", time.Hour)
}

// A lease is what a context of its holder carries.
type lease struct {
	name  string
	token int64
}

type leaseKey struct{}

// Lease waits until no other program on this database holds the lease of that name. The context
// that it returns ends when the lease is lost, or with ctx; release gives the lease back and must
// be called. A holder that is stopped, or does not reach the database, has lost the lease after
// leaseTime: its writes must be within a transaction that calls Fence. Lease fails where the
// database is not reachable, or ctx ends.
func (d *DB) Lease(ctx context.Context, name string) (held context.Context, release func(), err error) {
	for {
		asked := time.Now()
		token, err := d.acquire(ctx, name)
		if err == nil {
			held, release = d.holdLease(ctx, lease{name, token}, asked)
			return held, release, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, nil, pgdb.Classify("acquire lease "+name, err)
		}
		if err := retry.Sleep(ctx, leasePoll); err != nil {
			return nil, nil, err
		}
	}
}

// acquire returns the token of a lease, or pgx.ErrNoRows where another one has it.
func (d *DB) acquire(ctx context.Context, name string) (token int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime/2)
	defer cancel()
	err = d.Feed.QueryRow(ctx, `insert into leases as l (name, token, expires_at) values ($1, 1, clock_timestamp() + $2 * interval '1 ms')
		on conflict (name) do update set token = l.token + 1, expires_at = excluded.expires_at where l.expires_at < clock_timestamp()
		returning token`, name, leaseTime.Milliseconds()).Scan(&token)
	return token, err
}

// holdLease renews a lease that was asked for at a time, until it is lost or released.
func (d *DB) holdLease(ctx context.Context, l lease, asked time.Time) (held context.Context, release func()) {
	held, lose := context.WithCancel(context.WithValue(ctx, leaseKey{}, l))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer lose()
		if err := d.renewUntilLost(held, l, asked); err != nil {
			d.Log.WarnContext(ctx, "lease lost", "lease", l.name, "err", err)
		}
	}()
	return held, func() {
		lose()
		<-done
		// Given back, so that the next holder does not wait for its end.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), leasePoll)
		defer cancel()
		_, _ = d.Feed.Exec(end, `update leases set expires_at = '-infinity' where name = $1 and token = $2`, l.name, l.token)
	}
}

// renewUntilLost returns nil where ctx ended first.
func (d *DB) renewUntilLost(ctx context.Context, l lease, renewed time.Time) error {
	ticker := time.NewTicker(leaseRenewal)
	defer ticker.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for asked := time.Now(); ; asked = time.Now() {
			try, cancel := context.WithDeadline(ctx, renewed.Add(leaseTime-leaseMargin))
			var token int64
			err = d.Feed.QueryRow(try, `update leases set expires_at = clock_timestamp() + $3 * interval '1 ms' where name = $1 and token = $2
				returning token`, l.name, l.token, leaseTime.Milliseconds()).Scan(&token)
			ended := try.Err() != nil
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				renewed = asked
			case ended, errors.Is(err, pgx.ErrNoRows):
				return err
			default:
				if retry.Sleep(ctx, leasePoll/4) != nil {
					return nil
				}
				continue
			}
			break
		}
	}
}

// Fence fails with Unavailable where ctx is of a lease that another program has acquired since. The
// lease cannot change its holder before tx ends; the next holder sees what tx wrote.
func (d *DB) Fence(ctx context.Context, tx pgx.Tx) error {
	l, ok := ctx.Value(leaseKey{}).(lease)
	if !ok {
		return nil
	}
	var token int64
	err := tx.QueryRow(ctx, `select token from leases where name = $1 and token = $2 for share`, l.name, l.token).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return protocol.Errorf(protocol.Unavailable, "the lease %q was given to another replica of the CO, which goes on with this work", l.name)
	}
	return err
}
