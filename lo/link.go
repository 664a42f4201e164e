package lo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// farewell bounds the last message of an orderly stop.
const farewell = 2 * time.Second

// link is the LO's end of the WAN: what the CO wants comes in, the journal goes out.
type link struct {
	site    *site
	journal *journal.Journal
	trimmer *trimmer
	desired *desired.Store
	data    *data.Forwarder
	version string
	log     *slog.Logger
	client  *client.Client
	uplink  *uplink.Uplink
	source  *desired.MQTT
	down    *downlink.Downlink
	refused protocol.Digest // the payload that was reported as refused; of the source's goroutine
}

func newLink(o Options, lo *LO) (*link, error) {
	j, s := lo.journal, lo.site
	l := &link{site: s, journal: j, trimmer: newTrimmer(j, s), desired: lo.desired, data: lo.data, version: o.Version, log: o.Logger.With("component", "link"), source: desired.NewMQTT(o.Logger)}
	var err error
	l.client, err = client.New(client.Options{
		URLs: o.CO.MQTT, ClientID: string(o.Site), Username: string(o.Site), KeepAlive: o.CO.KeepAlive, MaxBackoff: o.CO.MaxBackoff,
		Will: func(session string) *client.Message {
			m := l.presence(false, session)
			return &m
		},
		Subscriptions: []client.Subscription{
			{Filter: topic.ForSite(topic.SiteDesired, o.Site), QoS: 1},
			{Filter: topic.ForSite(topic.Ack, o.Site), QoS: 1},
			{Filter: topic.ForSite(topic.Down, o.Site), QoS: 1},
		},
		Handle: l.handle,
		OnUp:   l.up,
		OnDown: func(err error) {
			l.uplink.Connected(false)
			l.data.Connected(false)
			l.log.Warn("link to the co is down", "err", err)
		},
		Logger: l.log,
	})
	if err != nil {
		return nil, fmt.Errorf("make link to the co: %w", err)
	}
	options := uplink.Options{
		Journal: l.trimmer, Site: o.Site, Resync: uplink.Snapshots(j, s.snapshot), Gate: lo.gate, Logger: o.Logger, Registerer: o.Registerer,
		Publish: l.send,
	}
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("options of the uplink: %w", err)
	}
	l.uplink = uplink.New(options)
	return l, nil
}

// send publishes a batch to the CO.
func (l *link) send(ctx context.Context, topic string, payload []byte) error {
	return l.client.Publish(ctx, client.Message{Topic: topic, Payload: payload, QoS: 1, ContentType: protocol.ContentType})
}

// presence is the message that says whether the LO is connected.
func (l *link) presence(online bool, session string) client.Message {
	return client.Message{
		Topic: topic.ForSite(topic.SiteOnline, l.site.id), QoS: 1, Retain: true, ContentType: protocol.ContentType,
		Payload: protocol.Marshal(&protocol.Presence{
			V: protocol.Version, Online: online, Agent: l.journal.Epoch(), Version: l.version, Session: session,
		}),
	}
}

// up announces the site until the CO has it, or the link is gone again.
func (l *link) up(ctx context.Context, session string) {
	l.log.InfoContext(ctx, "link to the co is up")
	l.uplink.Connected(true)
	l.data.Connected(true)
	l.source.Retry()
	for ctx.Err() == nil {
		err := l.client.Publish(ctx, l.presence(true, session))
		if err == nil || ctx.Err() != nil {
			return
		}
		l.log.WarnContext(ctx, "presence of the site not taken yet", "err", err)
		_ = retry.Sleep(ctx, again) // its end ends the loop, too
	}
}

// handle takes what the CO sends.
func (l *link) handle(_ context.Context, m client.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	switch t.Kind { //nolint:exhaustive // nothing else is subscribed to
	case topic.SiteDesired:
		if len(m.Payload) > 0 { // an empty one clears the topic, and takes nothing back
			l.source.Put(m.Payload)
		}
		return nil
	case topic.Ack:
		var a protocol.Ack
		if err := protocol.Unmarshal(m.Payload, &a); err != nil {
			return err
		}
		if a.Stream == "" {
			l.uplink.Ack(a)
		}
		l.data.Ack(a)
		return nil
	case topic.Down:
		l.down.Offer(m.Payload)
		return nil
	default:
		return protocol.Errorf(protocol.Invalid, "unexpected topic %s", m.Topic)
	}
}

// offer takes up a desired state. Only an error that may pass is returned.
func (l *link) offer(ctx context.Context, payload []byte) error {
	adopted, err := l.desired.Offer(ctx, payload)
	switch {
	case err == nil:
		if adopted {
			l.data.Adopt()
			if m, ok := l.desired.Current(); ok {
				directRules(l.down, m)
			}
			l.site.pokeAll()
		}
		return nil
	case protocol.KindOf(err) != protocol.Invalid && protocol.KindOf(err) != protocol.Conflict:
		return err
	}
	l.log.ErrorContext(ctx, "desired state refused; the one before stays in force", "err", err)
	digest := protocol.DigestOf(payload)
	if l.refused == digest {
		return nil // said before
	}
	refused := protocol.Adopted{V: protocol.Version, Reason: err.Error()}
	var m protocol.SiteDesired
	if protocol.Unmarshal(payload, &m) == nil {
		refused.Generation, refused.Commit = m.Generation, m.Commit
	}
	f := siteFact(protocol.DesiredRefused, &refused, time.Now())
	f.Key = "refused"
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.refused = digest
	return nil
}

// stop says goodbye, so that nobody takes the site for lost, and ends the link.
func (l *link) stop(ctx context.Context) error {
	var errs []error
	if l.client.Up() {
		short, cancel := context.WithTimeout(ctx, farewell)
		defer cancel()
		if err := l.client.Publish(short, l.presence(false, "")); err != nil && protocol.KindOf(err) != protocol.Unavailable && short.Err() == nil {
			errs = append(errs, fmt.Errorf("say goodbye: %w", err))
		}
	}
	return errors.Join(append(errs, l.client.Stop(ctx))...)
}
