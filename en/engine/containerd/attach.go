package containerd

import (
	"context"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/names"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// attach joins a container to its network, and publishes its ports.
func (e *Engine) attach(ctx context.Context, k string, c engine.Container) error {
	if !netns.Live(e.net.NetNS(k)) {
		e.forward.Remove(k) // what it had before would keep its ports from it
	}
	if err := e.net.Attach(ctx, k, attachmentOf(c)); err != nil {
		return err
	}
	a, err := e.net.Get(k)
	if err != nil || a == nil {
		return err
	}
	e.warnOfAddresses(c, a)
	if err := e.forward.Set(k, a.IP, a.Ports); err != nil {
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

// networkLost reports whether a container that runs is on a bridge, by its own or by another
// container's network, of which there is no record any more.
func (e *Engine) networkLost(networkKey string, attached map[string]*bridgenet.Attachment) bool {
	a := attached[networkKey]
	return (a == nil || a.IP == "") && netns.Live(e.net.NetNS(networkKey))
}

// recover makes anew what damage took of a container that runs. The caller holds the lock.
func (e *Engine) recover(ctx context.Context, k string, c engine.Container) error {
	if err := e.recoverNetwork(ctx, k, c); err != nil {
		return err
	}
	if !e.names.Unknown(k) {
		return nil
	}
	if err := e.names.Take(ctx, k, c); err != nil {
		e.log.WarnContext(ctx, "settings of the names of a container were damaged, and are not all written anew", "container", c.ID.String(), "err", err)
	}
	return nil
}

// recoverNetwork makes the record of the network of a container that runs anew where that was
// lost, from what the container has, and publishes its names and ports by it. The caller holds
// the lock.
func (e *Engine) recoverNetwork(ctx context.Context, k string, c engine.Container) error {
	if c.Spec.NetworkOf != "" || c.Spec.Network != protocol.NetworkBridge {
		return nil
	}
	if a, err := e.net.Get(k); err != nil || a != nil && a.IP != "" {
		return err
	}
	a, err := e.net.Recover(ctx, k, attachmentOf(c))
	if err != nil {
		return e.fault(err, protocol.InternalError, "network of "+c.ID.String())
	}
	e.log.WarnContext(ctx, "record of the network of a container was lost: it was made anew from what the container has", "container", c.ID.String(), "address", a.IP)
	if err := e.forward.Set(k, a.IP, a.Ports); err != nil {
		e.log.WarnContext(ctx, "ports not published yet on IPv6 addresses", "container", c.ID.String(), "err", err)
	}
	if err := e.names.Write(k, c); err != nil {
		return e.fault(err, protocol.InternalError, "names of "+c.ID.String())
	}
	if err := e.names.Join(ctx, k, string(c.ID.Deployment)); err != nil {
		return e.fault(err, protocol.InternalError, "names of "+c.ID.String())
	}
	return nil
}

// Vacant returns an error where a container of a deployment could not publish one of the ports.
func (e *Engine) Vacant(_ context.Context, d protocol.DeploymentName, ports []protocol.Port) error {
	if err := e.net.Vacant(string(d), ports); err != nil {
		return engine.Errorf(protocol.StartFailed, "%w", err)
	}
	return nil
}

// warnOfAddresses says where a container did not get the address that its file gives it.
func (e *Engine) warnOfAddresses(c engine.Container, a *bridgenet.Attachment) {
	warn := func(want *protocol.Addressing, got string) {
		if want != nil && want.Address != "" && want.Address != got {
			e.log.Warn("container has another address than its file gives it: the node uses that or its subnet otherwise, or the network was made before", "container", c.ID, "want", want.Address, "got", got)
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

// forwardAll takes up again what an earlier agent published on IPv6 addresses.
func (e *Engine) forwardAll() {
	attached, err := e.net.All()
	if err != nil {
		e.log.Error("ports not published on IPv6 addresses", "err", err)
	}
	for k, a := range attached {
		if a.IP == "" {
			continue
		}
		if err := e.forward.Set(k, a.IP, a.Ports); err != nil {
			e.log.Warn("ports not published yet on IPv6 addresses", "container", k, "err", err)
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
