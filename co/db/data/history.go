package datadb

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// maxPageBytes is how much payload one page of messages has, but for its last
// message.
const maxPageBytes = 8 << 20

// Messages returns stored messages of a site. A caller that continues with Read as
// After misses no message of a rule and gets none twice, as long as they are stored.
func (s *Store) Messages(ctx context.Context, f fleet.MessageFilter) (fleet.MessagePage, error) {
	var page fleet.MessagePage
	err := s.db.Tx(ctx, "read messages", func(tx pgx.Tx) error {
		// A message is committed together with the position of its stream: all up to the
		// positions can be read.
		heads, err := readHeads(ctx, tx, f.Site, f.Rule)
		if err != nil {
			return err
		}
		page, err = readPage(ctx, tx, f, heads)
		return err
	})
	return page, err
}

// LastMessages returns the position of the newest message of each rule of a site that
// stores them.
func (s *Store) LastMessages(ctx context.Context, site protocol.SiteID) (fleet.Positions, error) {
	heads, err := readHeads(ctx, s.db, site, "")
	return heads, pgdb.Classify("read messages", err)
}

type ruleHead struct {
	rule string
	at   fleet.Position
}

func readHeads(ctx context.Context, pool pgdb.Querier, site protocol.SiteID, rule string) (fleet.Positions, error) {
	list, err := pgdb.Rows(ctx, pool, func(row pgx.CollectableRow) (h ruleHead, err error) {
		err = row.Scan(&h.rule, &h.at.Era, &h.at.Seq)
		return h, err
	}, `select substr(stream, length($3) + 1), era, seq from streams
		where site = $1 and starts_with(stream, $3) and keep_millis is not null and ($2 = '' or stream = $3 || $2)`,
		site, rule, protocol.DataStream(""))
	heads := fleet.Positions{}
	for _, h := range list {
		heads[h.rule] = h.at
	}
	return heads, err
}

// readPage reads what is after f.After and not after heads.
func readPage(ctx context.Context, tx pgx.Tx, f fleet.MessageFilter, heads fleet.Positions) (page fleet.MessagePage, err error) {
	limit := fleet.Size(f.Limit)
	list, err := pgdb.Rows(ctx, tx, scanMessage(f.Site), messagesSQL(f.Newest), messageArgs(f, heads, limit)...)
	if err != nil {
		return page, err
	}
	if f.Newest {
		slices.Reverse(list)
	}
	page.Messages, page.Read = list, fleet.Positions{}
	maps.Copy(page.Read, f.After)
	bytes := 0
	for _, m := range list {
		bytes += len(m.Message.Payload)
	}
	// Without more to come, what the filter excluded was read as well.
	page.More = len(list) == limit || bytes >= maxPageBytes
	if page.More && !f.Newest {
		for _, m := range list {
			page.Read[m.Rule] = m.Position
		}
		return page, nil
	}
	maps.Copy(page.Read, heads)
	return page, nil
}

// messagesSQL merges the messages of the rules. They are merged by the time of
// receipt made monotonic within each rule: the CO's clock may have stepped back.
func messagesSQL(newest bool) string {
	sql := `select rule, era, seq, received_at, site_time, topic, payload, qos, retain, content_type, response_topic, correlation, properties
		from (select x.*, sum(length(x.payload)) over (order by x.merge ASC, x.rule, x.era ASC, x.seq ASC) - length(x.payload) as before
			from unnest($2::text[], $3::int[], $4::bigint[], $5::int[], $6::bigint[]) as r (rule, from_era, from_seq, to_era, to_seq),
			lateral (select m.*, MAX(m.received_at) over (order by m.era ASC, m.seq ASC) as merge from (
				select * from data_messages d where d.site = $1 and d.rule = r.rule
					and (d.era, d.seq) > (r.from_era, r.from_seq) and (d.era, d.seq) <= (r.to_era, r.to_seq)
					and ($7 = '' or d.topic ~ $7) and d.received_at >= $8 and d.received_at < $9
				order by d.era ASC, d.seq ASC limit $10) m) x
			order by x.merge ASC, x.rule, x.era ASC, x.seq ASC limit $10) y
		where before < $11 order by merge ASC, rule, era ASC, seq ASC`
	if newest {
		sql = strings.NewReplacer("ASC", "desc", "MAX", "min").Replace(sql)
	}
	return sql
}

// The bounds of time of a filter that has none.
var (
	always = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	never  = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

func messageArgs(f fleet.MessageFilter, heads fleet.Positions, limit int) []any {
	var names []string
	var fromEra, toEra []int32
	var fromSeq, toSeq []int64
	for rule, head := range heads {
		was, ok := f.After[rule]
		if !ok {
			was.Era = -1
		}
		if !was.Less(head) {
			continue
		}
		names = append(names, rule)
		fromEra, fromSeq = append(fromEra, was.Era), append(fromSeq, int64(was.Seq))
		toEra, toSeq = append(toEra, head.Era), append(toSeq, int64(head.Seq))
	}
	since, until := f.Since, f.Until
	if since.Before(always) {
		since = always
	}
	if until.IsZero() || until.After(never) {
		until = never
	}
	return []any{f.Site, names, fromEra, fromSeq, toEra, toSeq, topicPattern(f.Topic), since, until, limit, maxPageBytes}
}

// topicPattern is a regular expression that matches the topics which an MQTT topic
// filter matches (MQTT 5, section 4.7); "" for all.
func topicPattern(filter string) string {
	if filter == "" || filter == "#" {
		return ""
	}
	var b strings.Builder
	for i, level := range strings.Split(filter, "/") {
		switch {
		case level == "#" && i == 0:
			b.WriteString(".*")
			continue
		case level == "#":
			b.WriteString("(/.*)?") // a/# matches a, too
			continue
		case i > 0:
			b.WriteByte('/')
		}
		if level == "+" {
			b.WriteString("[^/]*")
		} else {
			b.WriteString(regexp.QuoteMeta(level))
		}
	}
	return "^" + b.String() + "$"
}

func scanMessage(site protocol.SiteID) func(row pgx.CollectableRow) (fleet.Message, error) {
	return func(row pgx.CollectableRow) (m fleet.Message, err error) {
		m.Site, m.Message.V = site, protocol.Version
		d := &m.Message
		err = row.Scan(&m.Rule, &m.Era, &m.Seq, &m.Received, &m.SiteTime, &d.Topic, &d.Payload, &d.QoS, &d.Retain, &d.ContentType,
			&d.ResponseTopic, &d.CorrelationData, &d.Properties)
		return m, err
	}
}
