package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
)

// holders returns the certificates of a broker and of its clients, which it makes in a directory where
// there are none: a chain as that of a node, by the authority of a site.
func holders(dir string) (server, client *identity.Holder, err error) {
	files, err := store.Open(nil, filepath.Join(dir, "identity"))
	if err != nil {
		return nil, nil, err
	}
	if _, err := files.Load(clientName); errors.Is(err, fs.ErrNotExist) {
		err = certify(files)
		if err != nil {
			return nil, nil, fmt.Errorf("make certificates: %w", err)
		}
	}
	open := func(name string) *identity.Holder {
		h := identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil))
		c, loadErr := files.Load(name)
		err = errors.Join(err, loadErr)
		h.Set(c)
		return h
	}
	return open(store.Machine), open(clientName), err
}

// clientName is what the store calls the certificate of the clients.
const clientName = "client"

func certify(files *store.Store) error {
	root, _, err := files.InitRoot(time.Now())
	if err != nil {
		return err
	}
	keys := map[string]*identity.Credential{}
	for _, name := range []string{store.Machine, store.Issuer, clientName} {
		key, err := files.Key(name)
		if err != nil {
			return err
		}
		keys[name] = &identity.Credential{Key: key, Root: root.Root()}
	}
	if keys[store.Machine].Chain, err = root.Issue(identity.OfLO("bench"), keys[store.Machine].Key.Public(), time.Now()); err != nil {
		return err
	}
	cert, err := root.IssueSite("bench", keys[store.Issuer].Key.Public(), time.Now())
	if err != nil {
		return err
	}
	site, err := identity.OpenSite(cert, root.Root(), keys[store.Issuer].Key)
	if err != nil {
		return err
	}
	if keys[clientName].Chain, err = site.Issue(identity.OfNode("bench", "node"), keys[clientName].Key.Public(), time.Now()); err != nil {
		return err
	}
	return errors.Join(files.Save(store.Machine, keys[store.Machine]), files.Save(clientName, keys[clientName]))
}

// dialSecure connects as id by mutual TLS.
func dialSecure(p *process, config *tls.Config, id string) (*peer, error) {
	raw, err := net.DialTimeout("tcp", p.secure, 20*time.Second)
	if err != nil {
		return nil, err
	}
	c, _, err := connectOver(tls.Client(raw, config), id, "", 0x02)
	return c, err
}

// secured measures what mutual TLS 1.3 costs a broker: full and resumed handshakes, and the memory of idle
// connections. It also measures how long it takes when all clients come back at once, with and without
// sessions to resume.
func (s size) secured(ctx context.Context, p *process, report reporter) error {
	full := p.machine.ClientTLS(identity.OfLO("bench"))
	full.ClientSessionCache = nil
	resumed := p.machine.ClientTLS(identity.OfLO("bench"))
	resumed.ClientSessionCache = &latest{} // one session for all of them
	for _, c := range []struct {
		what   string
		config *tls.Config
	}{{"full handshakes", full}, {"resumed handshakes", resumed}} {
		if err := s.connects(ctx, p, c.what, c.config, report); err != nil {
			return err
		}
	}
	empty, err := p.resident()
	if err != nil {
		return err
	}
	peers, err := crowdSecure(ctx, p, resumed, s.idle)
	if err != nil {
		return err
	}
	now, err := p.resident()
	hangUp(peers)
	if err != nil {
		return err
	}
	report(fmt.Sprintf("RSS of each of %d idle TLS connections", s.idle), (now-empty)/1024/float64(s.idle), "kB")
	if err := s.comeBack(ctx, p, "full handshakes", full, report); err != nil {
		return err
	}
	return s.comeBack(ctx, p, "resumed", resumed, report)
}

// comeBack measures how long all idle clients take to come back, 32 at a time, and what the broker needs for that.
func (s size) comeBack(ctx context.Context, p *process, what string, config *tls.Config, report reporter) error {
	used, err := p.cpu()
	if err != nil {
		return err
	}
	begun, got := time.Now(), &tally{}
	peers, err := crowdSecure(ctx, p, got.count(config), s.idle)
	if err != nil {
		return err
	}
	defer hangUp(peers)
	took := time.Since(begun)
	now, err := p.cpu()
	what = fmt.Sprintf("%d TLS clients come back, %s: ", s.idle, what)
	report(what+"all are there after", took.Seconds(), "s")
	report(what+"broker's CPU", (now - used).Seconds(), "s")
	report(what+"resumed of these", 100*float64(got.resumed.Load())/float64(s.idle), "%")
	return err
}

// A tally counts the handshakes that resumed a session.
type tally struct{ resumed atomic.Int64 }

// count returns a config whose handshakes are counted.
func (t *tally) count(config *tls.Config) *tls.Config {
	c := config.Clone()
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if s.DidResume {
			t.resumed.Add(1)
		}
		return config.VerifyConnection(s)
	}
	return c
}

// latest has the last session that a broker gave to any of its clients, for all of them: the clients of this program share
// one certificate.
type latest struct {
	session atomic.Pointer[tls.ClientSessionState]
}

// Get implements tls.ClientSessionCache.
func (l *latest) Get(string) (*tls.ClientSessionState, bool) {
	s := l.session.Load()
	return s, s != nil
}

// Put implements tls.ClientSessionCache.
func (l *latest) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		l.session.Store(s)
	}
}

// connects connects and hangs up for a while, 16 at a time.
func (s size) connects(ctx context.Context, p *process, what string, config *tls.Config, report reporter) error {
	used, err := p.cpu()
	if err != nil {
		return err
	}
	begun, done := time.Now(), make([]int, 16)
	g, ctx := errgroup.WithContext(ctx)
	for i := range done {
		g.Go(func() error {
			for ; time.Since(begun) < s.watch && ctx.Err() == nil; done[i]++ {
				c, err := dialSecure(p, config, fmt.Sprint("secure", i, "-", done[i]))
				if err != nil {
					return err
				}
				_ = c.Close() // of no more use
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	n, took := 0, time.Since(begun)
	for _, d := range done {
		n += d
	}
	report("connects per second, "+what, float64(n)/took.Seconds(), "/s")
	now, err := p.cpu()
	report("processor time of the broker for each, "+what, float64((now-used).Microseconds())/1000/float64(max(n, 1)), "ms")
	return err
}

// crowdSecure is crowd by TLS.
func crowdSecure(ctx context.Context, p *process, config *tls.Config, n int) ([]*peer, error) {
	peers := make([]*peer, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range peers {
		g.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			peers[i], err = dialSecure(p, config, fmt.Sprint("secure", i))
			return err
		})
	}
	err := g.Wait()
	if err != nil {
		hangUp(peers)
	}
	return peers, err
}
