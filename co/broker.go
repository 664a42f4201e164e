package co

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/external"
	"github.com/colonyfleet/colony/co/inbound"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol/topic"
)

// siteBroker is the broker that the sites connect to: the embedded one, or an
// external one.
type siteBroker interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Publish(ctx context.Context, m broker.Message) error
	// PublishAll publishes list in order, without waiting for each message before the
	// next. refused is called for each that the broker will never accept; an error is
	// about any of the others.
	PublishAll(ctx context.Context, list []broker.Message, refused func(i int, err error)) error
}

// external reports whether the sites connect to an external broker.
func (c *CO) external() bool { return len(c.opts.Broker.URLs) > 0 }

// mqttListener is the name of the listener that the key mqtt configures.
const mqttListener = "mqtt"

// machineListener is the name of the listener that the key identity.mqtt configures.
const machineListener = "machines"

// newBroker makes the broker that the options ask for. in gets each message before it is acknowledged, and learns whenever an
// external broker is connected: it may have lost what it retained.
func (c *CO) newBroker(ctx context.Context, s stores, in *inbound.Router) (siteBroker, error) {
	m := s.machines // nil: machines have no certificates
	if !c.external() {
		listeners := append([]broker.Listener{{Name: mqttListener, Network: broker.TCP, Address: c.opts.MQTT}}, c.opts.Listeners...)
		var control broker.Access = access.CO{}
		if m != nil {
			listeners = append(listeners, broker.Listener{Name: machineListener, Network: broker.TLS, Address: c.opts.Identity.MQTT, TLS: m.Holder().ServerTLS()})
			control = access.Certified{Control: access.CO{}, Listener: machineListener, Tier: identity.LO, Peer: m.Holder().Client, Left: m.Holder().Left, Standing: m.Holder().Standing}
		}
		own, err := broker.New(broker.Options{
			Name: "co", Listeners: listeners,
			Limits: c.opts.Limits, Sessions: broker.Sessions{
				Dir: filepath.Join(c.opts.StateDir, "sessions"), Limits: c.opts.Sessions,
				Damaged: func(d *statefile.Damage) { _ = s.damage.Report(ctx, d) }, // it is in the log
			},
			Access: control, Accept: in.Accept, Logger: c.log, Registerer: c.opts.Registerer,
		})
		if err != nil {
			return nil, err
		}
		c.mqttAddr = func() string { return own.Addr(mqttListener) }
		c.machineAddr = func() string { return own.Addr(machineListener) }
		return own, nil
	}
	o := c.opts.Broker
	c.mqttAddr = func() string { return strings.Join(o.URLs, ",") }
	password := ""
	if o.PasswordFile != "" {
		raw, err := os.ReadFile(o.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read broker.passwordFile: %w", err)
		}
		password = strings.TrimRight(string(raw), "\r\n")
	}
	every := func(kind topic.Kind) string { return topic.ForSite(kind, "+") }
	return external.New(external.Options{
		URLs: o.URLs, ClientID: o.clientID(), Username: o.Username, Password: password, Group: o.Group,
		Sources: []external.Source{
			{Filter: every(topic.Up), Delivery: external.Stream},
			{Filter: every(topic.DownAck), Delivery: external.State},
			{Filter: every(topic.SiteOnline), Delivery: external.State},
			{Filter: topic.ForTail(topic.In, "+", "#"), Delivery: external.Retained},
			{Filter: every(topic.SiteTimeAsk), Delivery: external.Stream},
			// Each replica gets them: only a replica itself knows its readers.
			{Filter: topic.ForCommand(topic.SiteLive, "+", topic.AnyCommand), Delivery: external.State},
		},
		Accept: in.Accept, OnUp: in.Connected, Fit: s.db.Feed.Ready, Logger: c.log, Registerer: c.opts.Registerer,
	})
}
