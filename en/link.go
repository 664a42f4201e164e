package en

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// engineUnknown is the time between two looks while the engine is not known.
	engineUnknown = 15 * time.Second
	retryAfter    = 2 * time.Second // after a message that the LO did not take
)

func (e *EN) clientOptions() client.Options {
	name := string(e.opts.Node) + "." + string(e.opts.Site)
	return client.Options{
		URLs: e.opts.LO.MQTT, ClientID: name, Username: name, KeepAlive: e.opts.LO.KeepAlive,
		Will: func(session string) *client.Message {
			m := e.presence(session, false)
			return &m
		},
		Subscriptions: []client.Subscription{{Filter: topic.ForNode(topic.NodeDesired, e.opts.Site, e.opts.Node), QoS: 1}},
		Handle:        e.handle,
		OnUp:          e.greet,
		OnDown: func(err error) {
			e.runner.Connected(false)
			e.log.Warn("link to the lo lost, work goes on", "err", err)
		},
		Logger: e.log, Dial: e.opts.Dial, Random: e.opts.Random,
	}
}

// handle takes what the LO publishes for this node.
func (e *EN) handle(ctx context.Context, m client.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	if t.Kind != topic.NodeDesired || t.Site != e.opts.Site || t.Node != e.opts.Node {
		return protocol.Errorf(protocol.Invalid, "message on %s, which is not this node's", m.Topic)
	}
	if len(m.Payload) == 0 {
		return nil // the LO cleared the topic: that is no order
	}
	return e.runner.Accept(ctx, m.Payload)
}

// greet tells the LO who is there, on each connection anew: a broker owns nothing.
func (e *EN) greet(ctx context.Context, session string) {
	e.log.InfoContext(ctx, "link to the lo is up")
	e.insist(ctx, "presence", func() error { return e.client.Publish(ctx, e.presence(session, true)) })
	if ctx.Err() != nil {
		return
	}
	e.runner.Connected(true)
	e.mu.Lock()
	e.sent = nil
	e.mu.Unlock()
	e.linked.Notify()
}

// insist repeats an act until it succeeds or ctx ends.
func (e *EN) insist(ctx context.Context, what string, act func() error) {
	for {
		err := act()
		if err == nil || ctx.Err() != nil {
			return
		}
		e.log.WarnContext(ctx, "message not taken by the lo, trying again", "message", what, "err", err)
		_ = retry.Sleep(ctx, retryAfter) // the next failure tells of its end
	}
}

// presence is the node's presence, as a message or as a last will.
func (e *EN) presence(session string, online bool) client.Message {
	p := protocol.Presence{
		V: protocol.Version, Online: online, Agent: e.agent, Boot: e.boot, Version: e.opts.Version, Session: session,
	}
	m := e.message(topic.ForNode(topic.NodeOnline, e.opts.Site, e.opts.Node), p)
	m.QoS, m.Retain = 1, true
	return m
}

func (e *EN) message(name string, body any) client.Message {
	return client.Message{Topic: name, Payload: protocol.Marshal(body), ContentType: protocol.ContentType}
}

// Report carries a report of the runner to the LO.
func (e *EN) Report(ctx context.Context, r protocol.DeploymentStatus, durable bool) error {
	m := e.message(topic.ForStatus(e.opts.Site, e.opts.Node, r.Deployment), r)
	if durable {
		m.QoS = 1
	}
	return e.client.Publish(ctx, m)
}

// leave says goodbye, so that nobody has to wait for the last will, and closes the link.
func (e *EN) leave(ctx context.Context) error {
	if e.client.Up() {
		// Without a session it speaks of any: this agent is gone for good.
		if err := e.client.Publish(ctx, e.presence("", false)); err != nil {
			e.log.InfoContext(ctx, "goodbye not taken by the lo", "err", err)
		}
	}
	return e.client.Stop(ctx)
}

// beatLoop sends heartbeats, and the inventory where it changed.
func (e *EN) beatLoop(ctx context.Context) {
	heart := time.NewTicker(e.opts.Heartbeat)
	defer heart.Stop()
	look := time.NewTimer(e.opts.Inventory)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heart.C:
			if away := e.heartbeat(ctx); away != e.away { // the LO learns it now, not at the next look
				look.Reset(e.sendInventory(ctx))
			}
		case <-e.linked.C():
			look.Reset(e.sendInventory(ctx))
			e.heartbeat(ctx)
		case <-look.C:
			look.Reset(e.sendInventory(ctx))
		}
	}
}

// heartbeat sends a heartbeat and reports whether the container engine is away.
func (e *EN) heartbeat(ctx context.Context) (away bool) {
	if !e.client.Up() {
		return e.away
	}
	h, fault := e.inventory.Heartbeat(ctx)
	h.StatusDigest = e.runner.StatusDigest()
	if err := e.client.Publish(ctx, e.message(topic.ForNode(topic.Heartbeat, e.opts.Site, e.opts.Node), h)); err != nil {
		e.log.DebugContext(ctx, "heartbeat not sent", "err", err)
	}
	return fault != nil
}

// sendInventory publishes the inventory if the LO does not have it, and returns
// when to look again.
func (e *EN) sendInventory(ctx context.Context) time.Duration {
	again := e.opts.Inventory
	inv, err := e.inventory.Collect(ctx)
	e.away = err != nil
	if err != nil {
		e.log.WarnContext(ctx, "container engine not asked for the inventory, trying again", "err", err)
		again = min(again, engineUnknown)
	}
	m := e.message(topic.ForNode(topic.Inventory, e.opts.Site, e.opts.Node), inv)
	m.QoS, m.Retain = 1, true
	e.mu.Lock()
	known := bytes.Equal(e.sent, m.Payload)
	e.mu.Unlock()
	if known || !e.client.Up() {
		return again
	}
	if err := e.client.Publish(ctx, m); err != nil {
		e.log.WarnContext(ctx, "inventory not taken by the lo, trying again", "err", err)
		return min(again, engineUnknown)
	}
	e.mu.Lock()
	e.sent = m.Payload
	e.mu.Unlock()
	return again
}

// handler serves the agent's status to the machine it runs on.
func (e *EN) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // a reader that went away needs no answer
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		up, states := 0, map[string]int{}
		if e.client.Up() {
			up = 1
		}
		pending := 0
		for _, r := range e.runner.Records() {
			states[string(r.State)]++
			pending += len(r.Reports)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_link_up gauge\ncolony_en_link_up %d\n", up)
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_reports_pending gauge\ncolony_en_reports_pending %d\n", pending)
		_, _ = fmt.Fprintln(w, "# TYPE colony_en_deployments gauge")
		for state, n := range states {
			_, _ = fmt.Fprintf(w, "colony_en_deployments{state=%q} %d\n", state, n)
		}
	})
	return mux
}
