package en_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/colonyfleet/colony/protocol/topic"
)

// t0 is the time of the CO, as the broker of a test says it.
var t0 = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC).UnixMilli()

// commanded is a broker in the place of the LO's that sends commands.
type commanded struct {
	*site
	t        *testing.T
	co       *signtest.CO
	time     int64 // what it answers
	answered int   // of the messages received
}

// id is the id of the n-th command.
func id(n int) command.ID { return command.ID(fmt.Sprintf("%032x", n)) }

// envelope returns a command for the site, signed by a CO.
func (c *commanded) envelope(co *signtest.CO, n int, change func(*command.Command)) []byte {
	c.t.Helper()
	m := &command.Command{V: 1, ID: id(n), Site: "plant", Kind: command.Inventory, All: true, IssuedMillis: t0, DeadlineMillis: t0 + time.Hour.Milliseconds()}
	if change != nil {
		change(m)
	}
	statement, err := command.Sign(co.Key, m)
	if err != nil {
		c.t.Fatal(err)
	}
	return protocol.Marshal(&command.Envelope{V: 1, Statement: statement, KeySet: co.KeySet})
}

// send publishes what is on the topic of the n-th command.
func (c *commanded) send(n int, payload []byte) {
	c.t.Helper()
	m := broker.Message{Topic: topic.ForNodeCommand(topic.NodeCommand, "plant", "n1", string(id(n))), Payload: payload, QoS: 1, Retain: true}
	if err := c.broker.Publish(c.t.Context(), m); err != nil {
		c.t.Fatal(err)
	}
}

// look answers requests for the time, and returns the results that have come of a command.
func (c *commanded) look(n int) (results []command.Result) {
	c.t.Helper()
	c.mu.Lock()
	received := c.received
	c.mu.Unlock()
	for ; c.answered < len(received); c.answered++ {
		var ask command.TimeAsk
		if at, err := topic.Parse(received[c.answered].Topic); err != nil || at.Kind != topic.NodeTimeAsk || command.Unmarshal(received[c.answered].Payload, &ask) != nil {
			continue
		}
		m := broker.Message{Topic: topic.ForNode(topic.NodeTime, "plant", "n1"), Payload: protocol.Marshal(&command.Time{V: 1, Nonce: ask.Nonce, UnixMillis: c.time})}
		if err := c.broker.Publish(c.t.Context(), m); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, m := range received {
		var r command.Result
		if at, err := topic.Parse(m.Topic); err == nil && at.Kind == topic.CommandResult && command.Unmarshal(m.Payload, &r) == nil && r.ID == id(n) && r.State.Ended() {
			results = append(results, r)
		}
	}
	return results
}

// ends waits for the result of a command, and checks it.
func (c *commanded) ends(what string, n int, want string) {
	c.t.Helper()
	var last command.Result
	testpart.Eventually(c.t, what+" ends", func() bool {
		results := c.look(n)
		if len(results) > 0 {
			last = results[len(results)-1]
		}
		return len(results) > 0
	})
	if got := fmt.Sprintf("%s %s", last.State, last.Code); got != want {
		c.t.Errorf("%s: %s (%s), want %s", what, got, last.Message, want)
	}
}

// TestMaliciousBrokerOfCommands has an agent at a broker that is not the LO's, and has everything that the CO ever signed: it can hold commands
// back, and not have the agent execute one that is made up, is for another, or was executed before.
func TestMaliciousBrokerOfCommands(t *testing.T) {
	t.Parallel()
	co, other := signtest.New(t, 1), signtest.New(t, 90)
	c := &commanded{site: newSite(t), t: t, co: co, time: t0 - 1000}
	began := time.Now()
	machine, dir := memory.New(memory.Options{}), t.TempDir()
	o := c.options(t, dir, machine)
	o.RootKeyFile = filepath.Join(t.TempDir(), "root.pub")
	encoded, err := keyfile.EncodePublic(co.Root())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.RootKeyFile, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	var slept atomic.Int64 // what the machine has slept
	o.SinceBoot = func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }
	e := start(t, o)
	c.send(0, c.envelope(co, 0, nil)) // the agent learns when it began to remember
	c.ends("the first command", 0, "done ")
	slept.Store(int64(time.Hour)) // the agent asks again
	c.time = t0 + 1000
	c.send(1, c.envelope(other, 1, nil))
	c.send(2, bytes.Replace(c.envelope(co, 2, nil), []byte("inventory"), []byte("inventorY"), 1))
	c.send(3, c.envelope(co, 3, func(m *command.Command) { m.Site = "mill" }))
	c.send(4, c.envelope(co, 5, nil)) // another id
	c.send(6, c.envelope(co, 6, func(m *command.Command) { m.All, m.Nodes = false, []protocol.NodeID{"n2"} }))
	c.send(7, c.envelope(co, 7, func(m *command.Command) { m.All, m.Selector = false, map[string]string{"line": "5"} }))
	c.send(8, c.envelope(co, 8, func(m *command.Command) { m.Kind = "reboot-all" }))
	c.send(9, c.envelope(co, 9, func(m *command.Command) { m.Kind = command.Restart }))
	c.send(10, c.envelope(co, 10, func(m *command.Command) { m.IssuedMillis, m.DeadlineMillis = t0, t0+500 }))
	c.send(11, c.envelope(co, 11, func(m *command.Command) { m.IssuedMillis -= time.Hour.Milliseconds() }))
	c.send(12, c.envelope(co, 12, nil))
	c.send(13, []byte("nonsense"))
	for n, want := range map[int]string{
		1: "refused bad_signature", 2: "refused bad_signature", 3: "refused bad_signature", 4: "refused bad_signature", 6: "refused not_meant", 7: "refused not_meant",
		8: "refused unknown_kind", 9: "refused bad_arguments", 10: "expired ", 11: "refused issued_before_agent", 12: "done ", 13: "refused bad_signature",
	} {
		c.ends(fmt.Sprint("command ", n), n, want)
	}
	// What was executed is not executed again: it is answered as it was, now and after a restart of the agent, whatever time the broker says.
	for n := range 3 {
		before := len(c.look(12))
		if n == 1 {
			stop(t, e)
			e = start(t, o)
		}
		c.send(12, c.envelope(co, 12, nil))
		testpart.Eventually(t, "it is answered again", func() bool { return len(c.look(12)) > before })
		c.ends("the command once more", 12, "done ")
	}
	if got := c.runs(12); got != 1 {
		t.Errorf("it began %d times", got)
	}
	// A command that is cancelled before it could begin never begins.
	c.time = 0 // the time is unknown
	stop(t, e)
	e = start(t, o)
	defer func() { stop(t, e) }()
	before := c.asks()
	c.send(20, c.envelope(co, 20, nil))
	testpart.Eventually(t, "the agent asks for the time", func() bool { return c.asks() > before })
	c.send(20, nil)
	c.ends("a command that was cancelled", 20, "expired cancelled")
}

// asks returns how often the agent has asked for the time.
func (c *commanded) asks() (times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.received {
		if at, err := topic.Parse(m.Topic); err == nil && at.Kind == topic.NodeTimeAsk {
			times++
		}
	}
	return times
}

// runs returns how often the agent has reported that a command began.
func (c *commanded) runs(n int) (times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.received {
		var r command.Result
		if at, err := topic.Parse(m.Topic); err == nil && at.Kind == topic.CommandResult && command.Unmarshal(m.Payload, &r) == nil && r.ID == id(n) && r.State == command.Running {
			times++
		}
	}
	return times
}
