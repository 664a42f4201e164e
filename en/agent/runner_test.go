package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestInstallUpdateDelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{Image: func(string) (uint64, time.Duration, error) { return 4 << 20, 2 * time.Second, nil }})
		n.start()
		defer n.stop()

		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
		m := n.lo.last(t)
		if m.App != "com.example.app" || m.AppVersion != "1" || m.Attempt != 1 || m.Position.Generation != 1 || m.Agent == "" || len(m.Components) != 1 {
			t.Errorf("report %+v", m)
		}
		if len(n.lo.shown) < 3 || n.lo.shown[0].State != lifecycle.Installing || n.lo.shown[0].Phase != protocol.Pulling {
			t.Errorf("progress %+v", n.lo.shown)
		}
		if !slices.ContainsFunc(n.lo.shown, func(m protocol.DeploymentStatus) bool { return m.PulledBytes > 0 && m.TotalBytes == 4<<20 }) {
			t.Error("no progress reported of bytes")
		}

		v2 := version("2", 1, web())
		n.want(v2)
		// While the new image is on its way, the old version runs.
		<-time.After(time.Second)
		n.wantContainers(running("web", v1))
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		<-time.After(3 * time.Minute) // until it is proven, the old version may return
		if got := n.engine.Images(); !slices.Equal(got, []string{image("2")}) {
			t.Errorf("images %q, want only the new one", got)
		}

		n.remove(protocol.NodeRemoval{})
		n.removed()
		n.wantContainers()
		want := []string{"INSTALLING>INSTALLED", "UPDATING>INSTALLED", "DELETING>DELETED"}
		if diff := cmp.Diff(want, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFailuresAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	exits := func(code int32) memory.Options {
		return memory.Options{Program: func(engine.Container, uint32) memory.Program {
			return memory.Program{Exits: true, After: 50 * time.Millisecond, Code: code, Output: "no config"}
		}}
	}
	noImage := memory.Options{Image: func(string) (uint64, time.Duration, error) {
		return 0, 0, engine.Errorf(protocol.ImageNotFound, "no such image")
	}}
	full := memory.Options{Image: func(string) (uint64, time.Duration, error) {
		return 0, 0, engine.Errorf(protocol.NoSpace, "disk full")
	}}
	create := memory.Options{Program: func(engine.Container, uint32) memory.Program {
		return memory.Program{Err: engine.Errorf(protocol.CreateFailed, "no such device")}
	}}
	sick := web()
	sick.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 1000, Retries: 2}
	once := protocol.Container{Name: "web"}
	damaged := version("1", 1, web())
	damaged.Spec = damaged.Spec[:len(damaged.Spec)-1]
	for _, c := range []struct {
		name   string
		opts   memory.Options
		a      protocol.Assignment
		code   protocol.Code
		within time.Duration
	}{
		{"image not found", noImage, version("1", 1, web()), protocol.ImageNotFound, time.Second},
		{"disk full", full, version("1", 1, web()), protocol.NoSpace, time.Second},
		{"create fails", create, version("1", 1, web()), protocol.CreateFailed, time.Second},
		{"exits at start", exits(3), version("1", 1, once), protocol.StartFailed, time.Second},
		{"crashes again and again", exits(3), version("1", 1, web()), protocol.CrashLoop, 10 * time.Second},
		{"never healthy", memory.Options{}, version("1", 1, sick), protocol.ProbeFailed, 3 * time.Second},
		{"damaged spec", memory.Options{}, damaged, protocol.DigestMismatch, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, c.opts)
				n.probe = func(plan.Target) bool { return false }
				n.start()
				defer n.stop()
				began := time.Now()
				n.want(c.a)
				rec := n.eventually("app", lifecycle.Failed)
				if rec.Code != c.code || rec.Message == "" || time.Since(began) > c.within {
					t.Errorf("%s %q after %s, want %s within %s", rec.Code, rec.Message, time.Since(began), c.code, c.within)
				}
				<-time.After(10 * time.Minute) // nothing is tried again by itself
				n.wantContainers()
				if got := n.lo.transitions(); len(got) != 1 {
					t.Errorf("reports %q, want one", got)
				}
			})
		})
	}
}

func TestRetryAndRollback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad := version("2", 1, protocol.Container{Name: "web"})
		n := newNode(t, memory.Options{Program: func(c engine.Container, _ uint32) memory.Program {
			return memory.Program{Exits: c.Spec.Image == image("2"), Code: 9, Output: "boom"}
		}})
		n.start()
		defer n.stop()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.want(bad)
		n.eventually("app", lifecycle.Failed)
		bad.Attempt = 2
		n.want(bad)
		rec := n.eventually("app", lifecycle.Failed)
		for rec.Attempt != 2 {
			<-time.After(time.Second)
			rec = n.eventually("app", lifecycle.Failed)
		}
		v1.Rollback, v1.Attempt = true, 2
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
		want := []string{
			"INSTALLING>INSTALLED", "UPDATING>FAILED start_failed", "UPDATING>FAILED start_failed",
			"ROLLINGBACK>INSTALLED start_failed",
		}
		if diff := cmp.Diff(want, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
		if m := n.lo.last(t); m.Digest != v1.Digest || m.Refused != bad.Digest || m.Message == "" {
			t.Errorf("report %+v, want the refused version and why", m)
		}
	})
}

func TestFailedPullLeavesTheOldVersionUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{Image: func(ref string) (uint64, time.Duration, error) {
			if ref == image("2") {
				return 0, 0, engine.Errorf(protocol.ImageNotFound, "no such image")
			}
			return 1, 0, nil
		}})
		n.start()
		defer n.stop()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.want(version("2", 1, web()))
		n.eventually("app", lifecycle.Failed)
		n.wantContainers(running("web", v1))
		// It is looked after as well.
		if err := n.engine.Exit(webID, 1); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		n.wantContainers(running("web", v1))
	})
}

// TestTakenPortLeavesTheOldVersionUp updates to a version that wants a port which another deployment has.
func TestTakenPortLeavesTheOldVersionUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		other := engine.Container{ID: engine.ID{Deployment: "other", Component: "main", Name: "web"}, Spec: protocol.Container{
			Name: "web", Image: image("other"), Ports: []protocol.Port{{Container: 80, Host: 8080}},
		}}
		if err := errors.Join(n.engine.Pull(t.Context(), other.Spec.Image, nil), n.engine.Start(t.Context(), other)); err != nil {
			t.Fatal(err)
		}
		n.start()
		defer n.stop()
		v1, wants := version("1", 1, web()), web()
		wants.Ports = []protocol.Port{{Container: 80, Host: 8080}}
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.want(version("2", 1, wants))
		n.eventually("app", lifecycle.Failed)
		if m := n.lo.last(t); m.Code != protocol.StartFailed || !strings.Contains(m.Message, "port 8080 of the node is in use by other/main/web") {
			t.Errorf("reported %s %q, want the port that is in use", m.Code, m.Message)
		}
		if got := n.containers(); !slices.Contains(got, running("web", v1)) {
			t.Errorf("containers %q, want the old version up", got)
		}
	})
}

func TestSuperviseRestartsAndGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		for _, pause := range []time.Duration{0, time.Second, 2 * time.Second} {
			<-time.After(pause + 100*time.Millisecond)
			if err := n.engine.Exit(webID, 1); err != nil {
				t.Fatalf("not restarted within %s: %v", pause, err)
			}
		}
		if got := n.lo.transitions(); len(got) != 1 {
			t.Fatalf("reports %q, want it INSTALLED still", got)
		}
		<-time.After(4*time.Second + 100*time.Millisecond)
		if err := n.engine.Exit(webID, 1); err != nil {
			t.Fatal(err)
		}
		rec := n.eventually("app", lifecycle.Failed)
		if rec.Code != protocol.CrashLoop {
			t.Errorf("%s %s", rec.Code, rec.Message)
		}
		n.wantContainers()
	})
}

func TestProbesWhileInstalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		start, sick := time.Now(), time.Now().Add(time.Hour)
		n.probe = func(plan.Target) bool { return time.Since(start) > time.Second && time.Now().Before(sick) }
		n.start()
		defer n.stop()
		c := web()
		c.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 10_000, Retries: 3}
		n.want(version("1", 1, c))
		n.eventually("app", lifecycle.Installed)
		if took := time.Since(start); took < time.Second || took > 3*time.Second {
			t.Errorf("INSTALLED after %s, want it soon after the first good probe", took)
		}
		<-time.After(time.Until(sick))
		rec := n.eventually("app", lifecycle.Failed)
		if took := time.Since(sick); rec.Code != protocol.ProbeFailed || took < 20*time.Second || took > 31*time.Second {
			t.Errorf("%s after %s, want probe_failed after 3 probes", rec.Code, took)
		}
	})
}

func TestEngineAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.engine.Lose()
		<-time.After(time.Hour)
		if got := n.lo.transitions(); len(got) != 1 {
			t.Fatalf("reports %q: what is installed does not fail because the engine is away", got)
		}
		n.engine.Return()
		n.engine.Reboot()
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))

		n.engine.Lose()
		n.want(version("2", 1, web()))
		rec := n.eventually("app", lifecycle.Failed)
		if rec.Code != protocol.EngineUnavailable {
			t.Errorf("%s %s", rec.Code, rec.Message)
		}
	})
}

func TestSupersededOperationGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{Image: func(ref string) (uint64, time.Duration, error) {
			if ref == image("slow") {
				return 1, 24 * time.Hour, nil
			}
			return 1, 0, nil
		}})
		n.start()
		defer n.stop()
		n.want(version("slow", 1, web()))
		<-time.After(time.Minute)
		v2 := version("2", 1, web())
		n.want(v2)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		n.want(version("slow", 1, web()))
		<-time.After(time.Minute)
		n.remove(protocol.NodeRemoval{})
		n.removed()
		n.wantContainers()
	})
}

func TestDesiredStateRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		take := func(d protocol.NodeDesired) error { return n.runner.Accept(t.Context(), protocol.Marshal(d)) }
		v1 := version("1", 1, web())
		if err := take(protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: 5}, Assignments: []protocol.Assignment{v1}}); err != nil {
			t.Fatal(err)
		}
		n.eventually("app", lifecycle.Installed)
		if err := take(protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: 4}}); err != nil {
			t.Error(err)
		}
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
		for _, wrong := range [][]byte{
			protocol.Marshal(protocol.NodeDesired{V: 1, Node: "n1", Assignments: []protocol.Assignment{v1}}),
			protocol.Marshal(protocol.NodeDesired{
				V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: 9},
				Assignments: []protocol.Assignment{v1}, Removals: []protocol.NodeRemoval{{Deployment: "app"}},
			}),
			protocol.Marshal(protocol.NodeDesired{V: 1, Node: "other", Position: protocol.Position{Epoch: 1, Generation: 9}}), []byte("nonsense"), nil,
			protocol.Marshal(protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: 9}, Assignments: []protocol.Assignment{{Deployment: "../../etc/x"}}}),
		} {
			if err := n.runner.Accept(t.Context(), wrong); protocol.KindOf(err) != protocol.Invalid {
				t.Errorf("%q: %v, want it invalid", wrong, err)
			}
		}
		n.wantContainers(running("web", v1))
		// An LO set up anew goes on in a later epoch.
		if err := take(protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 2, Generation: 1}, Assignments: []protocol.Assignment{v1}}); err != nil {
			t.Fatal(err)
		}
		n.eventually("app", lifecycle.Installed)
		if diff := cmp.Diff([]string{"INSTALLING>INSTALLED"}, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
		reports := n.lo.reports()
		if len(reports) != 2 || reports[1].Ignored != (protocol.Position{Epoch: 1, Generation: 4}) || reports[1].Held.Position.Generation != 5 {
			t.Errorf("reports of everything %+v: want one with the connection, and one that says that 1.4 was ignored for 1.5", reports)
		}
	})
}

// A container that runs under an identity of another agent is asked to stop before the one
// of this agent takes its place.
func TestContainerOfAnotherIdentityIsStoppedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.stop()
		id := engine.ID{Deployment: "app", Component: "main", Name: "web"}
		spec, err := plan.Decode(v1.Spec)
		if err != nil {
			t.Fatal(err)
		}
		former := engine.Container{ID: id, Digest: "sha256:former", Spec: spec.Components[0].Containers[0]}
		if err := errors.Join(n.engine.Remove(t.Context(), id), n.engine.Start(t.Context(), former)); err != nil {
			t.Fatal(err)
		}
		stops := n.engine.Calls(memory.Stop)
		n.start()
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
		if got := n.engine.Calls(memory.Stop) - stops; got != 1 {
			t.Errorf("the container of the former identity was stopped %d times, want once", got)
		}
		n.stop()
	})
}

func TestReportsWaitForTheLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.lo.setRefuse(errors.New("no link"))
		n.start()
		n.want(version("1", 1, web()))
		<-time.After(time.Minute)
		n.remove(protocol.NodeRemoval{})
		<-time.After(time.Minute)
		n.stop()
		n.start() // the reports are on disk
		<-time.After(time.Minute)
		n.lo.setRefuse(nil)
		n.removed()
		n.stop()
		want := []string{"INSTALLING>INSTALLED", "DELETING>DELETED"}
		if diff := cmp.Diff(want, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
		if n.lo.durable[0].Seq >= n.lo.durable[1].Seq {
			t.Errorf("sequences %d, %d do not grow", n.lo.durable[0].Seq, n.lo.durable[1].Seq)
		}
	})
}

func TestStopLeavesContainersAndRestartAdoptsThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		job := protocol.Container{Name: "job"}
		v1 := version("1", 1, web(), job)
		n.engine.Fail(memory.Start) // no fault: the script is per call
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.stop()
		if err := n.engine.Exit(engine.ID{Deployment: "app", Component: "main", Name: "job"}, 0); err != nil {
			t.Fatal(err)
		}
		starts := n.engine.Calls(memory.Start)
		n.start()
		<-time.After(time.Minute)
		if got := n.engine.Calls(memory.Start); got != starts {
			t.Errorf("%d starts after a restart of the agent, want none: all run or are done", got-starts)
		}
		n.engine.Reboot()
		n.stop()
		n.start()
		<-time.After(time.Second)
		n.wantContainers("app/main/job exited "+identity("job", v1).Short(), running("web", v1))
		n.stop()
		if got := n.lo.transitions(); len(got) != 1 {
			t.Errorf("reports %q, want it INSTALLED throughout", got)
		}
	})
}

func TestRemovalIsTriedUntilItWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		fault := engine.Errorf(protocol.InternalError, "device or resource busy")
		n.engine.Fail(memory.Remove, fault, fault, fault, fault, fault, fault)
		n.remove(protocol.NodeRemoval{})
		n.removed()
		n.wantContainers()
		want := []string{"INSTALLING>INSTALLED", "DELETING>FAILED internal", "DELETING>DELETED"}
		if diff := cmp.Diff(want, n.lo.transitions()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestNothingIsRemovedUnasked has containers without a record, records that are not
// assigned, and a lost state: all of it stays until a removal names it.
func TestNothingIsRemovedUnasked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		v1 := version("1", 1, web())
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.want() // neither assigned nor removed
		<-time.After(5 * time.Minute)
		n.wantContainers(running("web", v1))
		n.runner.Connected(true)
		<-time.After(time.Second)
		reports := n.lo.reports()
		if last := reports[len(reports)-1]; len(last.Statuses) != 1 || !last.Statuses[0].Unassigned || last.Statuses[0].State != lifecycle.Installed {
			t.Errorf("report %+v: want the deployment INSTALLED and unassigned", last)
		}
		n.stop()

		// The record is lost, and the id with it.
		for _, name := range []string{"deployments/app.cbor", "agent-id", "report-counter"} {
			if err := os.Remove(filepath.Join(n.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		n.start()
		defer n.stop()
		<-time.After(5 * time.Minute)
		n.wantContainers(running("web", v1))
		if got := n.runner.Unknown(); !slices.Equal(got, []protocol.DeploymentName{"app"}) {
			t.Errorf("unknown deployments %v, want app", got)
		}
		n.want()
		<-time.After(5 * time.Minute)
		n.wantContainers(running("web", v1))
		if got := n.engine.Images(); len(got) == 0 {
			t.Error("the image of a container without a record was removed")
		}
		n.want(v1) // taken up where it was
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
		if got := n.engine.Calls(memory.Start); got != 1 {
			t.Errorf("started %d times, want once", got)
		}
		n.remove(protocol.NodeRemoval{})
		n.removed()
		n.wantContainers()
	})
}

// TestRemovalOfWhatHasNoRecord removes containers whose record was lost.
func TestRemovalOfWhatHasNoRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		n.stop()
		if err := os.Remove(filepath.Join(n.dir, "deployments/app.cbor")); err != nil {
			t.Fatal(err)
		}
		n.start()
		defer n.stop()
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 2}})
		n.removed()
		n.wantContainers()
		if got := n.lo.last(t); got.State != lifecycle.Deleted {
			t.Errorf("last report %s, want DELETED", got.State)
		}
	})
}
