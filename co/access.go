package co

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/token"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/gate"
	"github.com/colonyfleet/colony/co/api/tokens"
	"github.com/colonyfleet/colony/co/db"
	accessdb "github.com/colonyfleet/colony/co/db/access"
	"github.com/colonyfleet/colony/protocol"
	"github.com/prometheus/client_golang/prometheus"
)

// AccessOptions say who may use the HTTP API. The zero value is the mode of development: whoever reaches it, for
// everything, and the CO says so at each start.
type AccessOptions struct {
	// Required wants a token with each request, but for those of load balancers and of sites that pull images.
	Required bool `yaml:"required,omitempty"`
	// KeyFile is the key with which tokens are signed; the same for all replicas. It is made where there is none.
	// Default: access/token.key in the state directory.
	KeyFile string `yaml:"keyFile,omitempty"`
}

// TokenKey is the file of the key with which tokens are signed.
func (o Options) TokenKey() string {
	if o.Access.KeyFile != "" {
		return o.Access.KeyFile
	}
	return filepath.Join(o.StateDir, "access", "token.key")
}

// openAccess reads who may use the API, where the options ask for it.
func (c *CO) openAccess(ctx context.Context, s *stores) error {
	if !c.opts.Access.Required {
		c.log.WarnContext(ctx, "development mode: whoever reaches the HTTP API may do everything there; set access.required in the configuration")
		return nil
	}
	signer, err := token.Open(c.opts.TokenKey())
	if err != nil {
		return err
	}
	if s.gate, err = gate.New(ctx, gate.Options{Store: accessdb.New(s.db), Signer: signer, Logger: c.log, Registerer: c.opts.Registerer}); err != nil {
		return err
	}
	c.parts.Go("record of tokens", s.gate.Run)
	return nil
}

// guarded lets to next pass what whoever asks may do, where the options ask for it.
func (s *stores) guarded(next http.Handler, a *api.API) http.Handler {
	if s.gate == nil {
		return next
	}
	registry := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v2/") }
	return s.gate.Guard(next, func(r *http.Request) access.Permission {
		switch {
		case registry(r):
			return access.RegistryNeeds(r.Method, r.URL.Path)
		case r.URL.Path == admin.Path:
			return access.Needs(r.Method + " " + admin.Path)
		}
		return access.Needs(a.Route(r))
	}, registry)
}

// tokens are those of the API, nil where nobody is asked who they are.
func (s *stores) tokens() tokens.Record {
	if s.gate == nil {
		return nil
	}
	return s.gate
}

// NewAccessToken makes a token on the CO's own machine, whether the CO runs or not, and records it. Errors of the
// arguments are of kind Invalid.
func NewAccessToken(ctx context.Context, o Options, name, role string, life time.Duration) (t access.Token, text string, err error) {
	if t, err = access.NewToken(name, role, access.Console, time.Now(), life); err != nil {
		return t, "", err
	}
	if !o.Access.Required {
		return t, "", protocol.Errorf(protocol.Invalid, "access.required is not set in the configuration: this CO asks nobody for a token")
	}
	signer, err := token.Open(o.TokenKey())
	if err != nil {
		return t, "", err
	}
	pool, err := db.Open(ctx, o.DatabaseURL, db.Options{Logger: o.Logger, Registerer: prometheus.NewRegistry()})
	if err != nil {
		return t, "", err
	}
	defer pool.Close()
	if text, err = signer.Text(t); err != nil {
		return t, "", err
	}
	return t, text, accessdb.New(pool).AddToken(ctx, t)
}
