package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// containersShown returns the progress that was reported of a state from a point on, each as
// "state restarts" of its containers.
func (l *lo) containersShown(s lifecycle.State, from int) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.shown[from:] {
		if m.State != s {
			continue
		}
		var b strings.Builder
		for _, c := range m.Components {
			fmt.Fprintf(&b, "%s %d ", c.State, c.Restarts)
		}
		out = append(out, strings.TrimSpace(b.String()))
	}
	return out
}

func (l *lo) progress() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.shown)
}

// TestRestartsAreReported updates to a version that exits 3 s after each start: each exit and
// each restart is reported while it is INSTALLED, it fails at the fourth exit, and the version
// before runs again.
func TestRestartsAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v1, v2 := version("1", 1, web()), version("2", 1, web())
		n := newNode(t, memory.Options{Program: func(c engine.Container, _ uint32) memory.Program {
			return memory.Program{Exits: c.Spec.Image == image("2"), After: 3 * time.Second, Code: 3}
		}})
		n.start()
		defer n.stop()
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		n.want(v2)
		n.eventually("app", lifecycle.Failed)
		want := []string{"exited 0", "running 1", "exited 1", "running 2", "exited 2", "running 3"}
		if got := n.lo.containersShown(lifecycle.Installed, 0); !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		if m := n.lo.last(t); m.Code != protocol.CrashLoop || m.Components[0].Restarts != 3 {
			t.Errorf("reported %s after %d restarts, want crash_loop after 3", m.Code, m.Components[0].Restarts)
		}
		<-time.After(time.Minute)
		n.wantContainers(running("web", v1))
	})
}

// TestContainersAreReportedAgain has a report of a restart get lost with the link, and the agent
// restarted: the LO learns of the restart either way, and no more.
func TestContainersAreReportedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer func() { n.stop() }()
		c := web()
		c.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 10_000, Retries: 3}
		n.want(version("1", 1, c))
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		if err := n.engine.Exit(webID, 1); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		if got, want := n.lo.containersShown(lifecycle.Installed, 0), []string{"exited 0", "healthy 1"}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		reportedAgain := func(what string) {
			t.Helper()
			before := n.lo.progress()
			switch what {
			case "link":
				n.runner.Connected(false)
				n.runner.Connected(true)
			case "agent":
				n.stop()
				n.start()
			}
			<-time.After(2 * time.Minute)
			if got, want := n.lo.containersShown(lifecycle.Installed, before), []string{"healthy 1"}; !slices.Equal(got, want) {
				t.Errorf("after a loss of the %s reported %q, want %q", what, got, want)
			}
		}
		reportedAgain("link")
		reportedAgain("agent")
	})
}

// TestRecoveringContainersAreReportedSeldom has a proven version crash for four hours.
func TestRecoveringContainersAreReportedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		for begin := time.Now(); time.Since(begin) < 4*time.Hour; {
			_ = n.engine.Exit(webID, 1) // it may be down
			<-time.After(10 * time.Second)
		}
		got := n.lo.containersShown(lifecycle.Failed, 0)
		if len(got) < 4*5 || len(got) > 4*6+1 {
			t.Errorf("%d reports in four hours of what recovers, want one in 10 minutes", len(got))
		}
	})
}
