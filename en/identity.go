package en

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/en/link"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/statefile"
)

// TokenFile is where the agent looks for its join token.
func (o Options) TokenFile() string {
	return cmp.Or(o.Identity.TokenFile, filepath.Join(store.Dir(o.StateDir), "token"))
}

// openIdentity reads who the node is, where it proves that, and sees to it that it can go on
// to, once it is run.
func (e *EN) openIdentity(ctx context.Context) error {
	if len(e.opts.LO.Enrol) == 0 {
		e.log.WarnContext(ctx, "development mode: this node does not prove who it is; set lo.enrol in the configuration")
		return nil
	}
	files, err := store.Open(e.disk, store.Dir(e.opts.StateDir))
	if err != nil {
		return err
	}
	now := e.opts.Now
	if now == nil {
		now = time.Now
	}
	e.holder = identity.NewHolder(files.Clock(now))
	e.keeper = enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfNode(e.opts.Site, e.opts.Node), Server: identity.OfLO(e.opts.Site), Addresses: e.opts.LO.Enrol, Vault: files, Holder: e.holder,
		TokenFile: e.opts.TokenFile(), Dial: e.opts.Dial, Logger: e.log,
		Changed: func(i enrol.Issued) {
			if !i.First {
				e.link.Reconnect()
			}
		},
	})
	e.revocations, err = revocation.Open(revocation.Options{
		Site: e.opts.Site, Root: e.root, Disk: e.disk, Dir: store.Dir(e.opts.StateDir), Logger: e.log, Changed: e.revoke,
		Damaged: func(d *statefile.Damage) {
			e.log.ErrorContext(ctx, "list of revoked keys is damaged; it comes again with the next connection", "err", d)
		},
	})
	return err
}

// revoke puts it into force that keys were revoked, also on the connection that is open.
func (e *EN) revoke(keys []string) {
	e.holder.SetRevoked(keys)
	if e.link != nil { // else there is no connection yet
		e.link.Recheck()
	}
}

// prove gives the link the node's end of mutual TLS, where it proves who it is.
func (e *EN) prove(o *link.Options) {
	if e.holder == nil {
		return
	}
	o.Dial = e.keeper.WhenEnrolled(e.opts.Dial)
	o.Revocations = func(payload []byte) error {
		_, err := e.revocations.Set(payload)
		return err
	}
	o.TLS, o.Proof = e.holder.ClientTLS(identity.OfLO(e.opts.Site)), client.Proof{Left: e.holder.Left, Standing: e.holder.Standing, Refused: e.keeper.Refused}
}

// followKeys has lists of revoked keys checked with the key set of a desired state.
func (e *EN) followKeys(keySet []byte) {
	if e.revocations != nil {
		e.revocations.Follow(keySet)
	}
}

// trustStore is a store of state that hands on which key set is followed.
type trustStore struct {
	*state.Store
	followed func(keySet []byte)
}

// SaveTrust stores what the node remembers of what the CO signed.
func (s trustStore) SaveTrust(t trust.State) error {
	err := s.Store.SaveTrust(t)
	if err == nil {
		s.followed(t.KeySet)
	}
	return err
}
