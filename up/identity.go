package up

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
)

const (
	// tokenLife is how long a join token holds that a tier uses within a second of its start.
	tokenLife = time.Hour
	// overdue is how long before the end of a certificate its renewal must have failed.
	overdue = identity.LeafLife / 6
	// tokenTimeout bounds the request for one.
	tokenTimeout = 10 * time.Second
)

// prepareRoot makes the root of the fleet's certificates, unless it is there: also in a state
// directory of a release that had none. It does not replace one that was lost: machines of
// other sites may have certificates by it.
func (s *supervisor) prepareRoot(context.Context) error {
	dir := store.Dir(s.dir.sub("co"))
	files, err := store.Open(nil, dir)
	if err != nil {
		return err
	}
	if _, err := files.OpenRoot(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := files.Load(store.Machine); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the root of the fleet's certificates is missing from %s, and the CO has a certificate by it: bring it back with colony ca import --config %s; or remove %s, for a new root that no machine of another site knows",
			dir, s.configPath("co"), dir)
	}
	_, _, err = files.InitRoot(time.Now())
	return err
}

// A machine is one that is enrolled as each machine of a fleet is, with a join token.
type machine struct {
	name           identity.Name
	dir, tokenFile string // of its identity
	tokens         string // last part of the path of the API that makes its join token
}

func (s *supervisor) theLO() machine {
	o := s.loConfig()
	return machine{identity.OfLO(o.Site), store.Dir(o.StateDir), o.TokenFile(), "join-tokens"}
}

func (s *supervisor) theEN() machine {
	o := s.enConfig()
	return machine{identity.OfNode(o.Site, o.Node), store.Dir(o.StateDir), o.TokenFile(), "node-tokens"}
}

// String names the machine for people.
func (m machine) String() string {
	if m.name.Tier == identity.EN {
		return "node " + string(m.name.Site) + "/" + string(m.name.Node)
	}
	return "the LO of site " + string(m.name.Site)
}

// checkKeys makes sure that the CO admits the site and its node. The keys of a removed machine are
// deleted: the person that starts it here wants it back. A machine that was revoked stays out until a
// person deletes its keys.
func (s *supervisor) checkKeys(ctx context.Context) error {
	var errs []error
	for _, m := range []machine{s.theLO(), s.theEN()} {
		errs = append(errs, s.checkKey(ctx, m))
	}
	return errors.Join(errs...)
}

func (s *supervisor) checkKey(ctx context.Context, m machine) error {
	files, err := store.Open(nil, m.dir)
	if err != nil {
		return err
	}
	key, err := files.Key(store.Machine) // also of one whose certificate is lost
	if store.IsDamaged(err) {
		s.log.WarnContext(ctx, "the key of a machine is damaged; it makes another one and enrols anew", "machine", m.name.String(), "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	sum := identity.KeySum(key.Public())
	var revoked fleet.RevokedKey
	status, err := s.opts.call(ctx, http.MethodGet, "/api/v1/revoked-keys/"+hex.EncodeToString(sum[:]), nil, &revoked)
	switch {
	case status == http.StatusNotFound:
		return nil
	case err != nil:
		return fmt.Errorf("ask whether the key of %s was revoked: %w", m, err)
	case !revoked.Removed:
		return fmt.Errorf("the key of %s was revoked at %s, so that it is let in nowhere. If that was meant for another machine, or is over, give this one another key: rm -r %s, and start colony up again",
			m, revoked.Revoked.Format(time.RFC3339), m.dir)
	}
	s.log.WarnContext(ctx, "machine was removed, it enrols anew with another key", "machine", m.name.String(), "removed", revoked.Revoked)
	s.anew = append(s.anew, m)
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("remove the revoked key of %s: %w", m, err)
	}
	return nil
}

// enrolled returns nil where a machine has a certificate of this fleet that lasts that long.
func (s *supervisor) enrolled(m machine, lasts time.Duration) error {
	root, err := s.root()
	if err != nil {
		return err
	}
	c, err := store.At(nil, m.dir).Load(store.Machine) // the machine may be writing there just now
	if err != nil {
		return fmt.Errorf("%s has no certificate: %w", m.name, err)
	}
	if !c.Root.Equal(root) {
		return fmt.Errorf("the certificate of %s is %w", m.name, errForeign)
	}
	if m.name.Tier == identity.LO {
		if _, err := store.At(nil, m.dir).Load(store.Issuer); err != nil {
			return fmt.Errorf("%s has no authority for its nodes: %w", m.name, err)
		}
	}
	now := time.Now()
	p, err := c.Check(identity.NewClock(func() time.Time { return now }, identity.Floor{}, nil))
	switch {
	case err != nil:
		return err
	case p.Name != m.name:
		return fmt.Errorf("%s has the certificate of %s", m.name, p.Name)
	case now.Add(lasts).After(p.NotAfter):
		return fmt.Errorf("the certificate of %s ends at %s", m.name, p.NotAfter.Format(time.RFC3339))
	}
	return nil
}

var errForeign = errors.New("that of another fleet")

// admit writes a join token for the machine, unless it has a certificate and renews it in time. The
// token also allows a new key for the name: the state directory may have been lost, and the key with
// it.
func (s *supervisor) admit(ctx context.Context, m machine) error {
	err := s.enrolled(m, overdue)
	if err == nil {
		return nil
	}
	s.log.InfoContext(ctx, "machine gets a join token", "machine", m.name.String(), "reason", err)
	if errors.Is(err, errForeign) { // it would go on to trust that root and no other
		if err := store.At(nil, m.dir).Remove(store.Machine); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	var answer identityapi.JoinToken
	path := "/api/v1/sites/" + url.PathEscape(s.opts.Site) + "/" + m.tokens
	if _, err := s.opts.call(ctx, http.MethodPost, path, map[string]any{"seconds": int(tokenLife / time.Second), "replace": true}, &answer); err != nil {
		return fmt.Errorf("make a join token of %s: %w", m.name, err)
	}
	if err := os.MkdirAll(filepath.Dir(m.tokenFile), 0o700); err != nil {
		return fmt.Errorf("make the directory of the join token of %s: %w", m.name, err)
	}
	return atomicfile.Write(disk.OS, m.tokenFile, []byte(answer.Token+"\n"), 0o600)
}

// online returns a check that a machine has a certificate, and that the CO knows it as online.
func (s *supervisor) online(m machine, known func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := s.enrolled(m, 0)
		if err == nil {
			err = known(ctx)
		}
		if err == nil {
			return nil
		}
		if refusal, unread := store.At(nil, m.dir).Refusal(); unread == nil {
			err = fmt.Errorf("%w; %s was refused: %w", err, m, refusal)
		}
		return err
	}
}

// root returns the certificate of the fleet's root.
func (s *supervisor) root() (*x509.Certificate, error) {
	a, err := store.At(nil, store.Dir(s.dir.sub("co"))).OpenRoot()
	if err != nil {
		return nil, fmt.Errorf("open the root of the fleet's certificates: %w", err)
	}
	return a.Root(), nil
}
