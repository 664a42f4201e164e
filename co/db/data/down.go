package datadb

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// senderLease is how many seconds a stream belongs to the replica that last sent
// something of it, so that several replicas with one broker do not send the same.
const senderLease = "30"

const (
	// defaultDownBytes bounds a stream whose rule names no bound, as protocol.DataRule says.
	defaultDownBytes = 256 << 20
	// rowBytes is counted for each queued message beside its body.
	rowBytes = 64
)

// A downStream is a locked row of down_streams, and what a transaction makes of it.
type downStream struct {
	site   protocol.SiteID
	rule   string
	online bool

	epoch                    string // empty: the database's
	seq, sent, acked, resync uint64
	bytes                    int64
	stale                    bool

	sender string
	busy   float64 // seconds for which the sender has the stream

	limit int64 // of bytes
}

type downKey struct {
	site protocol.SiteID
	rule string
}

// PutDown queues messages for sites, in their order, and records what they leave
// retained. Above the bound of a rule its oldest messages are dropped, and counted.
// Volatile messages for a site that is not connected are not queued. Other replicas
// are notified by ListenDown.
func (s *Store) PutDown(ctx context.Context, list []fleet.DownMessage) error {
	return s.db.Tx(ctx, "queue machine data for sites", func(tx pgx.Tx) error {
		streams, err := lockStreams(ctx, tx, list)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		queueDown(b, streams, list)
		for _, l := range streams {
			b.Queue(`update down_streams set seq = $3, queued_bytes = $4 where site = $1 and rule = $2`, l.site, l.rule, int64(l.seq), l.bytes)
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		reported := map[protocol.SiteID]bool{}
		for _, l := range streams {
			if l.bytes > l.limit {
				if err := s.dropOldest(ctx, tx, l); err != nil {
					return err
				}
			}
			if reported[l.site] {
				continue
			}
			reported[l.site] = true
			if _, err := tx.Exec(ctx, `select pg_notify(`+downChannel+`, $1)`, string(l.site)); err != nil {
				return err
			}
		}
		return nil
	})
}

// lockStreams locks the streams of the messages, in one order for all transactions,
// and makes those that are new.
func lockStreams(ctx context.Context, tx pgx.Tx, list []fleet.DownMessage) ([]*downStream, error) {
	limits := map[downKey]int64{}
	for _, m := range list {
		limit := int64(defaultDownBytes)
		if m.Rule.MaxBytes > 0 {
			limit = int64(min(m.Rule.MaxBytes, math.MaxInt64))
		}
		limits[downKey{m.Site, m.Rule.Name}] = limit
	}
	var sites, rules []string
	for k := range limits {
		sites, rules = append(sites, string(k.site)), append(rules, k.rule)
	}
	for made := false; ; made = true {
		streams, err := selectStreams(ctx, tx, sites, rules)
		if err != nil {
			return nil, err
		}
		if len(streams) == len(limits) {
			for _, l := range streams {
				l.limit = limits[downKey{l.site, l.rule}]
			}
			return streams, nil
		}
		if made {
			return nil, protocol.Errorf(protocol.NotFound, "machine data for a site that does not exist")
		}
		// Another transaction may make the same; this one then waits for its end.
		_, err = tx.Exec(ctx, `insert into down_streams (site, rule)
			select u.s, u.r from unnest($1::text[], $2::text[]) as u (s, r) join sites on sites.id = u.s order by 1, 2
			on conflict do nothing`, sites, rules)
		if err != nil {
			return nil, err
		}
	}
}

func selectStreams(ctx context.Context, tx pgx.Tx, sites, rules []string) ([]*downStream, error) {
	return pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (*downStream, error) {
		l := &downStream{}
		return l, row.Scan(&l.site, &l.rule, &l.online, &l.epoch, &l.seq, &l.sent, &l.acked, &l.resync, &l.bytes, &l.stale, &l.sender, &l.busy)
	}, `select l.site, l.rule, s.online, l.epoch, l.seq, l.sent, l.acked, l.resync, l.queued_bytes, l.stale,
			l.sender, coalesce(extract(epoch from l.sender_at - now()), -1e6)::float8 + `+senderLease+`
		from down_streams l join sites s on s.id = l.site
		where (l.site, l.rule) in (select * from unnest($1::text[], $2::text[]))
		order by l.site, l.rule for update of l`, sites, rules)
}

// queueDown gives the messages their sequences and adds the statements that
// store them: one insert for all, and what they leave retained.
func queueDown(b *pgx.Batch, streams []*downStream, list []fleet.DownMessage) {
	byKey := map[downKey]*downStream{}
	for _, l := range streams {
		byKey[downKey{l.site, l.rule}] = l
	}
	var sites, rules []string
	var seqs []int64
	var sizes []int32
	var bodies [][]byte
	var retain, volatile []bool
	var lives []*int64 // milliseconds
	for _, m := range list {
		l := byKey[downKey{m.Site, m.Rule.Name}]
		if m.Volatile && !l.online {
			continue
		}
		body := protocol.Marshal(&m.Message)
		var life *int64
		if e := m.Message.ExpiryMillis; e > 0 {
			ms := int64(min(e, math.MaxInt32*1000))
			life = &ms
		}
		l.seq++
		size := int32(len(body) + rowBytes)
		l.bytes += int64(size)
		sites, rules, seqs, bodies = append(sites, string(m.Site)), append(rules, m.Rule.Name), append(seqs, int64(l.seq)), append(bodies, body)
		sizes, retain, volatile, lives = append(sizes, size), append(retain, m.Message.Retain), append(volatile, m.Volatile), append(lives, life)
		if m.Message.Retain {
			queueRetained(b, m, body, life)
		}
	}
	if len(seqs) == 0 {
		return
	}
	b.Queue(`insert into down_queue (site, rule, seq, kind, body, size, retain, volatile, expires_at)
		select s, r, n, $9, b, z, t, v, now() + e * interval '1 millisecond'
		from unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::integer[], $6::boolean[], $7::boolean[], $8::bigint[])
			as u (s, r, n, b, z, t, v, e)`,
		sites, rules, seqs, bodies, sizes, retain, volatile, lives, string(protocol.DataEvent))
}

func queueRetained(b *pgx.Batch, m fleet.DownMessage, body []byte, life *int64) {
	if len(m.Message.Payload) == 0 {
		b.Queue(`delete from down_retained where site = $1 and rule = $2 and topic = $3`, m.Site, m.Rule.Name, m.Message.Topic)
		return
	}
	b.Queue(`insert into down_retained (site, rule, topic, body, expires_at)
		values ($1, $2, $3, $4, now() + $5::bigint * interval '1 millisecond')
		on conflict (site, rule, topic) do update set body = excluded.body, accepted_at = now(), expires_at = excluded.expires_at`,
		m.Site, m.Rule.Name, m.Message.Topic, body, life)
}

// dropOldest brings a stream a twentieth below its bound, so that not every message
// above it drops one.
func (s *Store) dropOldest(ctx context.Context, tx pgx.Tx, l *downStream) error {
	excess := l.bytes - l.limit + l.limit/20
	return s.drop(ctx, tx, l, `seq in (select seq from
		(select seq, sum(size) over (order by seq) - size as before from down_queue where site = $1 and rule = $2) q where before < $3)`, excess)
}

// drop removes the queued messages of a stream that a condition names, the oldest
// among them, counts them, and makes an event of it at most once a minute.
func (s *Store) drop(ctx context.Context, tx pgx.Tx, l *downStream, condition string, arg any) error {
	var count, bytes int64
	var retained bool
	err := tx.QueryRow(ctx, `with removed as (delete from down_queue where site = $1 and rule = $2 and `+condition+` returning size, retain, kind)
		select count(*), coalesce(sum(size), 0), coalesce(bool_or(retain or kind <> $4), false) from removed`,
		l.site, l.rule, arg, string(protocol.DataEvent)).Scan(&count, &bytes, &retained)
	if err != nil || count == 0 {
		return err
	}
	l.bytes -= bytes
	l.stale = l.stale || retained
	var dropped, reported int64
	var due bool
	err = tx.QueryRow(ctx, `update down_streams set queued_bytes = $3, dropped = dropped + $4, stale = $5 where site = $1 and rule = $2
		returning dropped, reported, reported_at is null or reported_at < now() - interval '1 minute'`,
		l.site, l.rule, l.bytes, count, l.stale).Scan(&dropped, &reported, &due)
	if err != nil || !due {
		return err
	}
	if _, err := tx.Exec(ctx, `update down_streams set reported = dropped, reported_at = now() where site = $1 and rule = $2`, l.site, l.rule); err != nil {
		return err
	}
	return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: fleet.DataDropped, Site: l.site, Message: fmt.Sprintf(
		"%d messages for the site under the data rule %s were dropped, the oldest first: its bound was reached before the site acknowledged them", dropped-reported, l.rule)}})
}

// DownStreams returns the streams of a site by the names of their rules.
func (s *Store) DownStreams(ctx context.Context, site protocol.SiteID) ([]fleet.DownStream, error) {
	streams, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (l fleet.DownStream, err error) {
		var seconds float64
		err = row.Scan(&l.Rule, &l.Last, &l.Acked, &l.Bytes, &l.Dropped, &l.Stale, &l.Retains, &seconds)
		l.OldestAge = time.Duration(seconds * float64(time.Second))
		return l, err
	}, `select l.rule, l.seq, l.acked, l.queued_bytes, l.dropped, l.stale,
			exists (select from down_retained r where r.site = l.site and r.rule = l.rule),
			coalesce((select extract(epoch from now() - q.accepted_at) from down_queue q
				where q.site = l.site and q.rule = l.rule order by q.seq limit 1), 0)::float8
		from down_streams l where l.site = $1 order by l.rule`, site)
	return streams, pgdb.Classify("read streams of machine data for site "+string(site), err)
}

// DownBatch reads what follows a sequence, at most 1,000 messages, and notes that
// it may be sent. What is older than MaxAge is dropped first.
func (s *Store) DownBatch(ctx context.Context, r fleet.DownRead) (fleet.DownBatch, error) {
	var out fleet.DownBatch
	err := s.db.Tx(ctx, "read machine data for site "+string(r.Site), func(tx pgx.Tx) error {
		out = fleet.DownBatch{}
		streams, err := selectStreams(ctx, tx, []string{string(r.Site)}, []string{r.Rule})
		if err != nil || len(streams) == 0 {
			return err
		}
		l := streams[0]
		out.Epoch = s.epochOf(l)
		if l.sender != "" && l.sender != r.Sender && l.busy > 0 {
			out.Busy = time.Duration(l.busy * float64(time.Second))
			return nil
		}
		if r.MaxAge > 0 {
			// The oldest ones without a gap: a clock may have stepped back between two.
			err := s.drop(ctx, tx, l, `seq < coalesce((select seq from down_queue where site = $1 and rule = $2
				and queued_at >= now() - $3::float8 * interval '1 second' order by seq limit 1), 9223372036854775807)`, r.MaxAge.Seconds())
			if err != nil {
				return err
			}
		}
		out.Last = l.seq
		if err := readDown(ctx, tx, r, &out); err != nil {
			return err
		}
		n := len(out.Events)
		if n == 0 || out.Events[n-1].Seq <= l.sent && l.sender == r.Sender && l.busy > 10 {
			return nil // one write serves many batches
		}
		_, err = tx.Exec(ctx, `update down_streams set sent = seq, sender = $3, sender_at = now() where site = $1 and rule = $2`, r.Site, r.Rule, r.Sender)
		return err
	})
	return out, err
}

func readDown(ctx context.Context, tx pgx.Tx, r fleet.DownRead, out *fleet.DownBatch) error {
	var head *int64
	err := tx.QueryRow(ctx, `select now(), (select min(seq) from down_queue where site = $1 and rule = $2)`, r.Site, r.Rule).Scan(&out.Now, &head)
	if err != nil {
		return err
	}
	out.Trimmed = out.Last
	if head != nil {
		out.Trimmed = uint64(*head) - 1
	}
	out.Events, err = pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (e protocol.Event, err error) {
		var applied time.Time
		var expired bool
		var body []byte
		err = row.Scan(&e.Seq, &e.Kind, &body, &applied, &expired)
		e.UnixMillis = applied.UnixMilli()
		e.Body = body
		if err == nil && expired {
			expire(&e)
		}
		return e, err
	}, `select seq, kind, body, accepted_at, coalesce(expires_at <= now(), false) from
			(select *, sum(size) over (order by seq) - size as before from
				(select * from down_queue where site = $1 and rule = $2 and seq > $3 order by seq limit 1000) a) b
		where before = 0 or before + size <= $4 order by seq`, r.Site, r.Rule, int64(r.After), r.MaxBytes)
	return err
}

// AckDown applies a site's Ack of a stream: what the site has is deleted here. first is
// set for the first Ack of a connection, which reports the position of the site. Where that
// shows that one of the two lost its state, everything that the site should hold
// retained is queued again, between RetainedBegin and RetainedEnd.
func (s *Store) AckDown(ctx context.Context, site protocol.SiteID, rule string, a protocol.Ack, first bool) (fleet.DownStream, error) {
	var out fleet.DownStream
	err := s.db.Tx(ctx, "apply ack of machine data of site "+string(site), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into down_streams (site, rule) values ($1, $2) on conflict do nothing`, site, rule); err != nil {
			return err
		}
		streams, err := selectStreams(ctx, tx, []string{string(site)}, []string{rule})
		if err != nil {
			return err
		}
		l := streams[0]
		switch {
		case a.Epoch != s.epochOf(l):
			// A site without an epoch, to which nothing was ever sent, has lost nothing.
			lost := first && (a.Epoch != "" || l.sent > 0)
			l.stale = l.stale || lost && l.resync <= l.acked
		case a.Seq > l.sent:
			err = s.skipPast(ctx, tx, l, a.Seq)
		case a.Seq >= l.acked:
			err = forget(ctx, tx, l, a.Seq)
		default:
			l.stale = l.stale || first && l.resync <= l.acked
		}
		if err == nil && l.stale && first {
			err = resync(ctx, tx, l)
		}
		if err != nil {
			return err
		}
		out = fleet.DownStream{Rule: rule, Epoch: s.epochOf(l), Last: l.seq, Acked: l.acked, Bytes: uint64(max(0, l.bytes)), Stale: l.stale}
		_, err = tx.Exec(ctx, `update down_streams set seq = $3, sent = $4, acked = $5, resync = $6, queued_bytes = $7, stale = $8
			where site = $1 and rule = $2`, site, rule, int64(l.seq), int64(l.sent), int64(l.acked), int64(l.resync), max(0, l.bytes), l.stale)
		return err
	})
	return out, err
}

// RenewDown begins a new epoch of a stream, in place of one that the site has retired.
// The site is then asked where it stands, and gets everything again that it should
// hold retained. Where the stream is of another epoch already, nothing changes.
func (s *Store) RenewDown(ctx context.Context, site protocol.SiteID, rule, retired string) error {
	return s.db.Tx(ctx, "renew stream of machine data for site "+string(site), func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `update down_streams set epoch = $3, stale = true, resync = 0
			where site = $1 and rule = $2 and coalesce(nullif(epoch, ''), $4) = $5`, site, rule, rand.Text(), s.db.Epoch(), retired)
		if err == nil && done.RowsAffected() > 0 {
			s.db.Log.WarnContext(ctx, "site does not accept the epoch of a stream of machine data any more; the stream got a new one",
				"site_id", site, "rule", rule, "retired_epoch", retired)
		}
		return err
	})
}

// epochOf returns the epoch of a stream.
func (s *Store) epochOf(l *downStream) string {
	if l.epoch != "" {
		return l.epoch
	}
	return s.db.Epoch()
}

// forget deletes the queued messages that the site has.
func forget(ctx context.Context, tx pgx.Tx, l *downStream, through uint64) error {
	if through == l.acked {
		return nil
	}
	var bytes int64
	err := tx.QueryRow(ctx, `with removed as (delete from down_queue where site = $1 and rule = $2 and seq <= $3 returning size)
		select coalesce(sum(size), 0) from removed`, l.site, l.rule, int64(through)).Scan(&bytes)
	l.acked, l.bytes = through, l.bytes-bytes
	return err
}

// skipPast moves the sequences of a stream past those that the site has and this
// database does not know: it was restored from an older backup. The queued messages
// have sequences that the site has received with other messages.
func (s *Store) skipPast(ctx context.Context, tx pgx.Tx, l *downStream, through uint64) error {
	if through > math.MaxInt64/4 {
		return protocol.Errorf(protocol.Invalid, "ack of the sequence %d, which no stream can have reached", through)
	}
	by := max(through, l.seq) // more than there are queued messages, so that no two collide while they move
	if _, err := tx.Exec(ctx, `update down_queue set seq = seq + $3 where site = $1 and rule = $2`, l.site, l.rule, int64(by)); err != nil {
		return err
	}
	s.db.Log.WarnContext(ctx, "site has machine data that the database does not know of: it was restored from a backup",
		"site_id", l.site, "rule", l.rule, "site_seq", through, "seq", l.seq)
	l.seq, l.sent, l.acked, l.resync, l.stale = l.seq+by, through, through, 0, true
	return nil
}

// resync queues everything that the site should hold retained under a stream.
func resync(ctx context.Context, tx pgx.Tx, l *downStream) error {
	begin := l.seq + 1
	var count, bytes int64
	err := tx.QueryRow(ctx, `with put as (
			insert into down_queue (site, rule, seq, kind, body, size, retain, accepted_at, expires_at)
			select site, rule, $3 + row_number() over (order by topic), $4, body, length(body) + $5, true, accepted_at, expires_at
			from down_retained where site = $1 and rule = $2 and (expires_at is null or expires_at > now()) returning size)
		select count(*), coalesce(sum(size), 0) from put`, l.site, l.rule, int64(begin), string(protocol.DataEvent), rowBytes).Scan(&count, &bytes)
	if err != nil {
		return err
	}
	end := begin + uint64(count) + 1
	_, err = tx.Exec(ctx, `insert into down_queue (site, rule, seq, kind, size) values ($1, $2, $3, $4, $7), ($1, $2, $5, $6, $7)`,
		l.site, l.rule, int64(begin), string(protocol.RetainedBegin), int64(end), string(protocol.RetainedEnd), rowBytes)
	l.seq, l.resync, l.stale, l.bytes = end, begin, false, l.bytes+bytes+2*rowBytes
	return err
}

// BeginDown prepares a site's streams for a new connection, at the replica sender: what
// rules that are not in keep have queued is dropped, and volatile messages that
// were accepted before have expired.
func (s *Store) BeginDown(ctx context.Context, site protocol.SiteID, sender string, keep []string) error {
	if keep == nil {
		keep = []string{}
	}
	return s.db.Tx(ctx, "prepare machine data for site "+string(site), func(tx pgx.Tx) error {
		old, err := pgdb.Rows(ctx, tx, pgx.RowTo[string], `select rule from down_streams where site = $1 and rule <> all($2)
			and (acked < seq or exists (select from down_retained r where r.site = $1 and r.rule = down_streams.rule)) order by rule for update`, site, keep)
		if err != nil {
			return err
		}
		for _, rule := range old {
			b := &pgx.Batch{}
			b.Queue(`delete from down_queue where site = $1 and rule = $2`, site, rule)
			b.Queue(`delete from down_retained where site = $1 and rule = $2`, site, rule)
			// stale: if the rule comes back, the site may still hold what it had.
			b.Queue(`update down_streams set dropped = dropped + seq - acked, reported = dropped + seq - acked, acked = seq, sent = seq,
				queued_bytes = 0, stale = true where site = $1 and rule = $2`, site, rule)
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			s.db.Log.InfoContext(ctx, "machine data of a removed rule was dropped", "site_id", site, "rule", rule)
		}
		if _, err := tx.Exec(ctx, `update down_streams set sender = $2, sender_at = now() where site = $1`, site, sender); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `update down_queue set expires_at = accepted_at where site = $1 and volatile and expires_at is distinct from accepted_at`, site)
		return err
	})
}

// expire turns an expired message into what the site needs of it: a record without
// content, or, for a retained message, the deletion of what its topic retained before.
func expire(e *protocol.Event) {
	var m protocol.DataMessage
	if e.Kind == protocol.DataEvent && protocol.Unmarshal(e.Body, &m) == nil && m.Retain {
		e.Body = protocol.Marshal(protocol.DataMessage{V: protocol.Version, Topic: m.Topic, QoS: m.QoS, Retain: true})
		return
	}
	e.Kind, e.Body = protocol.DataExpired, nil
}
