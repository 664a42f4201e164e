package cli

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/admin"
	mqtt "github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// TestSiteBrokerOfCO lists and disconnects the clients of a CO's own broker, and says of a CO with an external
// one that it has none to show.
func TestSiteBrokerOfCO(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	startCO := func(name string, edit func(*co.Options)) *co.CO {
		o := co.DefaultOptions()
		o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = filepath.Join(dir, name), pgtest.New(t), "127.0.0.1:0", "127.0.0.1:0", remote
		o.Logger = slog.New(slog.DiscardHandler)
		edit(&o)
		c, err := co.New(o)
		if err != nil {
			t.Fatal(err)
		}
		testpart.Start(t, c)
		return c
	}
	own := startCO("own", func(*co.Options) {})
	call := func(c *co.CO, args ...string) (stdout, stderr string, code int) {
		return run(t, "http://127.0.0.1:1", append([]string{"site", "broker", "--at", "http://" + c.HTTPAddr()}, args...)...)
	}

	ups := make(chan struct{}, 16)
	mes, err := mqtt.New(mqtt.Options{
		URLs: []string{"tcp://" + own.MQTTAddr()}, Username: "mes@plant1", ClientID: "mes@plant1/1", Logger: slog.New(slog.DiscardHandler),
		Subscriptions: []mqtt.Subscription{{Filter: "colony/v1/plant1/data/#", QoS: 1}},
		Handle:        func(context.Context, mqtt.Message) error { return nil },
		OnUp:          func(context.Context, string) { ups <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, mes)
	up := func(what string) {
		t.Helper()
		select {
		case <-ups:
		case <-time.After(patience):
			t.Fatalf("%s: the client does not connect", what)
		}
	}
	up("first")

	stdout, stderr, code := call(own, "clients", "-o", "json")
	var list admin.List
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil {
		t.Fatalf("clients: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if len(list.Clients) != 1 || list.Clients[0].Client != "mes@plant1/1" || list.Clients[0].Identity != "mes@plant1" || list.Clients[0].Connection == nil {
		t.Errorf("clients: %s", stdout)
	}
	if stdout, stderr, code := call(own, "client", "mes@plant1/1"); code != 0 || !strings.Contains(stdout, "mes@plant1/1") {
		t.Errorf("client: exit code %d\n%s%s", code, stdout, stderr)
	}
	if stdout, stderr, code := call(own, "kick", "mes@plant1/1"); code != 0 || !strings.Contains(stdout, "disconnected") {
		t.Errorf("kick: exit code %d\n%s%s", code, stdout, stderr)
	}
	up("after kick")
	if _, stderr, code := call(own, "kick", "nobody"); code != exitNotFound || !strings.Contains(stderr, "nobody") {
		t.Errorf("kick nobody: exit code %d, %s", code, stderr)
	}

	external := startCO("external", func(o *co.Options) {
		o.Broker.URLs, o.Broker.ClientID, o.Broker.Username = []string{"tcp://" + own.MQTTAddr()}, "other", "other"
	})
	if _, stderr, code := call(external, "clients"); code != exitNotFound || !strings.Contains(stderr, "external broker") {
		t.Errorf("clients of a CO with an external broker: exit code %d, %s", code, stderr)
	}
}
