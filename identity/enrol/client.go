package enrol

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/colonyfleet/colony/identity"
)

// A Machine is the machine that asks, and where it asks.
type Machine struct {
	Name identity.Name
	// Server is the machine that answers: the CO for an LO, the LO of the site for a node.
	Server identity.Name
	// Addresses are host:port, tried in turn.
	Addresses []string
	// Key is the machine's, Authority that of the site's authority, nil but for LOs.
	Key, Authority crypto.Signer
	Clock          *identity.Clock
	// Dial opens the connection. Nil: that of the system.
	Dial Dial
}

// A Dial opens a connection, as net.Dialer.DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// An Issued is what a machine got.
type Issued struct {
	Machine *identity.Credential
	// Authority is that of the site, nil but for LOs.
	Authority *identity.Credential
	// First says that the machine had no certificate before, and so no connection by one.
	First bool
}

// timeout bounds one question, from dialling to its answer.
const timeout = 30 * time.Second

// Join asks for a certificate with a token. The error is an *identity.Refusal where the server said no.
func Join(ctx context.Context, m Machine, token identity.Token) (Issued, error) {
	return m.pinned(ctx, identity.Fingerprint(token.Root), joinPath, question{Token: token.ID, Secret: token.Secret})
}

// Apply asks for a certificate without a token: the server must be of the fleet with this fingerprint, and
// the key of the machine approved there. device is the serial number of the machine, for the person that
// approves it. The error is an *identity.Refusal where the server refused, as it does until a person
// approves.
func Apply(ctx context.Context, m Machine, fleet identity.Fingerprint, device string) (Issued, error) {
	return m.pinned(ctx, fleet, applyPath, question{Device: device})
}

// pinned asks a server that must be of the fleet with this fingerprint.
func (m Machine) pinned(ctx context.Context, fleet identity.Fingerprint, path string, q question) (Issued, error) {
	var root *x509.Certificate
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: m.Server.DNS(),
		// No root is known yet but by the fingerprint: VerifyConnection checks all that
		// package tls would.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			pinned, err := fleet.Pin(s.PeerCertificates)
			if err != nil {
				return err
			}
			trial := identity.NewHolder(m.Clock)
			trial.Set(&identity.Credential{Root: pinned})
			p, err := trial.Peer(s, identity.Server)
			if err == nil && p.Name != m.Server {
				err = fmt.Errorf("the server is %s: want %s", p.Name.DNS(), m.Server.DNS())
			}
			if err == nil {
				err = m.Clock.Raise(s.PeerCertificates[0], pinned)
			}
			root = pinned
			return err
		},
	}
	return m.ask(ctx, config, path, q, func() *x509.Certificate { return root })
}

// Renew asks for a new certificate with the one that h has, which may have ended.
func Renew(ctx context.Context, m Machine, h *identity.Holder) (Issued, error) {
	c := h.Credential()
	if c == nil {
		return Issued{}, errors.New("renew: there is no certificate")
	}
	return m.ask(ctx, h.ClientTLS(m.Server), renewPath, question{}, func() *x509.Certificate { return c.Root })
}

// ask asks each address until one answers.
func (m Machine) ask(ctx context.Context, config *tls.Config, path string, q question, root func() *x509.Certificate) (Issued, error) {
	q.Site, q.Node = string(m.Name.Site), string(m.Name.Node)
	var err error
	if q.Request, err = identity.Request(m.Key); err != nil {
		return Issued{}, err
	}
	if m.Authority != nil {
		if q.Authority, err = identity.Request(m.Authority); err != nil {
			return Issued{}, err
		}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return Issued{}, err
	}
	errs := []error{errors.New("enrol: no server answers")}
	for _, address := range m.Addresses {
		a, err := m.post(ctx, config, "https://"+address+path, body)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
			continue
		}
		if a.Code != "" {
			return Issued{}, &identity.Refusal{Code: a.Code, Message: a.Message}
		}
		return m.check(a, root())
	}
	return Issued{}, errors.Join(errs...)
}

func (m Machine) post(ctx context.Context, config *tls.Config, url string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: config, DialContext: m.Dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || resp.StatusCode != http.StatusOK && a.Code == "" {
		return answer{}, fmt.Errorf("it answers %s, and nothing of this exchange", resp.Status)
	}
	return a, nil
}

// check makes credentials of an answer, whose certificates must be those asked for.
func (m Machine) check(a answer, root *x509.Certificate) (Issued, error) {
	if !bytes.Equal(a.Root, root.Raw) {
		return Issued{}, errors.New("the certificates are of another root than the server's own")
	}
	c := &identity.Credential{Key: m.Key, Root: root}
	for _, raw := range a.Chain {
		one, err := x509.ParseCertificate(raw)
		if err != nil {
			return Issued{}, fmt.Errorf("certificate in the answer: %w", err)
		}
		c.Chain = append(c.Chain, one)
	}
	p, err := c.Check(m.Clock)
	if err == nil && p.Name != m.Name {
		err = fmt.Errorf("it names %s: want %s", p.Name.DNS(), m.Name.DNS())
	}
	if err != nil {
		return Issued{}, fmt.Errorf("certificate in the answer: %w", err)
	}
	out := Issued{Machine: c}
	if m.Authority == nil {
		return out, nil
	}
	cert, err := x509.ParseCertificate(a.Authority)
	if err == nil {
		_, err = identity.OpenSite(cert, root, m.Authority)
	}
	if err != nil {
		return Issued{}, fmt.Errorf("certificate of the site's authority in the answer: %w", err)
	}
	out.Authority = &identity.Credential{Key: m.Authority, Chain: []*x509.Certificate{cert}, Root: root}
	return out, nil
}
