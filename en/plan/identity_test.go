package plan

import (
	"slices"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// stack is a database, a job that prepares it, and the application that waits for
// both.
func stack() *protocol.DeploymentSpec {
	return &protocol.DeploymentSpec{V: 1, Deployment: "app", Components: []protocol.Component{component(
		"main",
		protocol.Container{Name: "db", Image: "hub/db@sha256:1", Env: []string{"A=1"}},
		protocol.Container{Name: "migrate", Image: "hub/app@sha256:2", DependsOn: []protocol.Dependency{{Container: "db", Condition: protocol.ServiceHealthy}}},
		protocol.Container{Name: "app", Image: "hub/app@sha256:2", DependsOn: []protocol.Dependency{{Container: "migrate", Condition: protocol.ServiceCompleted}}},
	)}}
}

func TestWhatAnUpdateReplaces(t *testing.T) {
	t.Parallel()
	names := []string{"db", "migrate", "app"}
	for _, c := range []struct {
		name   string
		change func(s *protocol.DeploymentSpec, all []protocol.Container)
		want   []string
	}{
		{"nothing", func(*protocol.DeploymentSpec, []protocol.Container) {}, nil},
		{"version of the application", func(s *protocol.DeploymentSpec, _ []protocol.Container) { s.AppVersion, s.ID = "2", "other" }, nil},
		{"environment", func(_ *protocol.DeploymentSpec, all []protocol.Container) { all[0].Env = []string{"A=2"} }, []string{"db"}},
		{"image", func(_ *protocol.DeploymentSpec, all []protocol.Container) { all[0].Image = "hub/db@sha256:3" }, []string{"db"}},
		{"registry", func(_ *protocol.DeploymentSpec, all []protocol.Container) { all[0].Image = "mirror/db@sha256:1" }, nil},
		{"what a job prepares for", func(_ *protocol.DeploymentSpec, all []protocol.Container) { all[2].Env = []string{"A=2"} }, []string{"migrate", "app"}},
		{"job", func(_ *protocol.DeploymentSpec, all []protocol.Container) { all[1].Env = []string{"A=2"} }, []string{"migrate"}},
		{"probe and restart", func(_ *protocol.DeploymentSpec, all []protocol.Container) {
			all[0].Health, all[0].Restart = &protocol.Health{Port: 1}, protocol.Restart{Policy: protocol.RestartAlways}
		}, nil},
		{"component", func(s *protocol.DeploymentSpec, _ []protocol.Container) { s.Components[0].Name = "other" }, names},
		{"empty in place of absent", func(_ *protocol.DeploymentSpec, all []protocol.Container) {
			all[0].Command, all[0].Labels = []string{}, map[string]string{}
		}, nil},
	} {
		before, next := Identities(stack())[0], stack()
		c.change(next, next.Components[0].Containers)
		after := Identities(next)[0]
		var got []string
		for i, name := range names {
			if before[i] != after[i] {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: replaces %q, want %q", c.name, got, c.want)
		}
	}
}

// Whom a volume belongs to matters when it is made: a container that has it stays. A tmpfs and a
// file are made anew.
func TestOwnersOfMounts(t *testing.T) {
	t.Parallel()
	for kind, stays := range map[protocol.MountKind]bool{protocol.MountVolume: true, protocol.MountTmpfs: false, protocol.MountFile: false} {
		spec := func(uid, gid uint32) *protocol.DeploymentSpec {
			return &protocol.DeploymentSpec{Components: []protocol.Component{component("main", protocol.Container{
				Name: "web", Image: "hub/web@sha256:1", Mounts: []protocol.Mount{{Kind: kind, Target: "/data", Source: "main_data", UID: uid, GID: gid}},
			})}}
		}
		owned := spec(1000, 0)
		if got := Identities(spec(0, 0))[0][0] == Identities(owned)[0][0] && Identities(spec(0, 7))[0][0] == Identities(owned)[0][0]; got != stays {
			t.Errorf("with another owner of a %s the container stays: %t, want %t", kind, got, stays)
		}
		if owned.Components[0].Containers[0].Mounts[0].UID != 1000 {
			t.Errorf("the specification of a %s was changed", kind)
		}
	}
}

// A container in the network of another one is replaced with it, and one whose
// dependency says so; a restart of the dependency's dependency passes through.
func TestWhatIsReplacedWithAnother(t *testing.T) {
	t.Parallel()
	names := []string{"vpn", "inside", "after", "last", "free"}
	spec := func(env, inside string) *protocol.DeploymentSpec {
		return &protocol.DeploymentSpec{Components: []protocol.Component{component("main",
			protocol.Container{Name: "vpn", Image: "hub/vpn@sha256:1", Env: []string{env}},
			protocol.Container{Name: "inside", Image: "hub/a@sha256:1", NetworkOf: "vpn", Env: []string{inside}, DependsOn: []protocol.Dependency{{Container: "vpn"}}},
			protocol.Container{Name: "after", Image: "hub/a@sha256:1", DependsOn: []protocol.Dependency{{Container: "inside", Restart: true}}},
			protocol.Container{Name: "last", Image: "hub/a@sha256:1", DependsOn: []protocol.Dependency{{Container: "after", Restart: true}}},
			protocol.Container{Name: "free", Image: "hub/a@sha256:1", DependsOn: []protocol.Dependency{{Container: "vpn"}}},
		)}}
	}
	before := Identities(spec("A=1", "B=1"))[0]
	for _, c := range []struct {
		name, vpn, inside string
		want              []string
	}{
		{"nothing", "A=1", "B=1", nil},
		{"the owner of the network", "A=2", "B=1", []string{"vpn", "inside", "after", "last"}},
		{"the one in it", "A=1", "B=2", []string{"inside", "after", "last"}},
	} {
		var got []string
		for i, d := range Identities(spec(c.vpn, c.inside))[0] {
			if d != before[i] {
				got = append(got, names[i])
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: replaces %q, want %q", c.name, got, c.want)
		}
	}
}

// A fleet's containers must not be replaced because the agent was: these identities
// stay as they are when fields are added.
func TestIdentitiesAreStable(t *testing.T) {
	t.Parallel()
	want := []protocol.Digest{
		"sha256:54590f9eab488ec912d023418fd983fba3e32f13945120e31d9944fdfa7440ac",
		"sha256:90b7510bed36da7de2db800c6aa38d5fee190689b2729255597421e94893b44c",
		"sha256:3259a646cff06b0b4a86edc598d9e28dea9f95c414b2463b34250000820466ce",
	}
	if got := Identities(stack())[0]; !slices.Equal(got, want) {
		t.Errorf("identities %q, want %q", got, want)
	}
}

func TestWhatStaysUpAfterAFailure(t *testing.T) {
	t.Parallel()
	healthy, failed := stack(), stack()
	failed.Components[0].Containers[2].Env = []string{"A=2"}
	rec := Record{Deployment: "app", Digest: "sha256:1", Spec: protocol.Marshal(healthy)}.Installed()
	names := func(r Record) (out []string) {
		for _, c := range r.StaysUp().Components {
			for _, k := range c.Containers {
				out = append(out, k.Name)
			}
		}
		return out
	}
	rec.Digest, rec.Spec = "sha256:2", protocol.Marshal(failed)
	if got := names(rec.Failed(Failure{})); len(got) != 3 {
		t.Errorf("before the cut-over %q stay up, want the old version", got)
	}
	rec = rec.CutOver()
	if got := names(rec.Failed(Failure{})); !slices.Equal(got, []string{"db"}) {
		t.Errorf("after the cut-over %q stay up, want what the versions share", got)
	}
	rec = Record{Deployment: "app", Digest: "sha256:1", Spec: protocol.Marshal(healthy)}.Installed().Failed(Failure{})
	if got := names(rec); got != nil {
		t.Errorf("%q stay up of an installed version that failed", got)
	}
}
