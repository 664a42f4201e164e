package lo

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/machines"
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
	if p.opts.Identity.MQTT == "" {
		p.opts.Logger.WarnContext(ctx, "development mode: no node proves who it is, and whoever reaches the broker and names itself is believed; set identity in the configuration")
		return nil
	}
	p.machines, err = machines.Open(machines.Options{
		Site: p.opts.Site, Dir: dir, Disk: p.opts.Disk, Clock: p.holder.Clock(), Logger: p.opts.Logger, Registerer: p.opts.Registerer,
		Damaged: func(d *statefile.Damage) { p.site.Damaged(ctx, d) },
	})
	return err
}

// machineAccess returns the listeners of the site's broker and who may use them.
func (p *parts) machineAccess() ([]broker.Listener, broker.Access) {
	all := append([]broker.Listener{{Name: mqttListener, Network: broker.TCP, Address: p.opts.MQTT}}, p.opts.Listeners...)
	if p.machines == nil {
		return all, p.access
	}
	all = append(all, broker.Listener{Name: machineListener, Network: broker.TLS, Address: p.opts.Identity.MQTT, TLS: p.holder.ServerTLS()})
	return all, access.Certified{Control: p.access, Listener: machineListener, Tier: identity.EN, Peer: p.holder.Client}
}

// startEnrolment enrols nodes, where they are to prove who they are.
func (p *parts) startEnrolment(ctx context.Context) error {
	if p.machines == nil {
		return nil
	}
	listen := p.opts.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	l, err := listen(ctx, "tcp", p.opts.Identity.Enrol)
	if err != nil {
		return fmt.Errorf("listen for nodes that enrol on %s (key identity.enrol): %w", p.opts.Identity.Enrol, err)
	}
	p.enrolAddr = l.Addr().String()
	server := enrol.Start(l, enrol.ServerOptions{
		Holder: p.holder, Registrar: p.machines, Tier: identity.EN, Authority: p.keeper.Authority, Logger: p.opts.Logger,
	}, p.group.Fail)
	p.group.OnStop("enrolment", server.Stop)
	return nil
}

// tokens returns what takes the join tokens of nodes, or nil where they prove nothing.
func (p *parts) tokens() func([]byte) error {
	if p.machines == nil {
		return nil
	}
	return p.machines.SetTokens
}

// upwardTLS is the LO's end of the connection to the CO, or nil where it proves nothing.
func (p *parts) upwardTLS() *tls.Config {
	if p.holder == nil {
		return nil
	}
	return p.holder.ClientTLS(identity.OfCO())
}
