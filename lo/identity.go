package lo

import (
	"cmp"
	"context"
	"crypto"
	"fmt"
	"path/filepath"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/https"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/statefile"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/lo/link"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TokenFile is where the LO looks for its join token.
func (o Options) TokenFile() string {
	return cmp.Or(o.Identity.TokenFile, filepath.Join(store.Dir(o.StateDir), "token"))
}

// openIdentity loads the LO's certificate and starts its renewal, if identity is configured.
func (p *parts) openIdentity(ctx context.Context) (err error) {
	if p.holder == nil {
		p.opts.Logger.WarnContext(ctx, "development mode: neither this LO nor its nodes have certificates; set co.enrol in the configuration")
		return nil
	}
	dir := store.Dir(p.opts.StateDir)
	p.keeper = enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfLO(p.opts.Site), Server: identity.OfCO(), Addresses: p.opts.CO.Enrol, Vault: p.vault, Holder: p.holder,
		TokenFile: p.opts.TokenFile(), Dial: p.opts.Dial, Logger: p.opts.Logger,
		Damaged: func(d *statefile.Damage) { p.site.Damaged(ctx, d) },
		Changed: func(i enrol.Issued) {
			p.site.Certified()
			if !i.First {
				p.link.Reconnect()
			}
		},
	})
	if p.opts.Identity.MQTT == "" {
		p.opts.Logger.WarnContext(ctx, "development mode: no node has a certificate, and every name that a client of the broker gives is accepted; set identity in the configuration")
		return p.openRevocations(ctx, dir, p.revoke)
	}
	if p.machines, err = loidentity.Open(loidentity.Options{
		Site: p.opts.Site, Dir: dir, Disk: p.opts.Disk, Clock: p.holder.Clock(), Logger: p.opts.Logger, Registerer: p.opts.Registerer,
		Pending: loidentity.Pending{Most: p.opts.Identity.Pending.Most, Devices: p.opts.Identity.Pending.Serials},
		Damaged: func(d *statefile.Damage) { p.site.Damaged(ctx, d) }, Report: p.site.Enrolment, Changed: p.revoke,
	}); err != nil {
		return err
	}
	p.group.OnStop("record of enrolled nodes", func(context.Context) error { return p.machines.Close() })
	return p.openRevocations(ctx, dir, p.machines.SetListed)
}

// openRevocations reads which keys were revoked, and gives them to listed, now and after each change.
func (p *parts) openRevocations(ctx context.Context, dir string, listed func(keys []string)) (err error) {
	p.revocations, err = revocation.Open(revocation.Options{
		Site: p.opts.Site, Root: p.rootKey, Disk: p.opts.Disk, Dir: dir, Logger: p.opts.Logger, Changed: listed,
		Damaged: func(d *statefile.Damage) { p.site.Damaged(ctx, d) },
		Refused: func(err error) { p.site.Revocations(ctx, p.revocations.Number(), len(p.revocations.Keys()), err) },
	})
	if m, ok := p.desired.Current(); err == nil && ok {
		p.followKeys(m)
	}
	return err
}

// clocks returns what reports whether the clock of the CO can be that of this machine.
func (p *parts) clocks() func() {
	if p.holder == nil {
		return func() {}
	}
	c := loidentity.NewClocks(p.holder.Clock(), p.site.Report, p.opts.Logger)
	return func() { c.Compare(context.Background()) }
}

// followKeys has lists of revoked keys checked with the keys of a desired state.
func (p *parts) followKeys(m protocol.SiteDesired) {
	if p.revocations != nil {
		p.revocations.Follow(m.KeySet)
	}
}

// revoke puts it into force that keys were revoked, also on connections that are open.
func (p *parts) revoke(keys []string) {
	p.holder.SetRevoked(keys)
	if p.broker != nil { // else there are no connections yet
		p.broker.Recheck()
	}
	if p.link != nil {
		p.link.Recheck()
	}
}

// acceptRevocations takes an encoded SiteRevocations of the CO, which is handed on to the nodes.
func (p *parts) acceptRevocations(payload []byte) error {
	changed, err := p.revocations.Set(payload)
	if !changed {
		return err
	}
	p.site.Revocations(context.Background(), p.revocations.Number(), len(p.revocations.Keys()), nil)
	return nil
}

// publishRevocations publishes the list of revoked keys to the nodes.
func (p *parts) publishRevocations(ctx context.Context, payload []byte) error {
	return p.broker.Publish(ctx, broker.Message{
		Topic: topic.ForSite(topic.Revocations, p.opts.Site), Payload: payload, QoS: 1, Retain: true, ContentType: protocol.ContentType,
	})
}

// machineAccess returns the listeners of the site's broker and its access control.
func (p *parts) machineAccess() ([]broker.Listener, broker.Access) {
	all := append([]broker.Listener{{Name: mqttListener, Network: broker.TCP, Address: p.opts.MQTT}}, p.opts.Listeners...)
	if p.machines == nil {
		return all, p.access
	}
	all = append(all, broker.Listener{Name: machineListener, Network: broker.TLS, Address: p.opts.Identity.MQTT, TLS: p.holder.ServerTLS()})
	return all, access.Certified{Control: p.access, Listener: machineListener, Tier: identity.EN, Peer: p.holder.Client, Left: p.holder.Left, Standing: p.holder.Standing}
}

// startEnrolment enrols nodes, if nodes are to have certificates.
func (p *parts) startEnrolment(ctx context.Context) error {
	if p.machines == nil {
		return nil
	}
	l, err := p.listenOn(ctx, p.opts.Identity.Enrol)
	if err != nil {
		return fmt.Errorf("listen for nodes that enrol on %s (key identity.enrol): %w", p.opts.Identity.Enrol, err)
	}
	p.enrolAddr = l.Addr().String()
	server := enrol.Start(l, enrol.ServerOptions{
		Holder: p.holder, Registrar: p.machines, Tier: identity.EN, Authority: p.keeper.Authority, Apply: p.machines.Apply, TLSFailed: p.tlsFailed.Inc, Logger: p.opts.Logger,
	}, p.group.Fail)
	p.group.OnStop("enrolment", server.Stop)
	return nil
}

// startImages serves the image cache to nodes by mutual TLS, where the options ask for it.
func (p *parts) startImages(ctx context.Context) error {
	if p.machines == nil || p.opts.Identity.HTTP == "" {
		return nil
	}
	l, err := p.listenOn(ctx, p.opts.Identity.HTTP)
	if err != nil {
		return fmt.Errorf("listen for nodes that fetch images on %s (key identity.http): %w", p.opts.Identity.HTTP, err)
	}
	p.imagesAddr = l.Addr().String()
	server := https.Start(l, https.ServerOptions{
		Holder: p.holder, Handler: p.cache, Tier: identity.EN, Site: p.opts.Site, TLSFailed: p.tlsFailed.Inc, Logger: p.opts.Logger,
	}, p.group.Fail)
	p.group.OnStop("images for nodes", server.Stop)
	return nil
}

// openHolder opens the certificate of the LO, if identity is configured.
func (p *parts) openHolder(context.Context) (err error) {
	if len(p.opts.CO.Enrol) > 0 {
		if p.vault, err = store.Open(p.opts.Disk, store.Dir(p.opts.StateDir)); err != nil {
			return err
		}
		module, err := tpm.Parse(p.opts.Identity.Key)
		if err != nil {
			return err
		}
		p.group.OnStop("TPM", func(context.Context) error { return module.Close() })
		p.vault.In(module)
		p.holder = identity.NewHolder(p.vault.Clock(p.opts.Now))
	}
	p.fromCO = https.NewClient(https.ClientOptions{
		Base: p.opts.CO.HTTP, Key: "co.http", Holder: p.holder, Server: identity.OfCO(), Dial: p.opts.Dial, Logger: p.opts.Logger,
	})
	p.group.OnStop("connections to the CO's HTTP", func(context.Context) error { p.fromCO.CloseIdleConnections(); return nil })
	return nil
}

// certificate returns with what the LO signs what it desires of its nodes; nil: it has no certificate.
func (p *parts) certificate() ([][]byte, crypto.Signer) {
	if p.holder == nil || p.holder.Credential() == nil {
		return nil, nil
	}
	c := p.holder.Credential()
	return c.Raw(), c.Key
}

// tokens returns what takes the join tokens of nodes, or nil where they prove nothing.
func (p *parts) tokens() func([]byte) error {
	if p.machines == nil {
		return nil
	}
	return p.machines.SetTokens
}

// proveUpward sets up the LO's end of mutual TLS on the connection to the CO, if the LO has a
// certificate.
func (p *parts) proveUpward(o *link.Options) {
	if p.holder == nil {
		return
	}
	o.Dial = p.keeper.WhenEnrolled(p.opts.Dial)
	o.Revocations = p.acceptRevocations
	o.TLS, o.Proof = p.holder.ClientTLS(identity.OfCO()), client.Proof{Left: p.holder.Left, Standing: p.holder.Standing, Refused: p.keeper.Refused}
}
