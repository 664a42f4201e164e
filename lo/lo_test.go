package lo

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func assigned(d protocol.NodeDesired) bool { return len(d.Assignments) == 1 }

// stateOf returns the state of web on n1 as the LO sees it.
func stateOf(l *LO) lifecycle.State {
	for _, n := range l.site.Status() {
		for _, d := range n.Deployments {
			if n.Node == "n1" && d.Deployment == "web" {
				return d.State
			}
		}
	}
	return ""
}

// install brings web to INSTALLED at one version, and returns the last NodeDesired.
func install(t *testing.T, l *LO, a *agent) protocol.NodeDesired {
	t.Helper()
	d := a.next("an assignment", assigned)
	a.report(d, lifecycle.Installing, "")
	a.report(d, lifecycle.Installed, "")
	if s := stateOf(l); s != lifecycle.Installed {
		t.Fatalf("state %s after the acknowledged report of INSTALLED", s)
	}
	return d
}

func states(of []protocol.DeploymentStatus) []string {
	var out []string
	for _, m := range of {
		out = append(out, string(m.Actor)+" "+string(m.State))
	}
	return out
}

func TestDesiredDownStatusUp(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	c.want(site1(1, "1", protocol.Policy{}))

	d := install(t, l, a)
	want, digest := spec("web", "1")
	if diff := cmp.Diff(protocol.Assignment{Deployment: "web", Digest: digest, Spec: want, Attempt: 1}, d.Assignments[0]); diff != "" {
		t.Errorf("assignment (-want +got):\n%s", diff)
	}
	wantStates := []string{"LO PENDING", "LO INSTALLING", "EN INSTALLING", "EN INSTALLED"}
	got := history(t, l)
	if diff := cmp.Diff(wantStates, states(got)); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	type assignment struct {
		App, Version string
		Position     protocol.Position
		Digest       protocol.Digest
	}
	m := got[1]
	if diff := cmp.Diff(assignment{"hello", "1", d.Position, digest}, assignment{m.App, m.AppVersion, m.Position, m.Digest}); diff != "" {
		t.Errorf("the LO's transition does not say what it assigned (-want +got):\n%s", diff)
	}
	k := kinds(t, l)
	for kind, n := range map[protocol.EventKind]int{
		protocol.LOStarted: 1, protocol.NodeOnlineEvent: 1, protocol.InventoryChanged: 1,
		protocol.DesiredAdopted: 1, protocol.PlacementEvent: 1,
	} {
		if k[kind] < n {
			t.Errorf("%d events of kind %s, want %d", k[kind], kind, n)
		}
	}
	eventually(t, "the site is online at the CO", c.online)
	eventually(t, "its presence says what it has adopted since it connected", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.presence.Held == c.desired.Held()
	})
	if l.journal.Stats().Depth == 0 {
		t.Error("the journal is empty though the CO took nothing")
	}
	c.release()
	eventually(t, "the journal is delivered", func() bool { return l.journal.Stats().Depth == 0 })

	c.want(protocol.SiteDesired{
		V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 2},
		Removals: []protocol.Removal{{Deployment: "web", Position: protocol.Position{Epoch: 1, Generation: 2}}},
	})
	offline := a.next("a removal", func(d protocol.NodeDesired) bool { return len(d.Removals) == 1 })
	a.report(offline, lifecycle.Deleting, "")
	a.report(offline, lifecycle.Deleted, "")
	if s := stateOf(l); s != lifecycle.Deleted {
		t.Errorf("state %s after removal", s)
	}
}

func TestNodeDies(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	session := <-a.up
	// A stop is orderly and sends no will; the agent sends it itself.
	if err := a.c.Publish(t.Context(), a.presence(false, "an older session")); err != nil {
		t.Fatal(err)
	}
	if k := kinds(t, l); k[protocol.NodeOfflineEvent] != 0 {
		t.Error("the late will of an older session made the node offline")
	}
	if err := a.c.Publish(t.Context(), a.presence(false, session)); err != nil {
		t.Fatal(err)
	}
	if k := kinds(t, l); k[protocol.NodeOfflineEvent] != 1 {
		t.Errorf("events %v: want one node_offline", k)
	}
}

func TestFailureRetriesThenRollsBack(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	policy := protocol.Policy{Attempts: 2, BackoffMillis: 20}
	c.want(site1(1, "1", policy))
	install(t, l, a)
	_, good := spec("web", "1")
	_, bad := spec("web", "2")
	c.want(site1(2, "2", policy))
	for attempt := uint32(1); attempt <= 2; attempt++ {
		d := a.next("the bad version", func(d protocol.NodeDesired) bool {
			return assigned(d) && d.Assignments[0].Digest == bad && d.Assignments[0].Attempt == attempt
		})
		a.report(d, lifecycle.Updating, "")
		a.report(d, lifecycle.Failed, protocol.StartFailed)
	}
	d := a.next("the way back", func(d protocol.NodeDesired) bool { return assigned(d) && d.Assignments[0].Rollback })
	if d.Assignments[0].Digest != good {
		t.Errorf("rolled back to %s, want %s", d.Assignments[0].Digest, good)
	}
	a.report(d, lifecycle.RollingBack, "")
	a.report(d, lifecycle.Installed, "")
	got := history(t, l)
	last := got[len(got)-1]
	type refusal struct {
		State   lifecycle.State
		Refused protocol.Digest
		Code    protocol.Code
	}
	if diff := cmp.Diff(refusal{lifecycle.Installed, bad, protocol.StartFailed}, refusal{last.State, last.Refused, last.Code}); diff != "" {
		t.Errorf("last status (-want +got):\n%s", diff)
	}
	// The journal may have dropped progress that later progress superseded.
	transitions := slices.DeleteFunc(got, func(m protocol.DeploymentStatus) bool { return m.From == m.State })
	want := []string{
		"LO PENDING", "LO INSTALLING", "EN INSTALLED",
		"LO UPDATING", "EN FAILED", "LO UPDATING", "EN FAILED", "LO ROLLINGBACK", "EN INSTALLED",
	}
	if diff := cmp.Diff(want, states(transitions)); diff != "" {
		t.Errorf("transitions (-want +got):\n%s", diff)
	}
}

// TestRestart kills the LO, as far as one can in a process: a copy of its state
// directory, made while it runs, is what the next one finds.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	dir := t.TempDir()
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	addr := l.MQTTAddr()
	a := startAgent(t, "n1", addr)
	c.want(site1(1, "1", protocol.Policy{}))
	before := a.next("an assignment", assigned)
	sent := a.report(before, lifecycle.Installing, "")

	crashed := t.TempDir()
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	stopLO(t, l)
	for len(a.up) > 0 {
		<-a.up
	}
	c.stop() // the site comes up without the CO
	l = startLO(t, localOptions(t, c, crashed, addr))
	after := a.next("the assignment after the restart", assigned)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("NodeDesired after the restart (-before +after):\n%s", diff)
	}
	<-a.up
	transitions := len(history(t, l))
	a.send(sent) // its acknowledgement was lost
	if got := len(history(t, l)); got != transitions {
		t.Errorf("a repeated report made %d events", got-transitions)
	}
	a.report(after, lifecycle.Installed, "")
	want := []string{"LO PENDING", "LO INSTALLING", "EN INSTALLING", "EN INSTALLED"}
	if diff := cmp.Diff(want, states(history(t, l))); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	k := kinds(t, l)
	for kind, want := range map[protocol.EventKind]int{protocol.NodeOnlineEvent: 1, protocol.InventoryChanged: 1, protocol.LOStarted: 2} {
		if k[kind] != want {
			t.Errorf("%d events of kind %s after a restart of the LO, want %d", k[kind], kind, want)
		}
	}
	c.release()
	c.start()
	eventually(t, "the journal is delivered", func() bool { return l.journal.Stats().Depth == 0 })
}

// An LO that is stopped says so, in the name of the connection that the CO knows.
func TestStopSaysOffline(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	eventually(t, "the site is online", c.online)
	stopLO(t, l)
	eventually(t, "the site is offline", func() bool { return !c.online() })
}

// TestReplay loses the record of a node between the journal and the disk.
func TestReplay(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	dir := t.TempDir()
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	addr := l.MQTTAddr()
	a := startAgent(t, "n1", addr)
	c.want(site1(1, "1", protocol.Policy{}))
	d := a.next("an assignment", assigned)
	a.report(d, lifecycle.Installing, "")
	// All of the state is older than the journal, as after a crash: a checkpoint is
	// never newer than the records that it speaks for.
	older, crashed := t.TempDir(), t.TempDir()
	if err := os.CopyFS(older, os.DirFS(dir+"/state")); err != nil {
		t.Fatal(err)
	}
	sent := a.report(d, lifecycle.Installed, "")
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(crashed+"/state"), os.CopyFS(crashed+"/state", os.DirFS(older))); err != nil {
		t.Fatal(err)
	}
	stopLO(t, l)
	c.stop()
	for len(a.up) > 0 {
		<-a.up
	}
	l = startLO(t, localOptions(t, c, crashed, addr))
	if s := stateOf(l); s != lifecycle.Installed {
		t.Errorf("state %s after replay, the journal has INSTALLED", s)
	}
	<-a.up
	a.send(sent)
	if n := strings.Count(strings.Join(states(history(t, l)), ","), "INSTALLED"); n != 1 {
		t.Errorf("INSTALLED stands %d times in the journal", n)
	}
}

// TestDamagedRecordIsReplayed damages a record that the checkpoint speaks for.
func TestDamagedRecordIsReplayed(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	dir := t.TempDir()
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	c.want(site1(1, "1", protocol.Policy{}))
	a.report(a.next("an assignment", assigned), lifecycle.Installed, "")
	a.stop()
	stopLO(t, l) // with a checkpoint
	c.stop()
	if err := os.WriteFile(dir+"/state/nodes/n1.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l = startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	if s := stateOf(l); s != lifecycle.Installed {
		t.Errorf("state %s with a damaged record, the journal has INSTALLED", s)
	}
}

func TestSilentNodeIsOfflineAfterRestart(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	dir := t.TempDir()
	l := startLO(t, localOptions(t, c, dir, "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	<-a.up
	crashed := t.TempDir()
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	a.stop()
	stopLO(t, l)
	o := localOptions(t, c, crashed, "127.0.0.1:0")
	o.PresenceGrace = 1
	l = startLO(t, o)
	c.want(site1(1, "1", protocol.Policy{}))
	eventually(t, "the silent node is offline", func() bool { return kinds(t, l)[protocol.NodeOfflineEvent] == 1 })
}

func TestWithoutDesiredStateNothingIsAssigned(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	c.stop()
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	<-a.up
	// The node runs something that this LO never heard of.
	_, digest := spec("web", "1")
	a.seq++
	a.send(protocol.DeploymentStatus{
		V: protocol.Version, Node: "n1", Deployment: "web", Agent: "agent-1", Seq: a.seq, State: lifecycle.Installed, Actor: lifecycle.EN, Digest: digest,
	})
	if diff := cmp.Diff([]string{"LO PENDING", "LO INSTALLING", "EN INSTALLED"}, states(history(t, l))); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	select {
	case d := <-a.desired:
		t.Errorf("NodeDesired %+v from an LO without a desired state", d)
	default:
	}
	c.start()
	c.want(site1(1, "1", protocol.Policy{}))
	d := a.next("any", func(protocol.NodeDesired) bool { return true })
	if !assigned(d) || d.Assignments[0].Digest != digest {
		t.Errorf("NodeDesired %+v; want what runs already", d)
	}
	if s := stateOf(l); s != lifecycle.Installed {
		t.Errorf("state %s, want INSTALLED: the node already runs the desired version", s)
	}
}

func TestStatusPage(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	a := startAgent(t, "n1", l.MQTTAddr())
	c.want(site1(7, "1", protocol.Policy{}))
	install(t, l, a)
	resp := get(t, l, "/status")
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.Position.Generation != 7 {
		t.Errorf("position %s, want generation 7", s.Position)
	}
	if len(s.Nodes) != 1 || len(s.Nodes[0].Deployments) != 1 {
		t.Fatalf("nodes %+v, want one with one deployment", s.Nodes)
	}
	if !s.Nodes[0].Online {
		t.Error("the node is shown as offline")
	}
	if got := s.Nodes[0].Deployments[0].State; got != lifecycle.Installed {
		t.Errorf("state of the deployment %s, want INSTALLED", got)
	}
	m := get(t, l, "/metrics")
	defer m.Body.Close()
	text, err := io.ReadAll(m.Body)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Check(t, text, "colony_lo_", "colony_broker_")
	for _, want := range []string{
		`colony_lo_nodes{online="true"} 1`, `colony_lo_deployments{state="INSTALLED"} 1`, `colony_lo_reports_total{outcome="accepted"} 2`,
		"colony_lo_node_response_seconds_count 1", `colony_lo_node_last_response_seconds{node="n1"} `, `colony_lo_reconcile_seconds_bucket{le="+Inf"} `, `colony_lo_info{site="s1",version="dev"} 1`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, p := range []string{"/healthz", "/readyz"} {
		r := get(t, l, p)
		r.Body.Close()
		if r.StatusCode != 200 {
			t.Errorf("%s: %s", p, r.Status)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT = "No Site", "relative", "nowhere"
	_, err := New(o)
	if err == nil {
		t.Fatal("bad options accepted")
	}
	for _, key := range []string{"site", "stateDir", "mqtt", "co.mqtt", "logger"} {
		if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, key) }) {
			t.Errorf("the error does not name %s: %q", key, err)
		}
	}
}
