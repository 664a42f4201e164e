package co_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access/limit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A bench is a CO with an LO that the test plays.
type bench struct {
	t       *testing.T
	co      *co.CO
	coStop  func() // ends the CO
	site    *client.Client
	from    chan client.Message
	remote  string
	ownKey  string // is there once the key of the deployments repo was used
	socket  string // of a second listener
	options co.Options
}

func start(t *testing.T, change ...func(*co.Options)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, from: make(chan client.Message, 100), remote: filepath.Join(dir, "remote.git"), socket: filepath.Join(dir, "mqtt.sock")}
	if err := git.InitBare(t.Context(), b.remote, "main"); err != nil {
		t.Fatal(err)
	}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = filepath.Join(dir, "co"), pgtest.New(t), "127.0.0.1:0", "127.0.0.1:0", b.remote
	o.Git.Interval, o.Access.Limits = 100*time.Millisecond, limit.Limits{}
	o.Listeners = []listen.Spec{{Name: "local", Network: listen.Unix, Address: b.socket}}
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	o.Import = co.ImportOptions{Roots: []string{examples}, Git: []co.ImportRemote{{URL: "ssh://127.0.0.1:1/apps"}}}
	o.Git.SSHCommand = "touch " + filepath.Join(dir, "own-key-used") + "; false"
	b.ownKey = filepath.Join(dir, "own-key-used")
	for _, f := range change {
		f(&o)
	}
	b.options = o
	if b.co, err = co.New(o); err != nil {
		t.Fatal(err)
	}
	b.coStop = testpart.Start(t, b.co)
	b.connect()
	return b
}

// connect plays the LO of site plant.
func (b *bench) connect() {
	b.t.Helper()
	up := notify.New()
	url := "tcp://" + b.co.MQTTAddr()
	if b.socket != "" {
		url = "unix://" + b.socket
	}
	var err error
	b.site, err = client.New(client.Options{
		URLs: []string{url}, ClientID: "plant", Username: "plant",
		Subscriptions: []client.Subscription{{Filter: topic.ForSite(topic.SiteDesired, "plant"), QoS: 1}, {Filter: topic.ForSite(topic.Ack, "plant"), QoS: 1}},
		Handle: func(_ context.Context, m client.Message) error {
			b.from <- m
			return nil
		},
		OnUp: func(context.Context, string) {
			up.Notify()
		},
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.site.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = b.site.Stop(ctx)
	})
	select {
	case <-up.C():
	case <-time.After(time.Minute):
		b.t.Fatal("the site did not connect")
	}
}

// next returns the next message of a kind.
func (b *bench) next(kind topic.Kind) client.Message {
	b.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case m := <-b.from:
			if p, err := topic.Parse(m.Topic); err == nil && p.Kind == kind {
				return m
			}
		case <-deadline:
			b.t.Fatalf("no message of kind %s", kind)
		}
	}
}

func (b *bench) publish(kind topic.Kind, message any, retain bool) {
	b.t.Helper()
	err := b.site.Publish(b.t.Context(), client.Message{Topic: topic.ForSite(kind, "plant"), Payload: protocol.Marshal(message), QoS: 1, Retain: retain})
	if err != nil {
		b.t.Fatal(err)
	}
}

// call is a request to the API.
func (b *bench) call(method, path string, body, out any) {
	b.t.Helper()
	var r io.Reader
	if body != nil {
		j, err := json.Marshal(body)
		if err != nil {
			b.t.Fatal(err)
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+b.co.HTTPAddr()+path, r)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // so that no connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.StatusCode >= 300 {
		b.t.Fatalf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) pushSample() {
	b.t.Helper()
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": b.co.HTTPAddr()}})
	defer reg.Close()
	if _, err := reg.PushImage(b.t.Context(), "registry.colony/samples/hello:1.0.0", image.Image{
		Entrypoint: []string{"/app"}, Files: map[string]archive.File{"/app": {Mode: 0o755, Content: []byte("program")}},
	}); err != nil {
		b.t.Fatal(err)
	}
	tgz, err := archive.Build("hello", os.DirFS("../examples/components/hello-1.0.0"))
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := reg.PushArchive(b.t.Context(), "oci://registry.colony/samples/compose/hello", "1.0.0", tgz); err != nil {
		b.t.Fatal(err)
	}
}

// TestFromCallToSiteAndBack follows a deployment from the API to the site's
// desired state, and a report from the site's journal to the API.
func TestFromCallToSiteAndBack(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "s", Version: "1"}, true)
	b.pushSample()
	source, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	var imported struct {
		Results []struct{ Path, Outcome, Error string }
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": source}, &imported)
	for _, r := range imported.Results {
		if r.Outcome != "imported" {
			t.Errorf("import: %+v", r)
		}
	}
	var d fleet.Deployment
	b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0"}, &d)
	if d.State != lifecycle.Pending || d.Commit == "" {
		t.Errorf("the answer is %+v", d)
	}
	var desired protocol.SiteDesired
	for len(desired.Deployments) == 0 {
		if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &desired); err != nil {
			t.Fatal(err)
		}
	}
	entry := desired.Deployments[0]
	var spec protocol.DeploymentSpec
	if err := protocol.Unmarshal(entry.Spec, &spec); err != nil {
		t.Fatal(err)
	}
	image := spec.Components[0].Containers[0].Image
	if entry.Deployment != "hello" || entry.Digest.Verify(entry.Spec) != nil || !strings.Contains(image, "@sha256:") {
		t.Errorf("entry %s %s, image %s", entry.Deployment, entry.Digest, image)
	}

	report := func(from, to lifecycle.State, actor lifecycle.Actor) protocol.Event {
		return protocol.Event{UnixMillis: 1, Kind: protocol.StatusEvent, Node: "gw", Body: protocol.Marshal(protocol.DeploymentStatus{
			V: 1, Node: "gw", Deployment: "hello", From: from, State: to, Actor: actor, Digest: entry.Digest, AppVersion: "1.0.0",
		})}
	}
	var events []byte
	for _, e := range []protocol.Event{
		{UnixMillis: 1, Kind: protocol.NodeOnlineEvent, Node: "gw", Body: protocol.Marshal(protocol.Presence{V: 1, Online: true, Session: "x"})},
		{UnixMillis: 1, Kind: protocol.DesiredAdopted, Body: protocol.Marshal(protocol.Adopted{V: 1, Position: desired.Position, Commit: desired.Commit})},
		report("", lifecycle.Pending, lifecycle.LO), report(lifecycle.Pending, lifecycle.Installing, lifecycle.LO), report(lifecycle.Installing, lifecycle.Installed, lifecycle.EN),
	} {
		events = append(events, protocol.Marshal(e)...)
	}
	b.publish(topic.Up, protocol.Batch{V: 1, Epoch: "e", First: 1, Count: 5, Events: events}, false)
	var ack protocol.Ack
	if err := protocol.Unmarshal(b.next(topic.Ack).Payload, &ack); err != nil || ack.Seq != 5 || ack.Epoch != "e" {
		t.Fatalf("ack %+v, %v", ack, err)
	}
	b.call(http.MethodGet, "/api/v1/deployments/plant/hello", nil, &d)
	if d.State != lifecycle.Installed || len(d.Nodes) != 1 || d.Nodes[0].AppVersion != "1.0.0" {
		t.Errorf("the record says %+v", d)
	}
	var n fleet.Node
	b.call(http.MethodGet, "/api/v1/nodes/plant/gw", nil, &n)
	if !n.Online {
		t.Errorf("node %+v", n)
	}

	b.call(http.MethodDelete, "/api/v1/deployments/plant/hello", nil, nil)
	for len(desired.Deployments) > 0 {
		desired = protocol.SiteDesired{}
		if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &desired); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	_, err := co.New(co.Options{
		HTTP: "nonsense", Listeners: []listen.Spec{{Name: "mqtt", Network: listen.TLS, Address: ":8883"}}, Broker: co.BrokerOptions{URLs: []string{"tcp://mqtt.example"}},
	})
	for _, want := range []string{"listener mqtt: network tls without a certificate", "the name is taken", "listeners with broker.urls", "stateDir", "databaseURL", "git.remote", "http", "mqtt", "registryHost", "logger"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the faults: %v", want, err)
		}
	}
}

// TestPostgresDownAtStart checks that a CO waits for its database and comes up
// with it.
func TestPostgresDownAtStart(t *testing.T) {
	t.Parallel()
	pg := pgtest.NewOwn(t)
	url := pg.URL()
	pg.Stop()
	dir := t.TempDir()
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = dir, url, "127.0.0.1:0", "127.0.0.1:0", filepath.Join(dir, "away.git")
	waiting := notify.New()
	o.Logger = slog.New(&watcher{text: "database not reachable, trying again", seen: waiting})
	c, err := co.New(o)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- c.Start(t.Context()) }()
	select {
	case <-waiting.C():
	case err := <-started:
		t.Fatalf("it did not wait for the database: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("it does not say that it waits")
	}
	pg.Start()
	select {
	case err := <-started:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not come up with the database")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// A watcher is a log handler that reports when a message is logged.
type watcher struct {
	text string
	seen notify.Signal
}

func (w *watcher) Enabled(context.Context, slog.Level) bool { return true }
func (w *watcher) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *watcher) WithGroup(string) slog.Handler            { return w }
func (w *watcher) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.text {
		w.seen.Notify()
	}
	return nil
}

// TestAddressInUse checks that a second CO on the same address does no harm.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	b := start(t)
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.Git.Remote, o.Logger = t.TempDir(), "postgres://nobody@127.0.0.1:1/none", b.co.HTTPAddr(), b.remote, slog.New(slog.DiscardHandler)
	second, err := co.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("listen for http on %s", o.HTTP)) {
		t.Errorf("a second CO on %s: %v", o.HTTP, err)
	}
}
