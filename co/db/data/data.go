package datadb

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// maxAnomalies is how many messages of one batch that cannot be delivered are recorded
// one by one; the rest are counted. maxAnomalyBody is how many bytes of one are
// recorded.
const (
	maxAnomalies   = 10
	maxAnomalyBody = 64 << 10
)

// CommitData commits a batch of machine data in one transaction, by the contract of
// package stream, each stream with a position of its own. Before the commit it hands
// deliver what the batch brings, in order, so that a message is delivered at least
// once; an error of deliver leaves the batch uncommitted and is returned. deliver
// is not called where there is nothing to deliver. A message that cannot be applied
// becomes an anomaly and does not hold up the stream. A batch of a stream that no
// rule names is delivered and not stored.
func (s *Store) CommitData(
	ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event, deliver func(context.Context, []fleet.Delivery) error,
) (protocol.Ack, error) {
	rule, err := ruleOf(b.Stream)
	if err != nil {
		return protocol.Ack{}, err
	}
	if len(events) == 0 {
		return s.probe(ctx, site, b)
	}
	var c *dataCommit
	commit := func(tx pgx.Tx) error {
		row, err := lockStream(ctx, tx, site, b.Stream)
		if err != nil {
			return err
		}
		c = &dataCommit{site: site, rule: rule, batch: b, row: row, deliver: deliver}
		c.Advance = c.row.Follow(b, len(events))
		if c.Fresh == 0 && c.Gap == nil {
			return nil
		}
		if c.row.store && !s.days.has(c.row.now) {
			return errNoPartition
		}
		c.messages = decodeData(stream.Number(events, c.Fresh, c.row.Seq))
		return c.write(ctx, tx)
	}
	what := fmt.Sprintf("commit data of site %s, rule %s", site, rule)
	err = s.db.Tx(ctx, what, commit)
	if lacksPartition(err) {
		if err = s.makePartitions(ctx); err == nil {
			err = s.db.Tx(ctx, what, commit)
		}
	}
	if err != nil {
		return protocol.Ack{}, err
	}
	s.countData(ctx, c, len(events))
	return c.row.Ack(b), nil
}

func (s *Store) countData(ctx context.Context, c *dataCommit, sent int) {
	s.metrics.messages.Add(float64(c.applied))
	s.metrics.stored.Add(float64(len(c.stored)))
	s.metrics.late.Add(float64(c.late))
	s.db.Counts.Duplicates.Add(float64(sent - c.Fresh - c.LeftOut))
	s.db.Counts.Anomalies.Add(float64(c.refused))
	if c.Gap != nil {
		s.db.Counts.Lost.Add(float64(c.Gap.Lost))
		s.db.Log.WarnContext(ctx, "site declared lost data", "site_id", c.site, "rule", c.rule, "reason", c.Gap.Message("stream", "message"))
	}
}

// A dataMessage is an event of a data stream with its body decoded.
type dataMessage struct {
	*protocol.Event
	protocol.DataMessage
	reason string // why it cannot be delivered; empty where it can
}

func decodeData(events []protocol.Event) []dataMessage {
	out := make([]dataMessage, len(events))
	for i := range events {
		m := &out[i]
		m.Event = &events[i]
		switch m.Kind {
		case protocol.DataEvent:
			if err := protocol.Unmarshal(m.Body, &m.DataMessage); err != nil {
				m.reason = err.Error()
			} else {
				m.reason = checkMessage(&m.DataMessage)
			}
		case protocol.DataExpired, protocol.RetainedBegin, protocol.RetainedEnd, protocol.Superseded, protocol.DataLost:
		default:
			m.reason = fmt.Sprintf("kind %.40q is not known in a stream of machine data", m.Kind)
		}
	}
	return out
}

// maxText bounds the texts of a message: MQTT carries the length of each in two
// bytes (MQTT 5, section 1.5.4).
const (
	maxText  = 1<<16 - 1
	maxPairs = 256
)

// checkMessage returns why a broker or the database would refuse a message; "" where
// neither would.
func checkMessage(m *protocol.DataMessage) string {
	name := topic.ForTail(topic.Data, "x", m.Topic)
	switch t, err := topic.Parse(name); {
	case err != nil || t.Kind != topic.Data:
		return fmt.Sprintf("topic %.200q: want a topic name without wildcards", m.Topic)
	case len(name)+64 > maxText:
		return fmt.Sprintf("a topic of %d bytes: MQTT has room for %d with its prefix", len(m.Topic), maxText)
	case m.QoS > 2:
		return fmt.Sprintf("topic %.200q: QoS %d: want 0, 1 or 2", m.Topic, m.QoS)
	case strings.ContainsAny(m.ResponseTopic, "+#"): // [MQTT-3.3.2-14]
		return fmt.Sprintf("topic %.200q: response topic %.200q has a wildcard", m.Topic, m.ResponseTopic)
	case len(m.Properties)%2 != 0 || len(m.Properties) > 2*maxPairs:
		return fmt.Sprintf("topic %.200q: %d names and values of properties: want pairs, and at most %d", m.Topic, len(m.Properties), maxPairs)
	case len(m.CorrelationData) > maxText || !fits(m.ContentType) || !fits(m.ResponseTopic) || slices.ContainsFunc(m.Properties, unfit):
		return fmt.Sprintf("topic %.200q: a property is longer than %d bytes or holds a zero byte", m.Topic, maxText)
	}
	return ""
}

func fits(s string) bool { return len(s) <= maxText && strings.IndexByte(s, 0) < 0 }

func unfit(s string) bool { return !fits(s) }

// A dataCommit is one batch of machine data on its way into the database.
type dataCommit struct {
	site    protocol.SiteID
	rule    string
	batch   protocol.Batch
	row     streamRow
	deliver func(context.Context, []fleet.Delivery) error
	stream.Advance

	messages   []dataMessage
	deliveries []fleet.Delivery
	stored     []*dataMessage
	retained   *retainedSet
	events     []fleet.Event
	anomalies  []projection.Anomaly

	applied, late, refused int
}

// write folds the messages into what they change and records it. The messages are
// delivered once the database has accepted what they store.
func (c *dataCommit) write(ctx context.Context, tx pgx.Tx) error {
	var err error
	if c.retained, err = loadRetained(ctx, tx, c); err != nil {
		return err
	}
	if c.Gap != nil {
		if c.Gap.NewEpoch {
			c.row.era++
		}
		// Of what was to come between a retained_begin and its end, some is lost.
		c.row.sweep = 0
		c.addEvent(fleet.JournalGap, nil, c.Gap.Message("stream", "message"))
	}
	for i := range c.messages {
		if err := c.apply(ctx, tx, &c.messages[i]); err != nil {
			return err
		}
	}
	c.summarize()
	q := &pgx.Batch{}
	c.retained.queue(q, c)
	c.queuePosition(q)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return err
	}
	if err := c.store(ctx, tx); err != nil {
		return err
	}
	if len(c.deliveries) > 0 {
		if err := c.deliver(ctx, c.deliveries); err != nil {
			return err
		}
	}
	if len(c.events) == 0 {
		return nil
	}
	q = &pgx.Batch{}
	db.QueueAnomalies(q, c.site, c.row.Epoch, c.anomalies)
	db.QueueEvents(q, c.events)
	return tx.SendBatch(ctx, q).Close()
}

func (c *dataCommit) apply(ctx context.Context, tx pgx.Tx, m *dataMessage) error {
	if m.reason != "" {
		c.refuse(m)
		return nil
	}
	switch m.Kind {
	case protocol.DataEvent:
		c.message(m)
	case protocol.DataExpired:
		c.late++
	case protocol.DataLost:
		var loss protocol.Loss
		if err := protocol.Unmarshal(m.Body, &loss); err != nil {
			m.reason = err.Error()
			c.refuse(m)
			return nil
		}
		c.row.sweep = 0 // maybe some of what was retained is lost
		what := "damaged in their journal and lost, check the disk of the site"
		if loss.Limit() {
			what = "dropped under the limit of their stream"
		}
		c.addEvent(string(protocol.DataLost), m, fmt.Sprintf("%d messages (%d bytes) %s", loss.Records, loss.Bytes, what))
	case protocol.RetainedBegin:
		c.row.sweep, c.row.begun = m.Seq, m.UnixMillis
	case protocol.RetainedEnd:
		if c.row.sweep == 0 {
			return nil
		}
		removed, err := c.retained.sweep(ctx, tx, c)
		if err != nil {
			return err
		}
		for _, name := range removed {
			c.deliveries = append(c.deliveries, fleet.Delivery{
				Site: c.site, Stream: c.batch.Stream, Seq: m.Seq, Time: siteTime(m.UnixMillis),
				Message: protocol.DataMessage{V: protocol.Version, Topic: name, QoS: 1, Retain: true},
			})
		}
		c.row.sweep = 0
	}
	return nil
}

// message applies one message that can be delivered.
func (c *dataCommit) message(m *dataMessage) {
	m.Properties = stream.MarkUnsynced(m.Properties, m.Unsynced)
	d := fleet.Delivery{Site: c.site, Stream: c.batch.Stream, Seq: m.Seq, Time: siteTime(m.UnixMillis), Message: m.DataMessage}
	late := false
	if m.ExpiryMillis > 0 {
		left := remaining(m.ExpiryMillis, m.UnixMillis, c.batch.SentMillis)
		late, d.ExpiresIn = left <= 0, left
	}
	// What arrived after the retained_begin is no repetition: the end may be missing.
	if m.Retain && c.row.sweep > 0 && m.UnixMillis <= c.row.begun && c.retained.has(d) {
		c.retained.set(d) // a repetition: it protects the message from the sweep and is not delivered
		return
	}
	c.applied++
	if c.row.store {
		c.stored = append(c.stored, m)
	}
	if late {
		c.late++
		if !m.Retain {
			return
		}
		// It replaced what was retained before, and has expired itself.
		d.Message.Payload, d.ExpiresIn = nil, 0
	}
	if m.Retain {
		c.retained.set(d)
	}
	c.deliveries = append(c.deliveries, d)
}

// remaining returns how much of a message's life is left, by the sender's clock. A
// clock that was set back makes no message younger than new.
func remaining(expiry uint64, arrived, sent int64) time.Duration {
	const longest = uint64(1<<63-1) / uint64(time.Millisecond)
	left := time.Duration(min(expiry, longest)) * time.Millisecond
	if sent > arrived && sent-arrived < int64(longest) {
		left -= time.Duration(sent-arrived) * time.Millisecond
	}
	return left
}

// siteTime returns the site's clock, or the zero time where it cannot be a time.
func siteTime(unixMillis int64) time.Time {
	const year10000 = 253402300800000
	if unixMillis <= 0 || unixMillis >= year10000 {
		return time.Time{}
	}
	return time.UnixMilli(unixMillis).UTC()
}

// refuse records a message that cannot be delivered, or only counts it where the batch
// had many.
func (c *dataCommit) refuse(m *dataMessage) {
	c.refused++
	if c.refused > maxAnomalies {
		return
	}
	c.anomalies = append(c.anomalies, projection.Anomaly{
		Seq: m.Seq, Kind: protocol.EventKind(bounded(string(m.Kind))), Reason: bounded(m.reason),
		Body: bytes.Clone(m.Body[:min(len(m.Body), maxAnomalyBody)]),
	})
	c.addEvent(string(protocol.AnomalyEvent), m, m.reason)
}

func (c *dataCommit) summarize() {
	if more := c.refused - maxAnomalies; more > 0 {
		c.addEvent(string(protocol.AnomalyEvent), nil, fmt.Sprintf("%d more messages of the same batch could not be delivered", more))
	}
}

// addEvent adds an event for the feed. m may be nil.
func (c *dataCommit) addEvent(kind string, m *dataMessage, message string) {
	e := fleet.Event{Kind: kind, Time: c.row.now, Site: c.site, Message: bounded(fmt.Sprintf("rule %s: %s", c.rule, message))}
	if m != nil {
		if t := siteTime(m.UnixMillis); !t.IsZero() {
			e.SiteTime, e.Unsynced = &t, m.Unsynced
		}
	}
	c.events = append(c.events, e)
}

// bounded makes a text storable and not too long.
func bounded(s string) string {
	const limit = 1 << 10
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.ToValidUTF8(pgdb.Storable(s), "\uFFFD")
}
