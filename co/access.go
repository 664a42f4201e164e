package co

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/forwarded"
	"github.com/colonyfleet/colony/co/access/limit"
	"github.com/colonyfleet/colony/co/access/oidc"
	"github.com/colonyfleet/colony/co/access/token"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	"github.com/colonyfleet/colony/co/api/gate"
	"github.com/colonyfleet/colony/co/api/policy"
	"github.com/colonyfleet/colony/co/api/sitegroups"
	"github.com/colonyfleet/colony/co/api/tokens"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/db"
	accessdb "github.com/colonyfleet/colony/co/db/access"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/internal/retry/relisten"
	"github.com/colonyfleet/colony/protocol"
	"github.com/prometheus/client_golang/prometheus"
)

// AccessOptions say who may use the HTTP API. The zero value is the mode of development: every client that
// reaches the API may do everything, and the CO logs a warning at each start.
type AccessOptions struct {
	// Required wants a token with each request, but for those of load balancers and of sites that pull images.
	Required bool `yaml:"required,omitempty"`
	// KeyFile is the key with which tokens are signed; the same for all replicas. It is made where there is none.
	// Default: access/token.key in the state directory.
	KeyFile string `yaml:"keyFile,omitempty"`
	// Certificate and Key are PEM files: the chain and the key with which the options' HTTP is served by TLS 1.2 and 1.3.
	// They are read again when they change. Empty: it is served without TLS.
	Certificate string `yaml:"certificate,omitempty"`
	Key         string `yaml:"key,omitempty"`
	// Roles are roles besides read-only, operator and admin.
	Roles []access.RoleConfig `yaml:"roles,omitempty"`
	// OIDC is the OpenID provider that vouches for people.
	OIDC oidc.Config `yaml:"oidc,omitempty"`
	// Limits bound the requests of one address and of one principal, where Required is set.
	Limits limit.Limits `yaml:"limits"`
	// Proxies are addresses and networks of proxies in front of the options' HTTP: their X-Forwarded-For names the client for Limits,
	// the audit and the log. Empty: the client is the one that connects.
	Proxies []string `yaml:"proxies,omitempty"`
}

func (o AccessOptions) validate(machines IdentityOptions) error {
	var errs []error
	for key, path := range map[string]string{"keyFile": o.KeyFile, "certificate": o.Certificate, "key": o.Key} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("access.%s %q: want an absolute path", key, path))
		}
	}
	roles, err := access.NewCustom(o.Roles)
	errs = append(errs, err, o.OIDC.Validate(roles), o.Limits.Validate())
	if _, err := forwarded.Parse(o.Proxies); err != nil {
		errs = append(errs, fmt.Errorf("access.proxies: %w", err))
	}
	switch {
	case (o.Certificate == "") != (o.Key == ""):
		errs = append(errs, errors.New("access.certificate and access.key go together"))
	case o.Certificate != "" && machines.Enrol != "" && machines.HTTP == "":
		errs = append(errs, errors.New("access.certificate without identity.http: sites with certificates of the fleet fetch what they run there, and trust no other certificate"))
	}
	if o.OIDC.Set() && !o.Required {
		errs = append(errs, errors.New("access.oidc without access.required: no request would need a token"))
	}
	return errors.Join(errs...)
}

// listenHTTP binds the address of the API.
func (c *CO) listenHTTP(ctx context.Context) error {
	var secure *tls.Config
	if o := c.opts.Access; o.Certificate != "" {
		var err error
		secure, err = listen.Certificate(o.Certificate, o.Key, func(err error) { c.log.Warn("new certificate of the API", "err", err) })
		if err != nil {
			return fmt.Errorf("access.certificate: %w", err)
		}
	}
	l, err := relisten.System(ctx, "tcp", c.opts.HTTP)
	if err != nil {
		return fmt.Errorf("listen for http on %s: %w", c.opts.HTTP, err)
	}
	l = httpserver.Bound(l)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	c.listener = l
	return nil
}

// TokenKey is the file of the key with which tokens are signed.
func (o Options) TokenKey() string {
	if o.Access.KeyFile != "" {
		return o.Access.KeyFile
	}
	return filepath.Join(o.StateDir, "access", "token.key")
}

// openAccess reads the tokens, roles and groups of the API, if the options require tokens.
func (c *CO) openAccess(ctx context.Context, s *stores) error {
	if !c.opts.Access.Required {
		c.log.WarnContext(ctx, "development mode: every client that reaches the HTTP API may do everything; set access.required in the configuration")
		return nil
	}
	signer, err := token.Open(c.opts.TokenKey())
	if err != nil {
		return err
	}
	roles, err := access.NewCustom(c.opts.Access.Roles)
	if err != nil {
		return err
	}
	record := accessdb.New(s.db)
	o := gate.Options{Store: record, Groups: record, Signer: signer, Roles: roles, Limits: c.opts.Access.Limits, Logger: c.log, Registerer: c.opts.Registerer}
	if c.opts.Access.OIDC.Set() {
		provider, err := oidc.New(c.opts.Access.OIDC, c.log, c.opts.Registerer)
		if err != nil {
			return err
		}
		c.parts.Go("keys of the OpenID provider", provider.Run)
		o.Provider, s.signIn = provider, provider.SignIn()
	}
	if s.gate, err = gate.New(ctx, o); err != nil {
		return err
	}
	c.parts.Go("record of tokens", s.gate.Run)
	return nil
}

// guarded passes to next the requests that their principal may make, if the options require tokens,
// and records them.
func (s *stores) guarded(next http.Handler, p policy.Policy, log *slog.Logger) http.Handler {
	recorder := auditapi.NewRecorder(auditapi.RecorderOptions{
		Add: s.audit.Add, Operation: p.Operation, Recorded: p.Recorded, Must: s.gate != nil, Logger: log,
	})
	next = recorder.Handler(next)
	if s.gate == nil {
		return next
	}
	return s.gate.Guard(next, gate.Rules{Limited: p.Limited, Basic: p.Registry, Refused: recorder.Refused, Needs: p.Needs})
}

// tokens are those of the API, nil where no token is required.
func (s *stores) tokens() tokens.Record {
	if s.gate == nil {
		return nil
	}
	return s.gate
}

// groups are those of sites, nil where no token is required.
func (s *stores) groups() sitegroups.Record {
	if s.gate == nil {
		return nil
	}
	return s.gate
}

// NewAccessToken makes a token on the CO's own machine, whether the CO runs or not, and records it. It waits for the
// database until ctx ends. Errors of the arguments are of kind Invalid.
func NewAccessToken(ctx context.Context, o Options, r access.Request) (t access.Token, text string, err error) {
	if r.Custom, err = access.NewCustom(o.Access.Roles); err != nil {
		return t, "", err
	}
	if t, err = access.NewToken(r, access.Console, time.Now()); err != nil {
		return t, "", err
	}
	if !o.Access.Required {
		return t, "", protocol.Errorf(protocol.Invalid, "access.required is not set in the configuration: this CO requires no token")
	}
	signer, err := token.Open(o.TokenKey())
	if err != nil {
		return t, "", err
	}
	pool, err := db.Open(ctx, o.DatabaseURL, db.Options{Logger: o.Logger, Registerer: prometheus.NewRegistry(), NoMigration: true})
	if err != nil {
		return t, "", fmt.Errorf("record of tokens in the database: %w", err)
	}
	defer pool.Close()
	if err := gate.CheckGroups(ctx, accessdb.New(pool), t.Sites); err != nil {
		return t, "", err
	}
	t.Key = signer.KeyID()
	if text, err = signer.Text(t); err != nil {
		return t, "", err
	}
	made := audit.Row{Kind: audit.Local, Operation: "colony co token", Detail: t.String()}
	if err := auditdb.New(pool).Add(ctx, audit.NewRow(time.Now(), made)); err != nil {
		return t, "", err
	}
	return t, text, accessdb.New(pool).AddToken(ctx, t)
}
