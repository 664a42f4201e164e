package plan

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestProvenAfterTheMinimumTime(t *testing.T) {
	t.Parallel()
	s := newStage(t, Supervise, component("a", always("k"))).look().run("a/k")
	proven := func(want bool) {
		t.Helper()
		if got := s.watch.Decide(s.now).Proven; got != want {
			t.Errorf("at %s: proven %t, want %t", s.now.Format("15:04:05"), got, want)
		}
	}
	proven(false)
	s.next(2 * time.Minute).after(2*time.Minute - 1)
	proven(false)
	s.exit("a/k", 1)
	proven(false)
	s.after(time.Second).run("a/k")
	proven(false) // the time begins anew
	s.after(2 * time.Minute)
	proven(true)
}

func TestRecoverRestartsAtTheSlowestPace(t *testing.T) {
	t.Parallel()
	s := newStage(t, Recover, component("a", always("k"))).look()
	s.run("a/k")
	for range 50 {
		s.exit("a/k", 1).wants("").next(time.Minute).after(time.Minute).wants("start a/k").run("a/k").wants("").after(59 * time.Second).wants("")
	}
	s.after(time.Second).wants("ready")
}

func TestRecoverKeepsWhatAPolicyForbids(t *testing.T) {
	t.Parallel()
	limited := job("l")
	limited.Restart = protocol.Restart{Policy: protocol.RestartOnFailure, Max: 1}
	for _, c := range []struct {
		name  string
		exits int
		spec  protocol.Container
	}{{"no", 1, protocol.Container{Name: "l", Restart: protocol.Restart{Policy: protocol.RestartNo}}}, {"on-failure:1", 2, limited}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, Supervise, component("a", always("k"), c.spec)).run("a/k", "a/l")
			for range c.exits {
				s.after(time.Minute).run("a/l").exit("a/l", 1)
			}
			s.wants("failed crash_loop")
			s.watch.ToRecover()
			s.after(24 * time.Hour).look().wants("")
		})
	}
}

func TestRecoverAsksAgainForHealth(t *testing.T) {
	t.Parallel()
	s := newStage(t, Supervise, component("a", probed("k"))).run("a/k").wants("probe a/k").probed("a/k", true).wants("ready")
	for range 2 {
		s.after(10*time.Second).wants("probe a/k; ready").probed("a/k", false)
	}
	s.wants("failed probe_failed")
	s.watch.ToRecover()
	for range 200 {
		s.after(10*time.Second).wants("probe a/k").probed("a/k", false).wants("")
	}
	s.after(10*time.Second).wants("probe a/k").probed("a/k", true).wants("ready")
}

// What is asked for ever is not asked every second.
func TestLateContainersAreProbedSlowly(t *testing.T) {
	t.Parallel()
	s := newStage(t, Recover, component("a", probed("k"))).run("a/k")
	s.wants("probe a/k").probed("a/k", false).next(200 * time.Millisecond)
	s.after(time.Minute).wants("probe a/k").probed("a/k", false).next(10 * time.Second)
}

// While the record of the network of a container is lost, it is unknown where to ask for its health: it
// is made anew, at once and then once a minute, and the container stays as healthy as it was.
func TestLostNetworkIsRecovered(t *testing.T) {
	t.Parallel()
	guest := always("guest")
	guest.NetworkOf = "k"
	s := newStage(t, Supervise, component("a", probed("k"), guest)).run("a/k", "a/guest").wants("probe a/k").probed("a/k", true)
	lost := func(is bool) *stage {
		for name, st := range s.list {
			st.NetworkLost = is
			s.list[name] = st
		}
		return s.look()
	}
	s.after(11 * time.Second)
	lost(true).wants("recover a/k; ready").wants("ready").next(time.Minute)
	s.after(time.Minute).wants("recover a/k; ready")
	lost(false).wants("probe a/k; ready").probed("a/k", true).wants("ready").next(10 * time.Second)
}

func TestOnlyAProvenVersionRecovers(t *testing.T) {
	t.Parallel()
	up := Record{Deployment: "app", State: lifecycle.Installing, Digest: "d1", Spec: []byte("s1")}.Installed()
	if failed := up.Failed(Failure{Code: protocol.CrashLoop}); failed.Recovers() || failed.Active != "" {
		t.Errorf("not proven, and failed with %+v: want it to end", failed)
	}
	up.Proven = "d1"
	failed := up.Failed(Failure{protocol.CrashLoop, "why"})
	if report := failed.Report(lifecycle.Installed); !failed.Recovers() || failed.Active != "d1" || !report.Recovering || report.Message != "why" {
		t.Errorf("proven, and failed with %+v, reported as %+v: want it to recover", failed, report)
	}
	back := failed.Recovered()
	if report := back.Report(lifecycle.Failed); report.State != lifecycle.Installed || report.Recovering || report.Code != "" {
		t.Errorf("recovered, and reported as %+v", report)
	}
	next := failed
	next.State, next.Digest, next.Spec = lifecycle.Updating, "d2", []byte("s2")
	if next = next.Failed(Failure{Code: protocol.StartFailed}); next.Recovers() || next.Active != "d1" {
		t.Errorf("another version failed with %+v: want the one before active and no recovery", next)
	}
}
