package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	plant = protocol.SiteID("plant")
	// nodeCount is how many nodes the wired site has.
	nodeCount = 3
	// behind is by how much the clock of the last node is wrong.
	behind = 20 * 365 * 24 * time.Hour
)

// An end plays the CO at the end of the link: its broker, and what its database holds.
type end struct {
	t      *testing.T
	broker *broker.Broker
	http   *http.Server // serves bodies
	decode *stream.Decoder

	mu        sync.Mutex                 // protects what follows
	bodies    map[protocol.Digest][]byte // specifications, and blobs of images
	asked     map[protocol.Digest]int    // how often for each of them
	position  stream.Position
	status    map[string]protocol.DeploymentStatus // by node and deployment
	sequences map[string][]string                  // transitions, by actor
	stamps    map[protocol.NodeID]int64            // the first report's
}

func startEnd(t *testing.T, n *memnet.Network) *end {
	e := &end{
		t: t, decode: stream.NewDecoder(1), bodies: map[protocol.Digest][]byte{}, asked: map[protocol.Digest]int{}, status: map[string]protocol.DeploymentStatus{}, sequences: map[string][]string{}, stamps: map[protocol.NodeID]int64{},
	}
	var err error
	e.broker, err = broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "mqtt", Network: broker.TCP, Address: "co:1884"}}, Listen: n.Host("co").Listen,
		Access: access.CO{}, Accept: e.accept, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := n.Host("co").Listen(t.Context(), "tcp", "co:8080")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/specs/{digest}", e.body)
	mux.HandleFunc("GET /v2/app/blobs/{digest}", e.body)
	e.http = &http.Server{Handler: mux}
	go func() { _ = e.http.Serve(l) }() // it ends with stop
	return e
}

// body is what the CO's API and its registry answer for a digest.
func (e *end) body(w http.ResponseWriter, r *http.Request) {
	digest := protocol.Digest(r.PathValue("digest"))
	e.mu.Lock()
	b, ok := e.bodies[digest]
	e.asked[digest]++
	e.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// put has the CO serve bytes by their digest.
func (e *end) put(b []byte) protocol.Digest {
	e.mu.Lock()
	defer e.mu.Unlock()
	digest := protocol.DigestOf(b)
	e.bodies[digest] = b
	return digest
}

// requests returns how often the CO was asked for what has a digest.
func (e *end) requests(digest protocol.Digest) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[digest]
}

func (e *end) stop(ctx context.Context) error {
	return errors.Join(e.http.Close(), e.broker.Stop(ctx))
}

// get answers what a host gets by HTTP.
func get(t *testing.T, n *memnet.Network, host, url string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: n.Host(host).DialContext, DisableKeepAlives: true}}
	resp, err := client.Get(url) //nolint:noctx // in virtual time
	if err != nil {
		t.Errorf("%s gets %s: %v", host, url, err)
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s gets %s: %v", host, url, err)
	}
	return resp.StatusCode, string(b)
}

// pull has a node pull a blob by the site's cache.
func pull(t *testing.T, n *memnet.Network, node string, digest protocol.Digest, want string) {
	t.Helper()
	if status, body := get(t, n, node, "http://lo:8080/v2/app/blobs/"+string(digest)); status != http.StatusOK || body != want {
		t.Errorf("%s pulls %s: status %d with %d bytes, want 200 with %d", node, digest.Short(), status, len(body), len(want))
	}
}

// accept is what co/ingest does with a batch.
func (e *end) accept(ctx context.Context, _ access.Identity, m broker.Message) error {
	tp, err := topic.Parse(m.Topic)
	if err != nil || tp.Kind == topic.SiteOnline {
		return err
	}
	var b protocol.Batch
	if err := protocol.Unmarshal(m.Payload, &b); err != nil {
		return err
	}
	events, err := e.decode.Events(b)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.position.Follow(b, len(events))
	for _, event := range stream.Number(events, a.Fresh, e.position.Seq) {
		e.apply(event)
	}
	ack := e.position.Ack(b)
	return e.broker.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.Ack, plant), Payload: protocol.Marshal(&ack), QoS: 1})
}

// apply takes up an event. The caller holds mu.
func (e *end) apply(event protocol.Event) {
	if event.Kind == protocol.AnomalyEvent {
		e.t.Errorf("anomaly of node %s: %x", event.Node, event.Body)
	}
	var m protocol.DeploymentStatus
	if event.Kind != protocol.StatusEvent || protocol.Unmarshal(event.Body, &m) != nil {
		return
	}
	e.status[string(m.Node)+"/"+string(m.Deployment)] = m
	if m.Actor == lifecycle.EN && e.stamps[m.Node] == 0 {
		e.stamps[m.Node] = m.UnixMillis
	}
	if m.From != m.State { // progress may be sampled
		actor := string(m.Node) + "/" + string(m.Deployment)
		e.sequences[actor] = append(e.sequences[actor], fmt.Sprintf("%s %s -> %s %s attempt %d %s", m.Actor, m.From, m.State, m.Digest.Short(), m.Attempt, m.Code))
	}
}

// desire publishes what the site is to run: one version of one deployment on each node. The LO
// fetches the specification by HTTP.
func (e *end) desire(generation uint64, image string) protocol.Digest {
	spec := protocol.Marshal(&protocol.DeploymentSpec{
		V: protocol.Version, ID: "1", Deployment: "app", App: "app", AppVersion: fmt.Sprint(generation),
		Components: []protocol.Component{{Name: "main", Containers: []protocol.Container{{Name: "server", Image: image}}}},
	})
	digest := e.put(spec)
	payload := protocol.Marshal(&protocol.SiteDesired{
		V: protocol.Version, Site: plant, Position: protocol.Position{Epoch: 1, Generation: generation},
		Deployments: []protocol.SiteEntry{{Deployment: "app", Digest: digest, Size: uint64(len(spec))}},
	})
	if err := e.broker.Publish(e.t.Context(), broker.Message{Topic: topic.ForSite(topic.SiteDesired, plant), Payload: payload, QoS: 1, Retain: true}); err != nil {
		e.t.Fatal(err)
	}
	return digest
}

// reach waits until every node has a version in a state, and one of them is done with it.
func (e *end) reach(state lifecycle.State, digest, refused protocol.Digest) {
	e.t.Helper()
	deadline := time.Now().Add(time.Hour) // of virtual time
	for time.Now().Before(deadline) {
		there := 0
		e.mu.Lock()
		for _, m := range e.status {
			if m.State == state && m.Digest == digest && m.Refused == refused {
				there++
			}
		}
		e.mu.Unlock()
		if there == nodeCount {
			return
		}
		<-time.After(time.Second)
	}
	e.t.Fatalf("after an hour not all nodes have %s in %s, refused %q: %v", digest.Short(), state, refused.Short(), e.status)
}

func startLO(t *testing.T, n *memnet.Network, d *simdisk.Disk, now func() time.Time) *lo.LO {
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.Disk, o.MQTT, o.HTTP, o.Logger = plant, "/state", d, "lo:1883", "lo:8080", slog.New(slog.DiscardHandler)
	o.CO.MQTT, o.Dial, o.Listen, o.Random = []string{"tcp://co:1884"}, n.Host("lo").DialContext, n.Host("lo").Listen, random.Seeded(1)
	o.CO.HTTP, o.Now = "http://co:8080", now
	l, err := lo.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func startEN(t *testing.T, n *memnet.Network, i int, d *simdisk.Disk, run *memory.Engine, now func() time.Time) *en.EN {
	o := en.DefaultOptions()
	o.Site, o.Node, o.StateDir, o.Disk, o.Logger = plant, protocol.NodeID(fmt.Sprintf("node-%d", i)), "/state", d, slog.New(slog.DiscardHandler)
	o.LO.MQTT, o.Runtime, o.Random = []string{"tcp://lo:1883"}, run, random.Seeded(uint64(i))
	host := n.Host(string(o.Node))
	o.Dial, o.Listen, o.HTTP = host.DialContext, host.Listen, string(o.Node)+":9100"
	o.Now = now
	e, err := en.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// An outcome is what a run of the wired tiers led to.
type outcome struct {
	Sequences  map[string][]string
	Final      map[string]string
	Containers map[string][]string // by node
	took       time.Duration       // virtual
	fetched    int                 // how often the CO was asked for the blob that three nodes pulled
	stamps     []time.Time         // of each node's first report
}

// lastBehind is a clock that is wrong at the last node alone.
func lastBehind(actor int) func() time.Time {
	if actor == nodeCount {
		return func() time.Time { return time.Now().Add(-behind) }
	}
	return time.Now
}

// wired runs an LO and its nodes through installs, a cut of the WAN, a cut of a node,
// power cuts of both tiers after they stopped, and a version that does not come up.
// clock returns the clock of the LO, which is 0, or of a node.
func wired(t *testing.T, seed uint64, clock func(actor int) func() time.Time) (out outcome) {
	disks := make([]*simdisk.Disk, nodeCount+1)
	for i := range disks {
		disks[i] = simdisk.New(seed + uint64(i))
	}
	synctest.Test(t, func(t *testing.T) {
		n, began := memnet.New(seed), time.Now()
		n.Path("co", "lo").Set(memnet.Profile{Delay: 150 * time.Millisecond, Jitter: 50 * time.Millisecond, Loss: 0.03})
		engines, agents := make([]*memory.Engine, nodeCount+1), make([]*en.EN, nodeCount+1)
		e := startEnd(t, n)
		l := startLO(t, n, disks[0], clock(0))
		for i := 1; i <= nodeCount; i++ {
			n.Path("lo", fmt.Sprintf("node-%d", i)).Set(memnet.Profile{Delay: 5 * time.Millisecond, Loss: 0.01})
			engines[i] = memory.New(memory.Options{Program: program})
			agents[i] = startEN(t, n, i, disks[i], engines[i], clock(i))
		}
		stop := func(what string, stop func(context.Context) error) {
			t.Helper()
			if err := stop(t.Context()); err != nil {
				t.Errorf("stop %s: %v", what, err)
			}
		}
		layer := strings.Repeat("layer", 40_000)
		blob := e.put([]byte(layer))
		first := e.desire(1, "hub/app@sha256:1")
		e.reach(lifecycle.Installed, first, "")

		pull(t, n, "node-1", blob, layer)
		n.Path("co", "lo").Cut()
		pull(t, n, "node-2", blob, layer)
		n.Path("lo", "node-1").Cut()
		second := e.desire(2, "hub/app@sha256:2")
		<-time.After(10 * time.Minute)
		n.Path("co", "lo").Restore()
		<-time.After(time.Minute)
		n.Path("lo", "node-1").Restore()
		e.reach(lifecycle.Installed, second, "")

		stop("the LO", l.Stop)
		stop("node-2", agents[2].Stop)
		// What is not durable by now is lost.
		disks[0].Restart(true)
		disks[2].Restart(true)
		third := e.desire(3, "hub/app@sha256:3-"+crashing)
		l = startLO(t, n, disks[0], clock(0))
		agents[2] = startEN(t, n, 2, disks[2], engines[2], clock(2))
		e.reach(lifecycle.Installed, second, third)
		pull(t, n, "node-3", blob, layer)
		if status, body := get(t, n, "node-3", "http://lo:8080/metrics"); status != http.StatusOK || !strings.Contains(body, "\ncolony_lo_link_up 1\n") {
			t.Errorf("metrics of the LO: status %d, %d bytes, want the link up", status, len(body))
		}
		if status, body := get(t, n, "node-2", "http://node-2:9100/metrics"); status != http.StatusOK || !strings.Contains(body, "\ncolony_en_link_up 1\n") {
			t.Errorf("metrics of the agent: status %d, %d bytes, want the link up", status, len(body))
		}

		for i := 1; i <= nodeCount; i++ {
			stop(fmt.Sprintf("node-%d", i), agents[i].Stop)
		}
		stop("the LO", l.Stop)
		stop("the CO's end", e.stop)
		out = e.outcome(engines[1:])
		out.took, out.fetched = time.Since(began), e.requests(blob)
	})
	return out
}

// crashing is in the image of a program that exits at once.
const crashing = "crashing"

func program(c engine.Container, _ uint32) memory.Program {
	if len(c.Spec.Image) > len(crashing) && c.Spec.Image[len(c.Spec.Image)-len(crashing):] == crashing {
		return memory.Program{Exits: true, After: 100 * time.Millisecond, Code: 1}
	}
	return memory.Program{StopTakes: time.Second}
}

func (e *end) outcome(engines []*memory.Engine) outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := outcome{Sequences: e.sequences, Final: map[string]string{}, Containers: map[string][]string{}}
	for _, key := range slices.Sorted(maps.Keys(e.status)) {
		m := e.status[key]
		out.Final[key] = fmt.Sprintf("%s %s refused %s %s", m.State, m.Digest.Short(), m.Refused.Short(), m.Code)
	}
	for i, run := range engines {
		name := fmt.Sprintf("node-%d", i+1)
		list, err := run.List(context.Background())
		if err != nil {
			e.t.Error(err)
		}
		for _, s := range list {
			out.Containers[name] = append(out.Containers[name], fmt.Sprintf("%s %s %s", s.ID, s.Image, s.State))
		}
	}
	for i := 1; i <= nodeCount; i++ {
		out.stamps = append(out.stamps, time.UnixMilli(e.stamps[protocol.NodeID(fmt.Sprintf("node-%d", i))]))
	}
	return out
}

// TestWiredTiers runs an LO and three ENs, with the CO's end played, over a network in
// memory and in virtual time, twice with one seed. Goroutines are scheduled as it
// happens, so that events of different actors may change places; each actor's own do not.
func TestWiredTiers(t *testing.T) {
	one, same := wired(t, 1, lastBehind), wired(t, 1, lastBehind)
	if got := one.stamps[0].Sub(one.stamps[nodeCount-1]); got < behind-time.Hour || got > behind+time.Hour {
		t.Errorf("the reports of a clock that is %s behind are stamped %s behind", behind, got)
	}
	if diff := cmp.Diff(one, same, cmpopts.IgnoreUnexported(outcome{})); diff != "" {
		t.Errorf("one seed, two outcomes (-first +second):\n%s", diff)
	}
	if one.fetched != 1 { // the cache has it over the power cut
		t.Errorf("the CO was asked %d times for a blob that three nodes pulled, want once", one.fetched)
	}
	for actor, sequence := range one.Sequences {
		if len(sequence) < 6 {
			t.Errorf("%s made %d transitions: the test shows nothing: %v", actor, len(sequence), sequence)
		}
	}
}

// TestWiredClocks gives all tiers of the site clocks that are wrong in one way. What they do
// is what they do with clocks that are right, and it takes no longer.
func TestWiredClocks(t *testing.T) {
	const year = 365 * 24 * time.Hour
	off := func(by time.Duration) func(time.Time) func() time.Time {
		return func(time.Time) func() time.Time { return func() time.Time { return time.Now().Add(by) } }
	}
	right := wired(t, 1, func(int) func() time.Time { return time.Now })
	for name, clock := range map[string]func(began time.Time) func() time.Time{
		"ten years behind": off(-10 * year),
		"frozen":           func(began time.Time) func() time.Time { return func() time.Time { return began } },
		"ten years ahead":  off(10 * year),
		"booted at 1970": func(began time.Time) func() time.Time {
			return func() time.Time { return time.Unix(0, 0).Add(time.Since(began)) }
		},
		"set forward while running": func(began time.Time) func() time.Time {
			return func() time.Time {
				if now := time.Now(); now.Sub(began) > 5*time.Minute {
					return now
				}
				return time.Unix(0, 0).Add(time.Since(began))
			}
		},
		"set back while running": func(began time.Time) func() time.Time {
			return func() time.Time {
				if now := time.Now(); now.Sub(began) > 5*time.Minute {
					return now
				}
				return time.Now().Add(10 * year)
			}
		},
		"one percent fast": func(began time.Time) func() time.Time {
			return func() time.Time { return began.Add(time.Since(began) * 101 / 100) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A bubble begins at a time of its own; its first clock is made at once.
			var began time.Time
			got := wired(t, 1, func(int) func() time.Time {
				if began.IsZero() {
					began = time.Now()
				}
				return clock(began)
			})
			if diff := cmp.Diff(right, got, cmpopts.IgnoreUnexported(outcome{})); diff != "" {
				t.Errorf("what it led to (-right +wrong):\n%s", diff)
			}
			if got.took > right.took+time.Minute {
				t.Errorf("it took %s, with clocks that are right %s", got.took, right.took)
			}
		})
	}
}
