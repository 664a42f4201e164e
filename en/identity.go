package en

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	enidentity "github.com/colonyfleet/colony/en/identity"
	"github.com/colonyfleet/colony/en/inventory"
	"github.com/colonyfleet/colony/en/link"
	"github.com/colonyfleet/colony/en/metrics"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// TokenFile is where the agent looks for its join token.
func (o Options) TokenFile() string {
	return cmp.Or(o.Identity.TokenFile, filepath.Join(store.Dir(o.StateDir), "token"))
}

// openIdentity loads the node's certificate, if identity is configured.
func (e *EN) openIdentity(ctx context.Context) (err error) {
	if len(e.opts.LO.Enrol) == 0 {
		e.log.WarnContext(ctx, "development mode: this node has no certificate; set lo.enrol in the configuration")
		return nil
	}
	var root *identity.Fingerprint
	if e.opts.Identity.Root != "" {
		f, err := identity.ParseFingerprint(e.opts.Identity.Root)
		if err != nil {
			return fmt.Errorf("identity.root: %w", err)
		}
		root = &f
	}
	module, err := tpm.Parse(e.opts.Identity.Key)
	if err != nil {
		return err
	}
	e.parts.OnStop("TPM", func(context.Context) error { return module.Close() })
	e.identity, err = enidentity.Open(ctx, enidentity.Options{
		Site: e.opts.Site, Node: e.opts.Node, Addresses: e.opts.LO.Enrol, TokenFile: e.opts.TokenFile(), Dir: store.Dir(e.opts.StateDir), Disk: e.disk,
		TPM: module, Fleet: root, Device: inventory.New(inventory.Options{Logger: e.log}).Serial(), Root: e.root, Now: e.opts.Now, Dial: e.opts.Dial, Logger: e.log,
		Damaged: func(d *statefile.Damage) { e.damaged.Add(d.String()) },
	})
	return err
}

// prove sets up the node's end of mutual TLS on the link, if the node has a certificate.
func (e *EN) prove(o *link.Options) {
	if e.identity == nil {
		return
	}
	o.Dial, o.TLS, o.Proof, o.Revocations = e.identity.Dial(), e.identity.TLS(), e.identity.Proof(), e.identity.SetRevocations
}

// agentStore is the state as the runner writes it.
type agentStore struct {
	*state.Store
	saveTrust func(trust.State) error
	metrics   *metrics.Metrics
}

// SaveRecord stores a record, and counts its transition.
func (s agentStore) SaveRecord(r plan.Record) error {
	err := s.Store.SaveRecord(r)
	if err == nil {
		s.metrics.Saved(r)
	}
	return err
}

// RemoveRecord removes a record.
func (s agentStore) RemoveRecord(name protocol.DeploymentName) error {
	err := s.Store.RemoveRecord(name)
	if err == nil {
		s.metrics.Removed(name)
	}
	return err
}

// SaveTrust stores what the node remembers of what the CO signed.
func (s agentStore) SaveTrust(t trust.State) error { return s.saveTrust(t) }
