// Package https carries HTTP between machines of the fleet by mutual TLS 1.3: what a tier serves to the machines of
// the tier below alone, such as images.
package https

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/protocol"
)

// ServerOptions are what a server needs. All but Site and TLSFailed are required.
type ServerOptions struct {
	Holder  *identity.Holder
	Handler http.Handler
	// Tier is the kind of machine that may ask, of the site, or where that is empty of any.
	Tier identity.Tier
	Site protocol.SiteID
	// TLSFailed is that of httpserver.Limits.
	TLSFailed func()
	Logger    *slog.Logger
}

// Start serves at l until the result is stopped, which closes l. Each request is authenticated, and an answer that
// is under way ends soon after the client's key was revoked. fail is called, on another goroutine, if the server
// ends by itself.
func Start(l net.Listener, o ServerOptions, fail func(error)) *httpserver.Server {
	server := httpserver.New(guard(o), httpserver.Limits{TLSFailed: o.TLSFailed}, o.Logger)
	return httpserver.Start(tls.NewListener(httpserver.Bound(l), o.Holder.ServerTLS()), server, fail)
}

func guard(o ServerOptions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := o.Holder.Client(*r.TLS)
		if err == nil && (p.Name.Tier != o.Tier || o.Site != "" && p.Name.Site != o.Site) {
			err = fmt.Errorf("%s is not let in here", p.Name)
		}
		if err != nil {
			o.Logger.WarnContext(r.Context(), "machine refused", "machine", p.Name.String(), "remote", r.RemoteAddr, "path", r.URL.Path, "err", err)
			w.Header().Set("Connection", "close") // another one proves it anew
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		c := &checked{ResponseWriter: w, tls: r.TLS, holder: o.Holder}
		o.Handler.ServeHTTP(c, r)
		if c.revoked {
			panic(http.ErrAbortHandler) // so that the part of an answer is not taken for all of it
		}
	})
}

// checked is an answer that ends when the client's key is revoked.
type checked struct {
	http.ResponseWriter
	tls     *tls.ConnectionState
	holder  *identity.Holder
	revoked bool
}

// Unwrap returns what http.ResponseController needs.
func (c *checked) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write writes a part of the answer.
func (c *checked) Write(b []byte) (int, error) {
	if err := c.holder.Standing(*c.tls); err != nil {
		c.revoked = true
		return 0, err
	}
	return c.ResponseWriter.Write(b)
}

// ClientOptions are what a client needs. All but Holder and Dial are required.
type ClientOptions struct {
	// Base is the URL of the requests, and Key is its key in the configuration.
	Base, Key string
	// Holder has the certificate of this machine. Nil: it has none.
	Holder *identity.Holder
	// Server is the name of the machine to ask, independent of its address.
	Server identity.Name
	Dial   enrol.Dial // nil: that of the system
	Logger *slog.Logger
}

// patience bounds the wait for a connection.
const patience = 10 * time.Second

// NewClient returns the client's end: mutual TLS where the machine has a holder and the URL is of https. Otherwise it
// is a client of the web, and where there is a holder a warning is logged. What it gets is not decompressed: a
// digest is that of the bytes as sent.
func NewClient(o ClientOptions) *http.Client {
	t := &http.Transport{
		TLSHandshakeTimeout: patience, ResponseHeaderTimeout: time.Minute, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return dial(ctx, network, address)
	}
	switch {
	case o.Holder != nil && strings.HasPrefix(o.Base, "https://"):
		t.TLSClientConfig = o.Holder.ClientTLS(o.Server)
	case o.Holder != nil && o.Base != "":
		o.Logger.Warn("development mode: specifications and images are fetched without TLS, from any server at the address; set "+o.Key+" to the https:// URL of the address where they are served to machines (key identity.http there)", "url", o.Base)
		fallthrough
	default:
		t.Proxy = http.ProxyFromEnvironment
	}
	return &http.Client{Transport: t}
}
