package campaign

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	mqtt "github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/testpart"
)

// rules is the file of the site: what plc@plant publishes below line/ is stored at the CO.
const rules = `apiVersion: colony/v1
kind: Site
metadata: {id: plant}
spec:
  data:
    rules:
      - {name: counts, direction: up, topics: ["line/#"], store: {keep: 1d}}
`

// A plc publishes numbers at the site, one after the other.
type plc struct {
	*colony
	client    *mqtt.Client
	published int
	acked     map[string]bool // those that the LO acknowledged
}

// connect puts the rule into force, and connects a client to the site's broker.
func (c *colony) connect() *plc {
	c.t.Helper()
	file := filepath.Join(c.dir, "site.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.must("site", "data", "set", site, "-f", file)
	p := &plc{colony: c, acked: map[string]bool{}}
	var err error
	p.client, err = mqtt.New(mqtt.Options{
		URLs: []string{"tcp://" + c.loMQTT}, ClientID: "plc@plant", Username: "plc@plant", MaxBackoff: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	testpart.Start(c.t, p.client)
	c.eventually("the rule is in force at the site", func() error {
		s, err := c.site()
		if err == nil && (len(s.Data) != 1 || s.DataFault != "") {
			err = fmt.Errorf("data rules %+v, %s", s.Data, s.DataFault)
		}
		return err
	})
	return p
}

// publish has the site store n numbers.
func (p *plc) publish(n int) {
	p.t.Helper()
	for range n {
		p.published++
		text := strconv.Itoa(p.published)
		p.eventually("the LO acknowledges a message", func() error {
			ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
			defer cancel()
			return p.client.Publish(ctx, mqtt.Message{Topic: "colony/v1/plant/data/line/count", Payload: []byte(text), QoS: 1})
		})
		p.acked[text] = true
	}
}

// held returns the numbers that the CO has stored.
func (p *plc) held() map[string]bool {
	p.t.Helper()
	out := map[string]bool{}
	for _, text := range p.texts("select convert_from(payload, 'UTF8') from data_messages") {
		out[text] = true
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > p.published {
			p.t.Errorf("the CO has a message %q that nobody published", text)
		}
	}
	return out
}

// missing returns how many acknowledged numbers the CO does not have.
func (p *plc) missing() (n int64) {
	p.t.Helper()
	held := p.held()
	for text := range p.acked {
		if !held[text] {
			n++
		}
	}
	return n
}

// texts reads a column of the CO's database.
func (c *colony) texts(sql string, args ...any) []string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rows, err := c.db.Query(ctx, sql, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}
