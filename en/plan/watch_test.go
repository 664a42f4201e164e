package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// A stage plays the containers of one version to a watch, without an engine.
type stage struct {
	t     *testing.T
	watch *Watch
	now   time.Time
	list  map[string]engine.Status
}

func newStage(t *testing.T, mode Mode, components ...protocol.Component) *stage {
	t.Helper()
	spec := &protocol.DeploymentSpec{V: 1, Deployment: "app", Components: components}
	return &stage{
		t: t, watch: NewWatch(spec, mode, DefaultLimits()),
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), list: map[string]engine.Status{},
	}
}

// proven has the version be proven.
func (s *stage) proven() *stage {
	s.watch.limits.MinHealthy = 0
	return s
}

func component(name string, containers ...protocol.Container) protocol.Component {
	return protocol.Component{Name: name, TimeoutMillis: 60_000, Containers: containers}
}

func (s *stage) after(d time.Duration) *stage {
	s.now = s.now.Add(d)
	return s
}

// run makes containers run.
func (s *stage) run(names ...string) *stage {
	for _, n := range names {
		c, k, _ := strings.Cut(n, "/")
		st := s.list[n]
		if !st.StartedAt.IsZero() {
			st.Restarts++
		}
		st.ID = engine.ID{Deployment: "app", Component: c, Name: k}
		st.Digest = s.watch.find(st.ID).digest
		st.State, st.StartedAt, st.ExitCode, st.Message = engine.Running, s.now, 0, ""
		s.list[n] = st
	}
	return s.look()
}

// exit ends a container.
func (s *stage) exit(name string, code int32) *stage {
	st := s.list[name]
	st.State, st.ExitCode, st.ExitedAt, st.Message = engine.Exited, code, s.now, "last words"
	s.list[name] = st
	return s.look()
}

func (s *stage) look() *stage {
	var list []engine.Status
	for _, c := range s.watch.units {
		if st, ok := s.list[c.id.Component+"/"+c.id.Name]; ok {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b engine.Status) int { return a.ID.Compare(b.ID) }) // as an engine lists them
	s.watch.Observe(list, s.now)
	return s
}

func (s *stage) probed(name string, ok bool) *stage {
	c, k, _ := strings.Cut(name, "/")
	s.watch.Probed(engine.ID{Deployment: "app", Component: c, Name: k}, ok, "says no", s.now)
	return s
}

// wants checks what is decided: "start a/b; probe a/c; ready; failed code".
func (s *stage) wants(want string) *stage {
	s.t.Helper()
	d := s.watch.Decide(s.now)
	var got []string
	for _, c := range d.Start {
		got = append(got, "start "+c.ID.Component+"/"+c.ID.Name)
	}
	for _, c := range d.Recover {
		got = append(got, "recover "+c.ID.Component+"/"+c.ID.Name)
	}
	for _, p := range d.Probe {
		got = append(got, "probe "+p.ID.Component+"/"+p.ID.Name)
	}
	if d.Ready {
		got = append(got, "ready")
	}
	if d.Failure != nil {
		got = append(got, "failed "+string(d.Failure.Code))
	}
	if text := strings.Join(got, "; "); text != want {
		s.t.Errorf("at %s: %q, want %q (%+v)", s.now.Format("15:04:05.000"), text, want, d.Failure)
	}
	return s
}

// next checks when the watch wants to be asked again.
func (s *stage) next(want time.Duration) *stage {
	s.t.Helper()
	if got := s.watch.Decide(s.now).Next.Sub(s.now); got != want {
		s.t.Errorf("asks to be woken after %s, want %s", got, want)
	}
	return s
}

func always(name string, after ...protocol.Dependency) protocol.Container {
	return protocol.Container{Name: name, Restart: protocol.Restart{Policy: protocol.RestartAlways}, DependsOn: after}
}

func job(name string) protocol.Container { return protocol.Container{Name: name} }

func probed(name string) protocol.Container {
	c := always(name)
	c.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 10_000, StartPeriodMillis: 5_000, Retries: 2}
	return c
}

const settle = 400 * time.Millisecond

// What an update leaves running is not asked for its health while what it depends on is being
// replaced: its time to become healthy begins once that is up.
func TestKeptContainerWaitsForItsDependency(t *testing.T) {
	t.Parallel()
	side := probed("side")
	side.DependsOn = []protocol.Dependency{{Container: "web", Condition: protocol.ServiceHealthy}}
	s := newStage(t, Install, component("a", probed("web"), side)).run("a/side").wants("start a/web")
	s.after(30*time.Second).run("a/web").wants("probe a/web").probed("a/web", true).wants("probe a/side")
	s.after(20*time.Second).probed("a/side", false).wants("probe a/web").probed("a/web", true)
	s.after(5*time.Second).wants("probe a/side").probed("a/side", false).wants("failed probe_failed")
}

func TestInstallInOrder(t *testing.T) {
	t.Parallel()
	front := always("front", protocol.Dependency{Container: "db", Condition: protocol.ServiceHealthy},
		protocol.Dependency{Container: "migrate", Condition: protocol.ServiceCompleted})
	s := newStage(t, Install, component("a", probed("db"), job("migrate"), front), component("b", always("late")))
	s.look().wants("start a/db; start a/migrate")
	s.run("a/db", "a/migrate").wants("probe a/db")
	s.after(50*time.Millisecond).probed("a/db", false).wants("").next(200 * time.Millisecond)
	s.after(200 * time.Millisecond).wants("probe a/db")
	s.probed("a/db", true).wants("")
	s.exit("a/migrate", 0).wants("start a/front")
	s.run("a/front").wants("").next(settle)
	s.after(settle).wants("start b/late")
	s.run("b/late").wants("")
	s.after(settle).wants("ready")
	want := []protocol.ComponentStatus{
		{Component: "a", Container: "db", State: "healthy"},
		{Component: "a", Container: "migrate", State: "completed", Message: "last words"},
		{Component: "a", Container: "front", State: "running"},
		{Component: "b", Container: "late", State: "running"},
	}
	if diff := cmp.Diff(want, s.watch.Statuses()); diff != "" {
		t.Error(diff)
	}
}

func TestNoWaitLetsTheNextComponentStart(t *testing.T) {
	t.Parallel()
	first := component("a", probed("slow"))
	first.NoWait = true
	s := newStage(t, Install, first, component("b", always("x")))
	s.look().wants("start a/slow")
	s.run("a/slow").wants("start b/x; probe a/slow")
	s.run("b/x").after(time.Second).wants("") // but the whole is not up without it
	s.probed("a/slow", true).wants("ready")
}

func TestInstallFailures(t *testing.T) {
	t.Parallel()
	onFailure := protocol.Container{Name: "k", Restart: protocol.Restart{Policy: protocol.RestartOnFailure, Max: 1}}
	t.Run("exit without a restart policy", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Install, component("a", job("k"))).look().run("a/k").exit("a/k", 1).wants("failed start_failed")
		if m := s.watch.Decide(s.now).Failure.Message; m != "container a/k exited with 1 while starting: last words" {
			t.Error(m)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		t.Parallel()
		for limit, want := range map[uint64]string{
			64 << 20: "container a/k exited with 137 while starting: the kernel killed it, because it used up its memory limit of 64 MiB: last words",
			1500:     "container a/k exited with 137 while starting: the kernel killed it, because it used up its memory limit of 1500 bytes: last words",
			0:        "container a/k exited with 137 while starting: the kernel killed it, because the node was out of memory: last words",
		} {
			k := job("k")
			k.Limits.MemoryBytes = limit
			s := newStage(t, Install, component("a", k)).look().run("a/k")
			st := s.list["a/k"]
			st.OutOfMemory = true
			s.list["a/k"] = st
			s.exit("a/k", 137).wants("failed start_failed")
			if m := s.watch.Decide(s.now).Failure.Message; m != want {
				t.Errorf("%q, want %q", m, want)
			}
			if m := s.watch.Statuses()[0].Message; m != "out of memory: last words" {
				t.Errorf("the container's status says %q", m)
			}
		}
	})
	t.Run("on-failure gives up after its maximum", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Install, component("a", onFailure)).look().run("a/k").exit("a/k", 1).wants("")
		s.after(time.Second).wants("start a/k")
		s.run("a/k").exit("a/k", 1).wants("failed crash_loop")
	})
	t.Run("always restarts three times", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Install, component("a", always("k"))).look()
		for _, wait := range []time.Duration{1, 2, 4} {
			s.run("a/k").exit("a/k", 0).wants("").next(wait * time.Second)
			s.after(wait * time.Second).wants("start a/k")
		}
		s.run("a/k").exit("a/k", 0).wants("failed crash_loop")
	})
	t.Run("never healthy", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Install, component("a", probed("k"))).look().run("a/k").wants("probe a/k").probed("a/k", false)
		s.after(24*time.Second).wants("probe a/k").probed("a/k", false).wants("")
		s.after(time.Second).wants("failed probe_failed") // start period and two intervals
	})
	t.Run("component's deadline with a probe", func(t *testing.T) {
		t.Parallel()
		c := component("a", probed("k"))
		c.TimeoutMillis = 2000
		s := newStage(t, Install, c).look().run("a/k").wants("probe a/k").probed("a/k", false)
		s.after(2 * time.Second).wants("failed probe_failed")
	})
	t.Run("component's deadline without", func(t *testing.T) {
		t.Parallel()
		waits := always("x", protocol.Dependency{Container: "k", Condition: protocol.ServiceCompleted})
		s := newStage(t, Install, component("a", job("k"), waits)).look().run("a/k").wants("")
		s.after(time.Minute).wants("failed timeout")
	})
	t.Run("an engine that was away gives time back", func(t *testing.T) {
		t.Parallel()
		waits := always("x", protocol.Dependency{Container: "k", Condition: protocol.ServiceCompleted})
		s := newStage(t, Install, component("a", job("k"), waits)).look().run("a/k").wants("")
		s.after(time.Hour).watch.Postpone(time.Hour)
		s.wants("")
	})
}

func TestSupervise(t *testing.T) {
	t.Parallel()
	t.Run("adopts what runs, starts what is missing", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("x"), always("y"), job("done"), job("cut"), always("z")))
		s.run("a/x").list["a/z"] = engine.Status{ID: engine.ID{Deployment: "app", Component: "a", Name: "z"}, Digest: "other", State: engine.Running}
		s.watch.observed = false // as a new agent
		for name, code := range map[string]int32{"a/done": 0, "a/cut": 137} {
			_, k, _ := strings.Cut(name, "/")
			id := engine.ID{Deployment: "app", Component: "a", Name: k}
			s.list[name] = engine.Status{
				ID: id, Digest: s.watch.find(id).digest,
				State: engine.Exited, ExitCode: code, StartedAt: s.now, ExitedAt: s.now,
			}
		}
		s.look().wants("start a/y; start a/cut; start a/z")
	})
	t.Run("backs off and begins again after a good while", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k"))).proven().look()
		for _, wait := range []time.Duration{1, 2, 4, 8} {
			s.run("a/k").exit("a/k", 1).next(wait * time.Second).after(wait * time.Second)
		}
		s.run("a/k").after(2*time.Minute).exit("a/k", 1).next(time.Second)
	})
	t.Run("gives up in the end", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k"))).proven().look()
		for range 6 {
			s.run("a/k").exit("a/k", 1).wants("").after(time.Minute).wants("start a/k")
		}
		s.run("a/k").exit("a/k", 1).wants("failed crash_loop")
	})
	t.Run("counts exits as in a row that are shorter than what proves", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k")))
		s.watch.limits.MinHealthy = 10 * time.Minute
		s.look()
		for _, wait := range []time.Duration{1, 2, 4} {
			s.run("a/k").after(122*time.Second).exit("a/k", 1).wants("").after(wait * time.Second).wants("start a/k")
		}
		s.run("a/k").after(122*time.Second).exit("a/k", 1).wants("failed crash_loop")
	})
	t.Run("gives up sooner before it is proven", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k"))).look()
		for _, wait := range []time.Duration{1, 2, 4} {
			s.run("a/k").after(3*time.Second).exit("a/k", 1).wants("").after(wait * time.Second).wants("start a/k")
		}
		s.run("a/k").after(3*time.Second).exit("a/k", 1).wants("failed crash_loop")
	})
	t.Run("counts an exit once", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k"))).look().run("a/k").exit("a/k", 1)
		for range 10 {
			s.look()
		}
		s.next(time.Second)
	})
	t.Run("reports why it cannot be started", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", always("k"))).proven().look()
		for i := range 7 {
			s.wants("start a/k")
			s.watch.NotStarted(s.watch.units[0].id, Failure{protocol.NoSpace, "full"}, s.now)
			if i < 6 {
				s.wants("").after(time.Minute)
			}
		}
		s.wants("failed no_space")
	})
	t.Run("fails after as many bad probes as allowed", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", probed("k"))).run("a/k").wants("probe a/k").probed("a/k", true).wants("ready")
		s.next(10 * time.Second).after(10 * time.Second).wants("probe a/k; ready")
		s.probed("a/k", false).wants("ready").after(10 * time.Second).wants("probe a/k; ready")
		s.probed("a/k", true).wants("ready") // in a row means in a row
		for range 2 {
			s.after(10*time.Second).wants("probe a/k; ready").probed("a/k", false)
		}
		s.wants("failed probe_failed")
	})
	t.Run("asks a restarted container anew", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, Supervise, component("a", probed("k"))).run("a/k").wants("probe a/k").probed("a/k", true)
		s.after(time.Second).exit("a/k", 1).after(time.Second).wants("start a/k")
		s.run("a/k").wants("probe a/k")
	})
}

func TestTolerateNeverFails(t *testing.T) {
	t.Parallel()
	s := newStage(t, Tolerate, component("a", always("k"), job("j"))).run("a/k", "a/j").exit("a/j", 1)
	for i := range 40 {
		s.exit("a/k", 1)
		if d := s.watch.Decide(s.now); d.Failure != nil {
			t.Fatalf("failed after %d exits: %v", i, d.Failure)
		}
		s.after(time.Minute).wants("start a/k").run("a/k")
	}
}

func TestStopOrder(t *testing.T) {
	t.Parallel()
	status := func(c, k string) engine.Status {
		return engine.Status{ID: engine.ID{Deployment: "app", Component: c, Name: k}}
	}
	needs := func(k protocol.Container, others ...string) protocol.Container {
		for _, o := range others {
			k.DependsOn = append(k.DependsOn, protocol.Dependency{Container: o})
		}
		return k
	}
	inside := job("inside")
	inside.NetworkOf = "db"
	// web → app → db ← inside, web → db; another component beside them; and one that no version has.
	spec := &protocol.DeploymentSpec{Components: []protocol.Component{
		component("b", needs(job("web"), "app", "db"), needs(job("app"), "db"), job("db"), inside), component("a", job("web")),
	}}
	var list []engine.Status
	for _, k := range [][2]string{{"a", "web"}, {"b", "app"}, {"b", "db"}, {"b", "inside"}, {"b", "web"}, {"x", "old"}} {
		list = append(list, status(k[0], k[1]))
	}
	for what, tt := range map[string]struct {
		spec *protocol.DeploymentSpec
		list []engine.Status
		want string
	}{
		"all":                {spec, list, "[[app/a/web app/b/inside app/b/web app/x/old] [app/b/app] [app/b/db]]"},
		"without the middle": {spec, slices.Concat(list[:1], list[2:]), "[[app/a/web app/b/inside app/b/web app/x/old] [app/b/db]]"},
		"without a version":  {nil, list, "[[app/a/web app/b/app app/b/db app/b/inside app/b/web app/x/old]]"},
		"nothing":            {spec, nil, "[]"},
	} {
		var got [][]string
		for _, group := range StopOrder(tt.spec, tt.list) {
			got = append(got, names(group))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", what, got, tt.want)
		}
	}
}

func names(list []engine.Status) (out []string) {
	for _, s := range list {
		out = append(out, s.ID.String())
	}
	return out
}
