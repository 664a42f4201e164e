package co_test

import (
	"bufio"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/mosquittotest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"

	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestCommandsOfReplicas has two COs behind one broker: either makes commands, reads logs and goes on with what the other one made,
// also where the broker has forgotten all.
func TestCommandsOfReplicas(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	m, url, remote := mosquittotest.Start(t, mosquittotest.Documented(t, "../docs/broker.md")...), pgtest.New(t), filepath.Join(t.TempDir(), "remote.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	replica := func(name string) *bench {
		t.Helper()
		o := co.DefaultOptions()
		o.StateDir, o.DatabaseURL, o.HTTP, o.Git.Remote = t.TempDir(), url, "127.0.0.1:0", remote
		o.Broker.URLs, o.Broker.ClientID, o.Broker.Username = []string{"tcp://" + m.Addr}, name, "colony-co"
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", name)
		sign(&o)
		b := &bench{t: t, options: o}
		var err error
		if b.co, err = co.New(o); err != nil {
			t.Fatal(err)
		}
		b.coStop = testpart.Start(t, b.co)
		return b
	}
	first, second := replica("first"), replica("second")
	lo := play(t, "tcp://"+m.Addr, set)
	lo.online()
	lo.report(nodeUp("gw-1"), runs("gw-1"))
	for _, b := range []*bench{first, second} {
		made := b.restart("gw-1")
		c := lo.asked()
		for c.ID != made.ID { // replicas may both publish
			c = lo.asked()
		}
		lo.report(received(c.ID, 1), result(c.ID, "gw-1", command.Done))
		lo.cleared(c.ID)
		for _, any := range []*bench{first, second} {
			if got := any.shown(c.ID, func(fleet.Command) bool { return true }); got.State != "ended" || got.Counts.Done != 1 {
				t.Errorf("ended: %+v", got)
			}
		}
		logged := make(chan struct{})
		go func() {
			defer close(logged)
			_, payload := lo.next(topic.SiteCommand, logsCommand(t, set))
			id := opened(t, set, payload).ID
			lo.credit(id)
			f := frame(1, "gw-1", true, command.LogLine{Text: "by " + b.options.Broker.ClientID})
			lo.send(id, f)
		}()
		resp, leave := b.logs("?tail=1")
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil || resp.StatusCode != http.StatusOK || line != "by "+b.options.Broker.ClientID+"\n" {
			t.Errorf("logs by way of %s: %s %q, %v", b.options.Broker.ClientID, resp.Status, line, err)
		}
		leave()
		<-logged
	}
	open := first.restart("gw-1")
	first.coStop()
	m.Kill()
	lo.stop()
	m.Again()
	lo = play(t, "tcp://"+m.Addr, set)
	lo.events = 6
	for c := lo.asked(); c.ID != open.ID; {
		c = lo.asked()
	}
	lo.online()
	lo.report(received(open.ID, 1), result(open.ID, "gw-1", command.Done))
	lo.cleared(open.ID)
}

// logsCommand picks commands of kind logs.
func logsCommand(t *testing.T, set keys.Set) func(at topic.Topic, payload []byte) bool {
	t.Helper()
	return func(_ topic.Topic, payload []byte) bool {
		return len(payload) > 0 && opened(t, set, payload).Kind == command.Logs
	}
}

func opened(t *testing.T, set keys.Set, payload []byte) *command.Command {
	t.Helper()
	var e command.Envelope
	if err := command.Unmarshal(payload, &e); err != nil {
		t.Fatal(err)
	}
	c, err := command.Open(set.Trust, "plant", e.Statement)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
