package lo

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/lo/api/local"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// startSocket serves the Unix socket for people of the machine.
func (p *parts) startSocket(ctx context.Context) error {
	if p.opts.Socket == "" {
		return nil
	}
	l, err := listen.Open(ctx, &listen.Spec{Name: "socket", Network: listen.Unix, Address: p.opts.Socket, Mode: local.Mode}, listen.Options{
		Listen: p.opts.Listen, Failed: func(err error, wait time.Duration) {
			p.opts.Logger.WarnContext(ctx, "connection to the socket not accepted", "err", err, "retry_in", wait)
		},
		Refused: func(net.Addr) {},
	})
	if err != nil {
		return fmt.Errorf("listen on the socket %s: %w", p.opts.Socket, err)
	}
	server := local.New(local.Options{Listener: l, Nodes: func() any { return p.site.Status() }, Restrict: p.restrict, Logger: p.opts.Logger})
	p.run("socket", func(context.Context) error { return server.Run() })
	p.group.OnStop("socket", server.Stop)
	return nil
}

// clock is what the LO knows of time without a clock that can be set.
func (p *parts) clock() nodes.Clock {
	c := nodes.Clock{Boot: p.opts.Boot, SinceBoot: p.opts.SinceBoot()}
	if p.commands != nil { // it is opened after the site
		c.COMillis = p.commands.COTime()
		c.EstimateMillis, c.EstimateAge = p.commands.Time()
	}
	return c
}

// execute implements command.Options.Execute.
func (p *parts) execute(ctx context.Context, c *wire.Command, node protocol.NodeID) (string, error) {
	change, err := nodes.ChangeOf(c)
	if err != nil {
		return "", err
	}
	return p.restrict(ctx, node, change)
}

// restrict implements local.Options.Restrict.
func (p *parts) restrict(ctx context.Context, node protocol.NodeID, change nodes.Change) (string, error) {
	out, err := p.site.Restrict(ctx, node, change)
	return change.Said(out), err
}
