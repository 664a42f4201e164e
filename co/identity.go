package co

import (
	"fmt"
	"net"

	machinedb "github.com/colonyfleet/colony/co/db/machines"
	"github.com/colonyfleet/colony/co/machines"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/store"
)

// startIdentity enrols the LOs of sites, where the options ask for it.
func (c *CO) startIdentity(s *stores) error {
	if c.opts.Identity.Enrol == "" {
		c.log.Warn("development mode: no machine proves who it is, and whoever reaches the broker and names itself is believed; set identity in the configuration")
		return nil
	}
	files, err := store.Open(nil, store.Dir(c.opts.StateDir))
	if err != nil {
		return err
	}
	if s.machines, err = machines.Open(machines.Options{Record: machinedb.New(s.db), Store: files, Logger: c.log, Registerer: c.opts.Registerer}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.opts.Identity.Enrol)
	if err != nil {
		return fmt.Errorf("listen for machines that enrol on %s (key identity.enrol): %w", c.opts.Identity.Enrol, err)
	}
	c.enrolAddr = l.Addr().String()
	server := enrol.Start(l, enrol.ServerOptions{
		Holder: s.machines.Holder(), Registrar: s.machines, Tier: identity.LO, Authority: s.machines.Authority, Logger: c.log,
	}, c.parts.Fail)
	c.parts.OnStop("enrolment", server.Stop)
	return nil
}
