// Package identity is the node's side of the identity of machines. It holds the node's own
// certificate, which the LO issues and renews, and the list of revoked keys. When either changes,
// it has the connection to the LO made anew.
package identity

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// Options are what Open needs. All are required, but for TPM, Fleet, Device, Root, Now and Dial.
type Options struct {
	Site protocol.SiteID
	Node protocol.NodeID
	// Addresses are where the LO enrols nodes, and TokenFile has the join token.
	Addresses []string
	TokenFile string
	// Fleet is the fingerprint of the fleet's root, with which the node applies where it has no token.
	// Nil: it waits for a token.
	Fleet *identity.Fingerprint
	// Device is the serial number of the machine. Empty: it is not known.
	Device string
	Dir    string // of keys, certificates and the list of revoked keys
	Disk   disk.FS
	// TPM is where the key of the node is made and stays. Nil: it is a file in Dir.
	TPM *tpm.Module
	// Root is the root key of the fleet's key sets. Nil: the list of revoked keys is not checked.
	Root ed25519.PublicKey
	Now  func() time.Time // nil: the system's clock
	Dial enrol.Dial       // nil: that of the system
	// Damaged is called with each file that was damaged and set aside.
	Damaged func(*statefile.Damage)
	// Logger gets what was damaged, and each certificate.
	Logger *slog.Logger
}

// A Link is the connection to the LO.
type Link interface {
	// Reconnect connects anew, with the certificate that the node has now.
	Reconnect()
	// Recheck ends the connection if the key of the other end was revoked.
	Recheck()
}

// An Identity is the node's certificate and key. Its methods may be called concurrently. A nil
// Identity is that of a node without a certificate: only its methods Follow, Following, Listed and
// Refused may be called.
type Identity struct {
	holder      *identity.Holder
	keeper      *enrol.Keeper
	revocations *revocation.List
	lo          identity.Name
	dial        enrol.Dial

	renewed, revoked notify.Signal // handled by Run
}

// Open loads the node's identity. A file that cannot be read counts as absent, and is logged.
func Open(ctx context.Context, o Options) (*Identity, error) {
	files, err := store.Open(o.Disk, o.Dir)
	if err != nil {
		return nil, err
	}
	files.In(o.TPM)
	if o.Now == nil {
		o.Now = time.Now
	}
	i := &Identity{
		holder: identity.NewHolder(files.Clock(o.Now)), lo: identity.OfLO(o.Site), dial: o.Dial,
		renewed: notify.New(), revoked: notify.New(),
	}
	i.keeper = enrol.NewKeeper(enrol.KeeperOptions{
		Name: identity.OfNode(o.Site, o.Node), Server: i.lo, Addresses: o.Addresses, Vault: files, Holder: i.holder,
		TokenFile: o.TokenFile, Fleet: o.Fleet, Device: o.Device, Dial: o.Dial, Damaged: o.Damaged, Logger: o.Logger,
		Changed: func(c enrol.Issued) {
			if !c.First { // else the link waits for it
				i.renewed.Notify()
			}
		},
	})
	i.revocations, err = revocation.Open(revocation.Options{
		Site: o.Site, Root: o.Root, Disk: o.Disk, Dir: o.Dir, Logger: o.Logger,
		Changed: func(keys []string) {
			i.holder.SetRevoked(keys)
			i.revoked.Notify()
		},
		Damaged: func(d *statefile.Damage) {
			o.Logger.ErrorContext(ctx, "list of revoked keys is damaged; it comes again with the next connection", "err", d)
			o.Damaged(d)
		},
	})
	if err != nil {
		return nil, err
	}
	return i, nil
}

// Run enrols the node, renews its certificate, and has the link use what changed, until ctx ends.
func (i *Identity) Run(ctx context.Context, l Link) {
	var wg sync.WaitGroup
	wg.Go(func() { i.keeper.Run(ctx) })
	defer wg.Wait()
	for {
		select {
		case <-i.renewed.C():
			l.Reconnect()
		case <-i.revoked.C():
			l.Recheck()
		case <-ctx.Done():
			return
		}
	}
}

// Dial returns what dials the LO once the node has a certificate.
func (i *Identity) Dial() enrol.Dial { return i.keeper.WhenEnrolled(i.dial) }

// TLS returns the node's end of mutual TLS with the LO.
func (i *Identity) TLS() *tls.Config { return i.holder.ClientTLS(i.lo) }

// LOKey returns the key of the LO of the site, where certificates, the LO's own first, in DER, prove that they
// are its own and count now.
func (i *Identity) LOKey(certificates [][]byte) (crypto.PublicKey, error) {
	chain := make([]*x509.Certificate, len(certificates))
	for n, der := range certificates {
		var err error
		if chain[n], err = x509.ParseCertificate(der); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
	}
	p, err := i.holder.Peer(tls.ConnectionState{PeerCertificates: chain}, identity.Server)
	if err != nil {
		return nil, err
	}
	if p.Name != i.lo {
		return nil, protocol.Errorf(protocol.Denied, "the certificate is that of %s: want %s", p.Name.DNS(), i.lo.DNS())
	}
	return chain[0].PublicKey, nil
}

// Proof returns what the client of the LO's broker asks about certificates.
func (i *Identity) Proof() client.Proof {
	return client.Proof{Left: i.holder.Left, Standing: i.holder.Standing, Refused: i.keeper.Refused}
}

// SetRevocations takes an encoded protocol.SiteRevocations of the LO.
func (i *Identity) SetRevocations(payload []byte) error {
	_, err := i.revocations.Set(payload)
	return err
}

// Follow has lists of revoked keys checked with a key set that the CO signed.
func (i *Identity) Follow(keySet []byte) {
	if i != nil {
		i.revocations.Follow(keySet)
	}
}

// Following returns a save that follows the key set of what it has saved. One that is not on the
// disk is not followed: after a restart the node would check with another one.
func (i *Identity) Following(save func(trust.State) error) func(trust.State) error {
	return func(s trust.State) error {
		err := save(s)
		if err == nil {
			i.Follow(s.KeySet)
		}
		return err
	}
}

// Listed returns the number of the list of revoked keys in force; ok is false where the node
// proves nothing, and has none.
func (i *Identity) Listed() (number uint64, ok bool) {
	if i == nil {
		return 0, false
	}
	return i.revocations.Number(), true
}

// Refused returns how many lists of revoked keys were refused since the start, by the reason.
func (i *Identity) Refused() map[sign.Reason]uint64 {
	if i == nil {
		return nil
	}
	return i.revocations.Refused()
}
