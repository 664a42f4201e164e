package datadb

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A retainedSet is what a batch does to the retained messages of its site.
type retainedSet struct {
	// pending are changes that are not written yet, by topic: a delivery without a
	// payload is a deletion.
	pending map[string]fleet.Delivery
	// known is what is retained of the topics that the batch may only repeat, with
	// the changes of the batch so far; nil where it repeats none.
	known map[string]retainedMessage
}

// retainedMessage is what distinguishes one message of a topic from another.
type retainedMessage struct {
	payload []byte
	time    time.Time
}

// loadRetained reads what the database holds of those retained messages of the
// batch that come between a retained_begin and its end.
func loadRetained(ctx context.Context, tx pgx.Tx, c *dataCommit) (*retainedSet, error) {
	set := &retainedSet{pending: map[string]fleet.Delivery{}}
	sweeping := c.row.sweep > 0
	var topics []string
	for i := range c.messages {
		m := &c.messages[i]
		sweeping = sweeping || m.Kind == protocol.RetainedBegin
		if sweeping && m.Retain && m.reason == "" {
			topics = append(topics, m.Topic)
		}
	}
	if len(topics) == 0 {
		return set, nil
	}
	set.known = make(map[string]retainedMessage, len(topics))
	type found struct {
		topic string
		retainedMessage
	}
	list, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (f found, err error) {
		var at *time.Time
		err = row.Scan(&f.topic, &f.payload, &at)
		if at != nil {
			f.time = *at
		}
		return f, err
	}, `select topic, payload, site_time from data_retained where site = $1 and topic = any($2)`, c.site, topics)
	for _, f := range list {
		set.known[f.topic] = f.retainedMessage
	}
	return set, err
}

// has reports whether the message is the one that is retained already: the same
// bytes, with arrivals at the site that differ by no more than its clock may have
// stepped.
func (s *retainedSet) has(d fleet.Delivery) bool {
	k, ok := s.known[d.Message.Topic]
	return ok && len(d.Message.Payload) > 0 && !d.Time.IsZero() && d.Time.Sub(k.time).Abs() <= sameMoment && bytes.Equal(k.payload, d.Message.Payload)
}

const sameMoment = time.Second

func (s *retainedSet) set(d fleet.Delivery) {
	s.pending[d.Message.Topic] = d
	if s.known == nil {
		return
	}
	if len(d.Message.Payload) == 0 {
		delete(s.known, d.Message.Topic)
	} else {
		s.known[d.Message.Topic] = retainedMessage{d.Message.Payload, d.Time}
	}
}

// sweep deletes what the stream retained before its retained_begin and was not named
// since, and returns the topics.
func (s *retainedSet) sweep(ctx context.Context, tx pgx.Tx, c *dataCommit) ([]string, error) {
	q := &pgx.Batch{}
	s.queue(q, c)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return nil, err
	}
	removed, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `delete from data_retained where site = $1 and stream = $2 and (epoch <> $3 or seq < $4)
		returning topic`, c.site, c.batch.Stream, c.row.Epoch, int64(c.row.sweep))
	slices.Sort(removed)
	for _, name := range removed {
		delete(s.known, name)
	}
	return removed, err
}

// queue writes the changes, in the order of their topics, so that two streams never
// deadlock.
func (s *retainedSet) queue(q *pgx.Batch, c *dataCommit) {
	if len(s.pending) == 0 {
		return
	}
	var removed []string
	var topics, contentTypes, responseTopics, properties []string
	var payloads, correlations [][]byte
	var seqs []int64
	var siteTimes, expires []*time.Time
	var qos []int16
	for _, name := range slices.Sorted(maps.Keys(s.pending)) {
		d := s.pending[name]
		if len(d.Message.Payload) == 0 {
			removed = append(removed, name)
			continue
		}
		var siteTime, until *time.Time
		if !d.Time.IsZero() {
			siteTime = &d.Time
		}
		if d.ExpiresIn > 0 {
			if at := c.row.now.Add(d.ExpiresIn); at.Year() < 10000 {
				until = &at
			}
		}
		pairs, _ := pgdb.JSON(pgdb.Filled(d.Message.Properties)) // strings always encode
		topics, seqs, qos = append(topics, name), append(seqs, int64(d.Seq)), append(qos, int16(d.Message.QoS))
		siteTimes, expires, payloads = append(siteTimes, siteTime), append(expires, until), append(payloads, d.Message.Payload)
		contentTypes, responseTopics = append(contentTypes, d.Message.ContentType), append(responseTopics, d.Message.ResponseTopic)
		correlations, properties = append(correlations, pgdb.Filled(d.Message.CorrelationData)), append(properties, string(pairs))
	}
	clear(s.pending)
	if len(removed) > 0 {
		q.Queue(`delete from data_retained where site = $1 and topic = any($2)`, c.site, removed)
	}
	if len(topics) == 0 {
		return
	}
	q.Queue(`insert into data_retained (site, stream, epoch, topic, seq, site_time, expires_at, qos, payload, content_type, response_topic,
			correlation, properties)
		select $1, $2, $3, t, s, st, e, q, p, ct, rt, c, case when pr = '[]' then '{}' else array(select jsonb_array_elements_text(pr::jsonb)) end
		from unnest($4::text[], $5::bigint[], $6::timestamptz[], $7::timestamptz[], $8::smallint[], $9::bytea[], $10::text[], $11::text[],
			$12::bytea[], $13::text[]) as u (t, s, st, e, q, p, ct, rt, c, pr)
		on conflict (site, topic) do update set stream = excluded.stream, epoch = excluded.epoch, seq = excluded.seq,
			site_time = excluded.site_time, expires_at = excluded.expires_at, qos = excluded.qos, payload = excluded.payload,
			content_type = excluded.content_type, response_topic = excluded.response_topic, correlation = excluded.correlation,
			properties = excluded.properties`,
		c.site, c.batch.Stream, c.row.Epoch, topics, seqs, siteTimes, expires, qos, payloads, contentTypes, responseTopics, correlations, properties)
}

// retainedPage bounds how many retained messages are read at once.
const retainedPage = 500

// RepublishRetained hands deliver everything that is retained at the sites, for a
// broker that has forgotten it, or may have. While a site's messages are handed
// over, no batch of its data is committed, so that what is handed over is never
// older than what deliver had of a batch before; its events go on. An error of deliver
// is returned.
func (s *Store) RepublishRetained(ctx context.Context, deliver func(context.Context, []fleet.Delivery) error) error {
	sites, err := pgdb.Rows(ctx, s.db, pgx.RowTo[protocol.SiteID], `select distinct site from data_retained order by site`)
	if err != nil {
		return pgdb.Classify("list sites with retained data", err)
	}
	for _, site := range sites {
		err := s.db.Tx(ctx, "read retained data of site "+string(site), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select from streams where site = $1 and stream <> '' order by stream for no key update`, site); err != nil {
				return err
			}
			return republishSite(ctx, tx, site, deliver)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func republishSite(ctx context.Context, tx pgx.Tx, site protocol.SiteID, deliver func(context.Context, []fleet.Delivery) error) error {
	for after := ""; ; {
		page, err := pgdb.Rows(ctx, tx, scanRetained, `select topic, stream, seq, site_time, extract(epoch from expires_at - now())::float8, qos,
			payload, content_type, response_topic, correlation, properties from data_retained
			where site = $1 and topic > $2 and (expires_at is null or expires_at > now()) order by topic limit $3`, site, after, retainedPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for i := range page {
			page[i].Site = site
		}
		if err := deliver(ctx, page); err != nil {
			return err
		}
		if len(page) < retainedPage {
			return nil
		}
		after = page[len(page)-1].Message.Topic
	}
}

func scanRetained(row pgx.CollectableRow) (d fleet.Delivery, err error) {
	var at *time.Time
	var left *float64
	m := &d.Message
	m.V, m.Retain = protocol.Version, true
	err = row.Scan(&m.Topic, &d.Stream, &d.Seq, &at, &left, &m.QoS, &m.Payload, &m.ContentType, &m.ResponseTopic, &m.CorrelationData, &m.Properties)
	if at != nil {
		d.Time = *at
	}
	if left != nil {
		d.ExpiresIn = time.Duration(max(*left, 0.001) * float64(time.Second))
	}
	return d, err
}
