package co

import (
	"context"
	"fmt"
	"net/http"

	identitydb "github.com/colonyfleet/colony/co/db/identity"
	coidentity "github.com/colonyfleet/colony/co/identity"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/https"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/retry/relisten"
)

// startIdentity enrols the LOs of sites, where the options ask for it.
func (c *CO) startIdentity(ctx context.Context, s *stores) error {
	if c.opts.Identity.Enrol == "" {
		c.log.Warn("development mode: no machine has a certificate, and every name that a client of the broker gives is accepted; set identity in the configuration")
		return nil
	}
	files, err := store.Open(nil, store.Dir(c.opts.StateDir))
	if err != nil {
		return err
	}
	record := identitydb.New(s.db)
	if s.machines, err = coidentity.Open(coidentity.Options{Record: record, Decide: record.Decide, Store: files, Logger: c.log, Registerer: c.opts.Registerer}); err != nil {
		return err
	}
	l, err := relisten.System(ctx, "tcp", c.opts.Identity.Enrol)
	if err != nil {
		return fmt.Errorf("listen for machines that enrol on %s (key identity.enrol): %w", c.opts.Identity.Enrol, err)
	}
	c.enrolAddr = l.Addr().String()
	server := enrol.Start(l, enrol.ServerOptions{
		Holder: s.machines.Holder(), Registrar: s.machines, Tier: identity.LO, Authority: s.machines.Authority, TLSFailed: c.tlsFailed.Inc, Logger: c.log,
	}, c.parts.Fail)
	c.parts.OnStop("enrolment", server.Stop)
	return nil
}

// serveMachines serves LOs by mutual TLS what their sites run, where the options ask for it.
func (c *CO) serveMachines(ctx context.Context, s stores, specs http.Handler) error {
	if c.opts.Identity.HTTP == "" {
		return nil
	}
	l, err := relisten.System(ctx, "tcp", c.opts.Identity.HTTP)
	if err != nil {
		return fmt.Errorf("listen for sites that fetch what they run on %s (key identity.http): %w", c.opts.Identity.HTTP, err)
	}
	c.httpsAddr = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("GET /v2/", s.registry)
	mux.Handle("GET /api/v1/specs/{digest}", specs)
	server := https.Start(l, https.ServerOptions{Holder: s.machines.Holder(), Handler: mux, Tier: identity.LO, TLSFailed: c.tlsFailed.Inc, Logger: c.log}, c.parts.Fail)
	c.parts.OnStop("what sites fetch", server.Stop)
	return nil
}
