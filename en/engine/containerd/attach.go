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
	err := e.net.Attach(ctx, k, bridgenet.Attachment{
		Network: string(c.ID.Deployment), Group: c.ID.Component, Name: c.ID.Name, Hostname: names.Hostname(c),
		Aliases: c.Spec.Aliases, ExtraHosts: c.Spec.ExtraHosts, Ports: c.Spec.Ports, Links: linksOf(c),
	})
	if err != nil {
		return err
	}
	a, err := e.net.Get(k)
	if err != nil || a == nil {
		return err
	}
	if err := e.forward.Set(k, a.IP, a.Ports); err != nil {
		return engine.Errorf(protocol.StartFailed, "publish for %s, stop the program that has it or choose another port: %w", c.ID, err)
	}
	return nil
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
				links = append(links, bridgenet.Link{Name: c.ID.Component + "." + n.Network, Internal: internal})
			}
		}
	}
	return links
}
