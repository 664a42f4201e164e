package enrol

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/statefile"
)

// A Vault keeps keys and certificates; package store has one.
type Vault interface {
	// Key returns the key of that name, which it makes where there is none. A damaged one is an error.
	Key(name string) (crypto.Signer, error)
	// Load returns the credential of that name; fs.ErrNotExist where there is none.
	Load(name string) (*identity.Credential, error)
	// Save stores the certificates of that name in the place of those before, and its key where the stored one is another or damaged.
	Save(name string, c *identity.Credential) error
	// Repair sets aside what is damaged of that name, and returns it: it counts as not there.
	Repair(name string) []*statefile.Damage
	// SaveRefusal stores why the machine was refused last, for people; nil: it was not.
	SaveRefusal(r *identity.Refusal) error
}

// KeeperOptions are what a Keeper needs. All are required, but for Fleet, Device, Dial, Changed and Damaged.
type KeeperOptions struct {
	Name, Server identity.Name
	Addresses    []string
	// TokenFile has the join token. It is read when there is no certificate.
	TokenFile string
	// Fleet is the fingerprint of the fleet's root, with which a machine that has no token applies. Nil: it
	// waits for a token.
	Fleet *identity.Fingerprint
	// Device is the serial number of the machine, for the person that approves it. Empty: it is not
	// known.
	Device string
	Vault  Vault
	Holder *identity.Holder
	Dial   Dial
	// Changed is called after each new certificate. It must not wait. Nil: nothing is called.
	Changed func(Issued)
	// Damaged is called with each file that was set aside, in NewKeeper and while Run runs. Nil: they are
	// logged only.
	Damaged func(*statefile.Damage)
	Logger  *slog.Logger
}

// A Keeper sees to it that a machine has a certificate: it joins with the token where there
// is none, and renews at two thirds of the life. What is damaged is set aside: a machine whose key was
// enrols anew, and one that lost the authority of its site renews at once. It never ends for a failure:
// what runs on the machine does not depend on it.
type Keeper struct {
	o       KeeperOptions
	changed notify.Broadcast // there is another certificate
	early   notify.Signal    // by Refused

	refusal *identity.Code // stored last, "" for none; nil: not known. Run has it
}

// NewKeeper returns a Keeper, and puts what was stored into the holder. What cannot be read
// counts as not there, and is logged.
func NewKeeper(o KeeperOptions) *Keeper {
	k := &Keeper{o: o, early: notify.New()}
	k.repair(store.Machine)
	k.load()
	if k.authority() {
		k.repair(store.Issuer)
	}
	return k
}

// load puts the stored credential into the holder, and reports whether there is one that counts.
func (k *Keeper) load() bool {
	c, err := k.o.Vault.Load(store.Machine)
	if err == nil {
		var p identity.Peer
		if p, err = c.Check(k.o.Holder.Clock()); err == nil && p.Name != k.o.Name {
			err = fmt.Errorf("the certificate is that of %s and not of %s: remove the directory of the identity and enrol the machine by its new name", p.Name, k.o.Name)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		k.o.Logger.Error("certificate of this machine not read", "err", err)
		return false
	}
	k.o.Holder.Set(c)
	if err := k.o.Holder.Clock().Raise(c.Chain[0], c.Root); err != nil {
		k.o.Logger.Warn("floor of the clock not stored", "err", err)
	}
	return true
}

// authority reports whether the machine has the authority of a site beside its own certificate.
func (k *Keeper) authority() bool { return k.o.Name.Tier == identity.LO }

// repair sets aside what is damaged of that name.
func (k *Keeper) repair(name string) {
	for _, d := range k.o.Vault.Repair(name) {
		k.o.Logger.Error("key or certificate of this machine is damaged; it counts as not there", "machine", k.o.Name.String(), "err", d)
		if k.o.Damaged != nil {
			k.o.Damaged(d)
		}
	}
}

// ready reports whether nothing is missing: a site whose LO has a certificate and no authority would let its
// nodes' certificates end.
func (k *Keeper) ready() bool {
	if !k.authority() {
		return true
	}
	_, err := k.loadAuthority()
	return err == nil
}

// Authority returns the stored authority of the site; fs.ErrNotExist before the LO is enrolled. Where it is
// missing or damaged Run renews, which brings another one.
func (k *Keeper) Authority() (*identity.Authority, error) {
	a, err := k.loadAuthority()
	if err != nil {
		k.early.Notify()
	}
	return a, err
}

func (k *Keeper) loadAuthority() (*identity.Authority, error) {
	c, err := k.o.Vault.Load(store.Issuer)
	if err != nil {
		return nil, fmt.Errorf("authority of the site: %w", err)
	}
	return identity.OpenSite(c.Chain[0], c.Root, c.Key)
}

// WhenEnrolled returns a Dial that waits for the first certificate, or the end of its context,
// before it dials. So a client that needs the certificate connects as soon as there is one, and not
// after the delay of failed attempts. next nil is that of the system.
func (k *Keeper) WhenEnrolled(next Dial) Dial {
	if next == nil {
		next = (&net.Dialer{KeepAlive: -1}).DialContext // the callers have a keep-alive of their own
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		for {
			changed := k.changed.C()
			if k.o.Holder.Credential() != nil {
				return next(ctx, network, address)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, fmt.Errorf("this machine has no certificate yet: %w", context.Cause(ctx))
			}
		}
	}
}

// Refused says that the upper tier does not let the machine in, maybe for its certificate: it has
// ended by a clock that is ahead of this machine's, or that of an authority was revoked. Then a
// renewal is tried before it is due: at once, and the more slowly the longer the machine is refused. It does not wait.
func (k *Keeper) Refused() { k.early.Notify() }

// Run joins and renews until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var p pace
	for {
		c := k.o.Holder.Credential()
		refused, err := k.await(ctx, c, &p)
		if err != nil {
			return
		}
		err = k.once(ctx, c)
		k.saveRefusal(ctx, err)
		if err == nil {
			now := k.o.Holder.Clock().Now()
			p.succeeded(untilRenewal(k.o.Holder.Credential(), now) <= 0)
			if p.atOnce > 0 {
				k.o.Logger.WarnContext(ctx, "the new certificate is due for renewal at once: the clocks of this machine and of the server differ by weeks, set the one that is wrong", "machine", k.o.Name.String(), "now", now)
			}
			select {
			case <-k.early.C(): // with the certificate of before
			default:
			}
			continue
		}
		as := renewal
		if c == nil || !k.ready() {
			as = missing
		}
		p.failed(as)
		if ctx.Err() == nil {
			k.o.Logger.WarnContext(ctx, "no certificate yet, it is tried again", "machine", k.o.Name.String(), "renewal", c != nil, "refused", refused, "retry_in", p.wait.String(), "err", err)
		}
	}
}

// await returns when the next certificate is to be asked for, and whether that is because the machine is refused: the cause of
// ctx where that ends first.
func (k *Keeper) await(ctx context.Context, c *identity.Credential, p *pace) (refused bool, err error) {
	for {
		wait, whole := p.leftOfDue(), c != nil && k.ready()
		if whole {
			wait = max(wait, untilRenewal(c, k.o.Holder.Clock().Now()))
		}
		if wait <= 0 || !whole {
			return false, retry.Sleep(ctx, wait)
		}
		if refused, err = retry.SleepOr(ctx, wait, k.early.C()); err != nil {
			return false, err
		}
		if !refused {
			continue
		}
		for p.refuse(); ; p.refuse() {
			if woken, err := retry.SleepOr(ctx, p.left(), k.early.C()); !woken {
				return true, err
			}
		}
	}
}

// saveRefusal stores why the machine was refused, where that is another reason than before. A server that
// cannot be reached says nothing.
func (k *Keeper) saveRefusal(ctx context.Context, err error) {
	refusal, refused := errors.AsType[*identity.Refusal](err)
	code := identity.Code("")
	if refused {
		code = refusal.Code
	}
	if err != nil && !refused || code == identity.Unavailable || k.refusal != nil && *k.refusal == code {
		return
	}
	if err := k.o.Vault.SaveRefusal(refusal); err != nil {
		k.o.Logger.WarnContext(ctx, "reason of the refusal not stored", "code", string(code), "err", err)
		return
	}
	k.refusal = &code
}

// untilRenewal is how long to wait before a certificate is renewed: until two thirds of its life,
// and up to a tenth of its life later, by its serial number, which is random. It is at most a day,
// as the clock may be set meanwhile. A certificate that begins too far ahead is renewed at once.
func untilRenewal(c *identity.Credential, now time.Time) time.Duration {
	leaf := c.Chain[0]
	if leaf.NotBefore.After(now.Add(identity.Farthest)) { // the issuer's clock was ahead
		return 0
	}
	life := identity.EndOf(c.Chain).Sub(leaf.NotBefore)
	jitter := life * 2 / 30 / 256 * time.Duration(leaf.SerialNumber.Uint64()&0xff)
	due := leaf.NotBefore.Add(life*2/3 + jitter)
	return min(due.Sub(now), 24*time.Hour)
}

// once joins, or renews where there is a certificate.
func (k *Keeper) once(ctx context.Context, c *identity.Credential) error {
	m := Machine{Name: k.o.Name, Server: k.o.Server, Addresses: k.o.Addresses, Clock: k.o.Holder.Clock(), Dial: k.o.Dial}
	var err error
	if c == nil {
		k.repair(store.Machine)
		if k.load() { // it could not be read before, such as where its key is in a TPM that was away
			k.announce(Issued{Machine: k.o.Holder.Credential(), First: true})
			return nil
		}
	}
	m.Key, err = k.o.Vault.Key(store.Machine)
	if err != nil && c != nil { // its file was damaged meanwhile, and is written anew with the certificate
		k.o.Logger.WarnContext(ctx, "key of this machine not read, it goes on with the one in use", "machine", k.o.Name.String(), "err", err)
		m.Key, err = c.Key, nil
	}
	if err != nil {
		return err
	}
	if k.authority() {
		k.repair(store.Issuer)
		if m.Authority, err = k.o.Vault.Key(store.Issuer); err != nil {
			return err
		}
	}
	var got Issued
	if c != nil {
		// A machine that was removed may have a new token.
		if got, err = Renew(ctx, m, k.o.Holder); err != nil && identity.CodeOf(err) != identity.Unavailable {
			anew, joinErr := k.join(ctx, m)
			if joinErr == nil {
				got, err = anew, nil
			} else {
				err = errors.Join(err, fmt.Errorf("to join anew failed, too: %w", joinErr))
			}
		}
	} else {
		got, err = k.join(ctx, m)
	}
	if err != nil {
		return err
	}
	// The authority first: a machine that has a certificate counts as enrolled.
	if got.Authority != nil {
		if err := k.o.Vault.Save(store.Issuer, got.Authority); err != nil {
			return err
		}
	}
	if err := k.o.Vault.Save(store.Machine, got.Machine); err != nil {
		return err
	}
	got.First = k.o.Holder.Credential() == nil
	k.o.Holder.Set(got.Machine)
	k.o.Logger.InfoContext(ctx, "machine has a certificate", "machine", k.o.Name.String(), "renewal", c != nil, "serial", identity.SerialOf(got.Machine.Chain[0]), "until", got.Machine.Chain[0].NotAfter)
	k.announce(got)
	return nil
}

// announce says that the holder has another credential.
func (k *Keeper) announce(i Issued) {
	k.changed.Notify()
	if k.o.Changed != nil {
		k.o.Changed(i)
	}
}

// join asks for a certificate with the token, or without one where there is none and the fleet is known.
func (k *Keeper) join(ctx context.Context, m Machine) (Issued, error) {
	raw, err := os.ReadFile(k.o.TokenFile)
	if errors.Is(err, fs.ErrNotExist) && k.o.Fleet != nil {
		return Apply(ctx, m, *k.o.Fleet, k.o.Device)
	}
	if err != nil {
		return Issued{}, fmt.Errorf("this machine is not enrolled, and its join token is missing: make one with colony site add or colony node token, and write it to the file that identity.tokenFile names: %w", err)
	}
	token, err := identity.ParseToken(string(raw))
	if err != nil {
		return Issued{}, fmt.Errorf("%s: %w", k.o.TokenFile, err)
	}
	return Join(ctx, m, token)
}
