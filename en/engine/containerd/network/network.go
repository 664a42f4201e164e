// Package network joins containers to their networks: it attaches them to bridges, publishes
// their ports, and makes anew what damage took of one that runs.
package network

import (
	"context"
	"log/slog"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/names"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/portforward"
	"github.com/colonyfleet/colony/protocol"
)

// Options are what Networks need. All are required.
type Options struct {
	Bridges *bridgenet.Networks
	Forward *portforward.Forwarder
	Names   *names.Names
	// Fault makes an error, met while doing what, one of the engine, with a code that it shows or else with code.
	Fault  func(err error, code protocol.Code, what string) error
	Logger *slog.Logger
}

// Networks join containers to networks. Its methods may be called concurrently.
type Networks struct {
	net     *bridgenet.Networks
	forward *portforward.Forwarder
	names   *names.Names
	fault   func(err error, code protocol.Code, what string) error
	log     *slog.Logger
}

// New returns Networks.
func New(o Options) *Networks {
	return &Networks{net: o.Bridges, forward: o.Forward, names: o.Names, fault: o.Fault, log: o.Logger}
}

// Attach joins a container to its network, and publishes its ports.
func (s *Networks) Attach(ctx context.Context, k string, c engine.Container) error {
	if !netns.Live(s.net.NetNS(k)) {
		s.forward.Remove(k) // what it had before would keep its ports from it
	}
	if err := s.net.Attach(ctx, k, attachmentOf(c)); err != nil {
		return err
	}
	a, err := s.net.Get(k)
	if err != nil || a == nil {
		return err
	}
	s.warnOfAddresses(c, a)
	if err := s.forward.Set(k, a.IP, a.Ports); err != nil {
		return engine.Errorf(protocol.StartFailed, "publish for %s, stop the program that has it or choose another port: %w", c.ID, err)
	}
	return nil
}

// attachmentOf returns what is wanted of the network of a container.
func attachmentOf(c engine.Container) bridgenet.Attachment {
	return bridgenet.Attachment{
		Network: string(c.ID.Deployment), Group: c.ID.Component, Name: c.ID.Name, Hostname: names.Hostname(c),
		Aliases: c.Spec.Aliases, ExtraHosts: c.Spec.ExtraHosts, Ports: c.Spec.Ports, Links: linksOf(c), Addressing: c.Spec.Addressing,
	}
}

// Lost reports whether a container that runs is on a bridge, by its own or by another
// container's network, of which there is no record any more.
func (s *Networks) Lost(networkKey string, attached map[string]*bridgenet.Attachment) bool {
	a := attached[networkKey]
	return (a == nil || a.IP == "") && netns.Live(s.net.NetNS(networkKey))
}

// Recover makes the record of the network of a container that runs anew where that was
// lost, from what the container has, and publishes its names and ports by it. The caller holds
// the lock of the container.
func (s *Networks) Recover(ctx context.Context, k string, c engine.Container) error {
	if c.Spec.NetworkOf != "" || c.Spec.Network != protocol.NetworkBridge {
		return nil
	}
	if a, err := s.net.Get(k); err != nil || a != nil && a.IP != "" {
		return err
	}
	a, err := s.net.Recover(ctx, k, attachmentOf(c))
	if err != nil {
		return s.fault(err, protocol.InternalError, "network of "+c.ID.String())
	}
	s.log.WarnContext(ctx, "record of the network of a container was lost: it was made anew from what the container has", "container", c.ID.String(), "address", a.IP)
	if err := s.forward.Set(k, a.IP, a.Ports); err != nil {
		s.log.WarnContext(ctx, "ports not published yet on IPv6 addresses", "container", c.ID.String(), "err", err)
	}
	if err := s.names.Write(k, c); err != nil {
		return s.fault(err, protocol.InternalError, "names of "+c.ID.String())
	}
	if err := s.names.Join(ctx, k, string(c.ID.Deployment)); err != nil {
		return s.fault(err, protocol.InternalError, "names of "+c.ID.String())
	}
	return nil
}

// warnOfAddresses says where a container did not get the address that its file gives it.
func (s *Networks) warnOfAddresses(c engine.Container, a *bridgenet.Attachment) {
	warn := func(want *protocol.Addressing, got string) {
		if want != nil && want.Address != "" && want.Address != got {
			s.log.Warn("container has another address than its file gives it: the node uses that or its subnet otherwise, or the network was made before", "container", c.ID, "want", want.Address, "got", got)
		}
	}
	warn(c.Spec.Addressing, a.IP)
	got := map[string]string{}
	for _, l := range a.Links {
		got[l.Name] = l.IP
	}
	for _, n := range c.Spec.Networks {
		warn(n.Addressing, got[linkName(c, n)])
	}
}

func linkName(c engine.Container, n protocol.Attachment) string {
	return c.ID.Component + "." + n.Network
}

// ForwardAll takes up again what an earlier agent published on IPv6 addresses.
func (s *Networks) ForwardAll() {
	attached, err := s.net.All()
	if err != nil {
		s.log.Error("ports not published on IPv6 addresses", "err", err)
	}
	for k, a := range attached {
		if a.IP == "" {
			continue
		}
		if err := s.forward.Set(k, a.IP, a.Ports); err != nil {
			s.log.Warn("ports not published yet on IPv6 addresses", "container", k, "err", err)
		}
	}
}

// linksOf returns the bridges of a container that is on networks of its component; what
// leads out comes first.
func linksOf(c engine.Container) []bridgenet.Link {
	var links []bridgenet.Link
	for _, internal := range []bool{false, true} {
		for _, n := range c.Spec.Networks {
			if n.Internal == internal {
				links = append(links, bridgenet.Link{Name: linkName(c, n), Internal: internal, Addressing: n.Addressing})
			}
		}
	}
	return links
}
