package co_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"

	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A mosquitto is a broker of somebody else's, which forgets all when it ends.
type mosquitto struct {
	*testproc.Process
	addr, config string
}

func newMosquitto(t *testing.T) *mosquitto {
	t.Helper()
	if _, err := exec.LookPath("mosquitto"); err != nil {
		t.Fatal("mosquitto is not installed: run scripts/setup --with-test-peers as root")
	}
	dir := t.TempDir()
	m := &mosquitto{testproc.New(t, "mosquitto", filepath.Join(dir, "log")), freeport.Addr(t), filepath.Join(dir, "mosquitto.conf")}
	_, port, err := net.SplitHostPort(m.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.config, fmt.Appendf(nil, "listener %s 127.0.0.1\nallow_anonymous true\n", port), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	t.Cleanup(m.Kill)
	return m
}

func (m *mosquitto) start(t *testing.T) {
	t.Helper()
	m.Start("mosquitto", "-c", m.config)
	testpart.Eventually(t, "mosquitto listens", func() bool {
		c, err := net.Dial("tcp", m.addr)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	})
}

// TestCommandsOfReplicas has two COs behind one broker: either makes commands, reads logs and goes on with what the other one made,
// also where the broker has forgotten all.
func TestCommandsOfReplicas(t *testing.T) {
	t.Parallel()
	set, sign := signing(t)
	m, url, remote := newMosquitto(t), pgtest.New(t), filepath.Join(t.TempDir(), "remote.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	replica := func(name string) *bench {
		t.Helper()
		o := co.DefaultOptions()
		o.StateDir, o.DatabaseURL, o.HTTP, o.Git.Remote = t.TempDir(), url, "127.0.0.1:0", remote
		o.Broker.URLs, o.Broker.ClientID = []string{"tcp://" + m.addr}, name
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
	lo := play(t, "tcp://"+m.addr, set)
	lo.online()
	lo.report(nodeUp("gw-1"), runs("gw-1"))
	for _, b := range []*bench{first, second} {
		made := b.restart("gw-1")
		c := lo.asked()
		for c.ID != made.ID { // replicas may both publish
			c = lo.asked()
		}
		lo.report(taken(c.ID, 1), result(c.ID, "gw-1", command.Done))
		lo.withdrawn(c.ID)
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
	m.start(t)
	lo = play(t, "tcp://"+m.addr, set)
	lo.events = 6
	for c := lo.asked(); c.ID != open.ID; {
		c = lo.asked()
	}
	lo.online()
	lo.report(taken(open.ID, 1), result(open.ID, "gw-1", command.Done))
	lo.withdrawn(open.ID)
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
