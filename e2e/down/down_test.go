package down

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const patience = time.Minute

// rules are those of the site plant.
const rules = `apiVersion: colony/v1
kind: Site
metadata: {id: plant}
spec:
  data:
    rules:
      - {name: recipes, direction: down, topics: ["#"], local: mes/recipes/, remote: recipes/, qos: 1}
      - {name: short, direction: down, topics: ["#"], local: mes/short/, remote: short/, qos: 1, ttl: 1s}
`

// A fleet is a CO, the LO of the site plant, and the links between them.
type fleet struct {
	t          *testing.T
	dir        string
	db         string
	co         *co.CO
	lo         *lo.LO
	mqtt, http *impair.Proxy
	coMQTT     string
	coHTTP     string
	loMQTT     string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), db: pgtest.New(t), coMQTT: "127.0.0.1:0", coHTTP: "127.0.0.1:0", loMQTT: "127.0.0.1:0"}
	if err := git.InitBare(t.Context(), filepath.Join(f.dir, "remote.git"), "main"); err != nil {
		t.Fatal(err)
	}
	f.commit(map[string][]byte{"sites/plant/site.yaml": []byte(rules)})
	f.startCO()
	f.mqtt, f.http = f.link(f.coMQTT), f.link(f.coHTTP)
	f.startLO()
	t.Cleanup(func() { f.stopLO(); f.stopCO() })
	return f
}

func (f *fleet) link(target string) *impair.Proxy {
	f.t.Helper()
	p, err := impair.Listen(target, impair.Profile{}, 1)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Close() })
	return p
}

func (f *fleet) logger(name string) *slog.Logger {
	return testpart.Logger(f.t).With("tier", name)
}

func (f *fleet) commit(files map[string][]byte) {
	f.t.Helper()
	repo, err := git.Open(f.t.Context(), git.Options{
		Dir: filepath.Join(f.dir, "work"), Remote: filepath.Join(f.dir, "remote.git"), Branch: "main", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	defer repo.Close()
	if _, err := repo.Commit(f.t.Context(), git.Change{Message: "change", Author: git.Author{Name: "t", Email: "t@example.com"}, Files: files}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) startCO() {
	f.t.Helper()
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT = filepath.Join(f.dir, "co"), f.db, f.coHTTP, f.coMQTT
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		f.t.Fatal(err)
	}
	o.Import.Roots = []string{examples}
	o.Git.Remote, o.Git.Interval, o.Logger = filepath.Join(f.dir, "remote.git"), 100*time.Millisecond, f.logger("co")
	if f.co, err = co.New(o); err != nil {
		f.t.Fatal(err)
	}
	if err := f.co.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.coHTTP, f.coMQTT = f.co.HTTPAddr(), f.co.MQTTAddr()
}

func (f *fleet) stopCO() { f.stop(&f.co) }
func (f *fleet) stopLO() { f.stop(&f.lo) }

func (f *fleet) stop(tier any) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	switch v := tier.(type) {
	case **co.CO:
		if *v != nil {
			err = (*v).Stop(ctx)
		}
		*v = nil
	case **lo.LO:
		if *v != nil {
			err = (*v).Stop(ctx)
		}
		*v = nil
	}
	if err != nil {
		f.t.Errorf("stop: %v", err)
	}
}

func (f *fleet) startLO() {
	f.t.Helper()
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "plant", filepath.Join(f.dir, "lo"), f.loMQTT, "", f.logger("lo")
	o.CO.MQTT, o.CO.HTTP, o.CO.KeepAlive = []string{"tcp://" + f.mqtt.Addr()}, "http://"+f.http.Addr(), 10*time.Second
	var err error
	if f.lo, err = lo.New(o); err != nil {
		f.t.Fatal(err)
	}
	if err := f.lo.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.loMQTT = f.lo.MQTTAddr()
}

func (f *fleet) cut() {
	f.mqtt.Set(impair.Profile{Mode: impair.Refuse})
	f.http.Set(impair.Profile{Mode: impair.Refuse})
}

func (f *fleet) mend() {
	f.mqtt.Set(impair.Profile{})
	f.http.Set(impair.Profile{})
}

// A listener is an MQTT client that keeps what it gets.
type listener struct {
	t *testing.T
	c *client.Client

	mu  sync.Mutex
	got []client.Message
}

func listen(t *testing.T, addr, user string, filters ...string) *listener {
	t.Helper()
	l := &listener{t: t}
	o := client.Options{
		URLs: []string{"tcp://" + addr}, ClientID: user + "/test", Username: user, MaxBackoff: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Handle: func(_ context.Context, m client.Message) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.got = append(l.got, m)
			return nil
		},
	}
	for _, f := range filters {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: f, QoS: 1})
	}
	var err error
	if l.c, err = client.New(o); err != nil {
		t.Fatal(err)
	}
	if err := l.c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.stop)
	eventually(t, user+" is connected", l.c.Up)
	return l
}

func (l *listener) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = l.c.Stop(ctx)
}

// payloads returns what came on a topic, in order, each once: a repetition bears
// the same sequence.
func (l *listener) payloads(topic string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	seen := map[string]bool{}
	for _, m := range l.got {
		if m.Topic != topic {
			continue
		}
		i := slices.IndexFunc(m.Properties, func(p client.Property) bool { return p.Key == "colony-seq" })
		if i < 0 {
			l.t.Errorf("message on %s without its sequence: %v", m.Topic, m.Properties)
			continue
		}
		if !seen[m.Properties[i].Value] {
			out = append(out, string(m.Payload))
		}
		seen[m.Properties[i].Value] = true
	}
	return out
}

// held returns what a new subscriber of a broker finds retained, up to a last
// topic that the caller knows to be there.
func held(t *testing.T, addr, filter, last string) map[string]string {
	t.Helper()
	l := listen(t, addr, "look@plant", filter)
	defer l.stop()
	out := map[string]string{}
	eventually(t, last+" is retained", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, m := range l.got {
			out[m.Topic] = string(m.Payload)
		}
		return out[last] != ""
	})
	return out
}

// eventually waits for a condition.
var eventually = testpart.Eventually

// send publishes a message for the site as an application does, until it is taken.
func (l *listener) send(tail, payload string, retain bool) {
	l.t.Helper()
	m := client.Message{Topic: "colony/v1/plant/in/" + tail, Payload: []byte(payload), QoS: 1, Retain: retain}
	var err error
	eventually(l.t, "taken: "+tail, func() bool {
		ctx, cancel := context.WithTimeout(l.t.Context(), patience)
		defer cancel()
		err = l.c.Publish(ctx, m)
		return err == nil
	})
}

// TestThroughOutages sends while the link is up, while it is away, over a restart of
// the LO and of the CO: the site has all of it, in order, and retains what it should.
func TestThroughOutages(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	app := listen(t, f.coMQTT, "app@*")
	plc := listen(t, f.loMQTT, "plc@plant", "mes/#")
	n := 0
	const topic = "mes/recipes/line1"
	burst := func(count int) {
		for range count {
			app.send("recipes/line1", fmt.Sprint(n), false)
			n++
		}
	}
	burst(10)
	app.send("recipes/keep/a", "1", true)
	app.send("recipes/keep/b", "1", true)
	app.send("recipes/keep/z", "1", true)
	eventually(t, "the first burst is there", func() bool { return len(plc.payloads(topic)) == n })
	if got := held(t, f.loMQTT, "mes/recipes/keep/#", "mes/recipes/keep/z"); len(got) != 3 {
		t.Errorf("retained at the site: %v", got)
	}

	f.cut()
	burst(200)
	app.send("recipes/keep/a", "2", true)
	app.send("recipes/keep/b", "", true) // deleted while the site cannot hear of it
	app.send("short/x", "too late", false)
	app.send("short/x", "", false)
	f.stopLO()
	f.startLO() // without a link it has what it had
	if got := held(t, f.loMQTT, "mes/recipes/keep/#", "mes/recipes/keep/z"); got["mes/recipes/keep/b"] != "1" {
		t.Errorf("retained at the site after its restart: %v", got)
	}
	f.stopCO()
	f.startCO()
	eventually(t, "the app is back", app.c.Up)
	eventually(t, "the plc is back", plc.c.Up)
	burst(50)
	<-time.After(1100 * time.Millisecond) // what has a second to live
	began := time.Now()
	f.mend()
	eventually(t, "all is there", func() bool { return len(plc.payloads(topic)) >= n })
	t.Logf("%d messages within %s of the link's return", n, time.Since(began))
	for i, p := range plc.payloads(topic) {
		if p != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, p)
		}
	}
	app.send("recipes/keep/z", "2", true)
	eventually(t, "the deletion is there", func() bool {
		got := held(t, f.loMQTT, "mes/recipes/keep/#", "mes/recipes/keep/z")
		return got["mes/recipes/keep/a"] == "2" && got["mes/recipes/keep/b"] == "" && got["mes/recipes/keep/z"] == "2"
	})
	if late := plc.payloads("mes/short/x"); len(late) != 0 {
		t.Errorf("what had a second to live came after an outage: %q", late)
	}

	// A site whose disk was lost, and which was set up anew.
	f.stopLO()
	if err := os.RemoveAll(filepath.Join(f.dir, "lo")); err != nil {
		t.Fatal(err)
	}
	f.startLO()
	eventually(t, "a new site has what it should retain", func() bool {
		got := held(t, f.loMQTT, "mes/recipes/keep/#", "mes/recipes/keep/z")
		return len(got) == 2 && got["mes/recipes/keep/a"] == "2" && got["mes/recipes/keep/z"] == "2"
	})
}

// TestRefused publishes what no rule of the site takes.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	app := listen(t, f.coMQTT, "app@plant")
	app.send("recipes/x", "1", false) // the rules are known
	err := app.c.Publish(t.Context(), client.Message{Topic: "colony/v1/plant/in/other", Payload: []byte("x"), QoS: 1})
	if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "0x90") {
		t.Errorf("a topic that no rule takes: %v", err)
	}
	// A rule that is gone takes what it left at the site with it.
	plc := listen(t, f.loMQTT, "plc@plant", "mes/#")
	app.send("recipes/keep", "1", true)
	eventually(t, "retained", func() bool { return len(plc.payloads("mes/recipes/keep")) == 1 })
	f.commit(map[string][]byte{"sites/plant/site.yaml": []byte(strings.ReplaceAll(rules, "name: recipes", "name: renamed"))})
	app.send("short/other", "1", true)
	eventually(t, "the site's broker has cleared it", func() bool {
		plc.mu.Lock()
		defer plc.mu.Unlock()
		return slices.ContainsFunc(plc.got, func(m client.Message) bool { return m.Topic == "mes/recipes/keep" && len(m.Payload) == 0 })
	})
}
