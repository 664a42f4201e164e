package lo

import (
	"cmp"
	"context"
	"crypto/tls"
	"path/filepath"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// openIdentity reads who the LO is, where it proves that, and sees to it that it can go on to.
func (p *parts) openIdentity(ctx context.Context) error {
	if len(p.opts.CO.Enrol) == 0 {
		p.opts.Logger.WarnContext(ctx, "development mode: neither this LO nor its nodes prove who they are; set co.enrol in the configuration")
		return nil
	}
	dir := p.dir("identity")
	files, err := store.Open(p.opts.Disk, dir)
	if err != nil {
		return err
	}
	p.holder = identity.NewHolder(files.Clock(p.opts.Now))
	p.keeper = enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfLO(p.opts.Site), Server: identity.OfCO(), Addresses: p.opts.CO.Enrol, Vault: files, Holder: p.holder,
		TokenFile: cmp.Or(p.opts.Identity.TokenFile, filepath.Join(dir, "token")), Dial: p.opts.Dial, Logger: p.opts.Logger,
	})
	p.group.Go("certificate of the lo", p.keeper.Run)
	return nil
}

// upwardTLS is the LO's end of the connection to the CO, or nil where it proves nothing.
func (p *parts) upwardTLS() *tls.Config {
	if p.holder == nil {
		return nil
	}
	return p.holder.ClientTLS(identity.OfCO())
}
