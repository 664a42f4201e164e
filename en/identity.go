package en

import (
	"cmp"
	"context"
	"crypto/tls"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// openIdentity reads who the node is, where it proves that, and sees to it that it can go on
// to. It returns the node's end of the connection to the LO, nil where it proves nothing.
func (e *EN) openIdentity(ctx context.Context) (*tls.Config, error) {
	if len(e.opts.LO.Enrol) == 0 {
		e.log.WarnContext(ctx, "development mode: this node does not prove who it is; set lo.enrol in the configuration")
		return nil, nil
	}
	dir := filepath.Join(e.opts.StateDir, "identity")
	files, err := store.Open(e.disk, dir)
	if err != nil {
		return nil, err
	}
	now := e.opts.Now
	if now == nil {
		now = time.Now
	}
	h, lo := identity.NewHolder(files.Clock(now)), identity.OfLO(e.opts.Site)
	keeper := enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfNode(e.opts.Site, e.opts.Node), Server: lo, Addresses: e.opts.LO.Enrol, Vault: files, Holder: h,
		TokenFile: cmp.Or(e.opts.Identity.TokenFile, filepath.Join(dir, "token")), Dial: e.opts.Dial, Logger: e.log,
	})
	e.parts.Go("certificate of the node", keeper.Run)
	return h.ClientTLS(lo), nil
}
