package co_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/backup"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A player is an LO that adopts desired states by the rules of positions, and keeps what it
// holds while COs come and go.
type player struct {
	state protocol.SiteDesired
	runs  map[protocol.DeploymentName]bool // what is not named is left as it is
}

// connected connects to a CO, with what the player holds.
func (p *player) connected(b *bench, session string) {
	b.t.Helper()
	b.from = make(chan client.Message, 1000)
	b.connect()
	presence := protocol.Presence{V: 1, Online: true, Session: session, Version: "1"}
	if !p.state.Position.IsZero() {
		presence.Held = p.state.Held()
	}
	b.publish(topic.SiteOnline, presence, true)
}

// adopt follows desired states until one satisfies a condition.
func (p *player) adopt(b *bench, what string, until func() bool) {
	b.t.Helper()
	deadline := time.After(time.Minute)
	for !until() {
		var m client.Message
		select {
		case m = <-b.from:
		case <-deadline:
			b.t.Fatalf("not within a minute: %s; the site is at %s and runs %v", what, p.state.Position, slices.Sorted(maps.Keys(p.runs)))
		}
		if t, err := topic.Parse(m.Topic); err != nil || t.Kind != topic.SiteDesired {
			continue
		}
		var next protocol.SiteDesired
		if err := protocol.Unmarshal(m.Payload, &next); err != nil {
			b.t.Fatal(err)
		}
		if !next.Position.After(p.state.Position) {
			continue
		}
		if next.Digest != "" {
			body := b.fetch("/api/v1/specs/" + string(next.Digest))
			if body == nil {
				continue // a later one has replaced it
			}
			if err := protocol.Unmarshal(body, &next); err != nil {
				b.t.Fatal(err)
			}
		}
		p.state = next
		for _, e := range next.Deployments {
			p.runs[e.Deployment] = true
		}
		for _, r := range next.Removals {
			delete(p.runs, r.Deployment)
		}
	}
}

// fetch returns what the API has at a path, nil where there is nothing.
func (b *bench) fetch(path string) []byte {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatalf("GET %s: %s, %v", path, resp.Status, err)
	}
	return body
}

// startIn is startOn with a directory that outlives the CO.
func startIn(t *testing.T, dir, url, remote string) *bench {
	t.Helper()
	b := &bench{t: t, remote: remote}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = dir, url, "127.0.0.1:0", "127.0.0.1:0", remote
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	o.Import = co.ImportOptions{Roots: []string{examples}}
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	if b.co, err = co.New(o); err != nil {
		t.Fatal(err)
	}
	if err := b.co.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

// end disconnects the site and stops the CO.
func (b *bench) end() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.site.Stop(ctx); err != nil {
		b.t.Error(err)
	}
	b.stop()
}

// raised counts the events that say that the CO went on above what the site holds.
func (b *bench) raised() int {
	b.t.Helper()
	var page form.List[fleet.Event]
	b.call(http.MethodGet, "/api/v1/events?limit=1000&site=plant&newest=true", nil, &page)
	n := 0
	for _, e := range page.Items {
		if e.Kind == fleet.DesiredEpochRaised {
			n++
		}
	}
	return n
}

// TestRestoreToEarlierMoments sets the database of a CO back to each of 20 earlier moments.
// Each time the next change reaches the site, nothing is removed that git has, what git has
// not is removed, and one event says what was lost.
func TestRestoreToEarlierMoments(t *testing.T) {
	t.Parallel()
	const moments = 20
	dir := t.TempDir()
	url, remote, state := pgtest.NewOwn(t).URL(), filepath.Join(dir, "remote.git"), filepath.Join(dir, "co")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	source := backup.Source{DatabaseURL: url, StateDir: state, Remote: remote, NoRegistry: true}
	moment := func(i int) string { return filepath.Join(dir, fmt.Sprintf("moment-%02d", i)) }

	p := &player{runs: map[protocol.DeploymentName]bool{}}
	b := startIn(t, state, url, remote)
	p.connected(b, "first")
	b.pushSample()
	samples, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": samples}, nil)
	want := map[protocol.DeploymentName]bool{}
	deploy := func(name string) {
		t.Helper()
		b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": name}, nil)
		want[protocol.DeploymentName(name)] = true
	}
	follow := func(what string) {
		t.Helper()
		p.adopt(b, what, func() bool { return maps.Equal(p.runs, want) })
	}
	for i := range moments {
		if i%4 == 3 {
			name := fmt.Sprintf("d%02d", i-2)
			b.call(http.MethodDelete, "/api/v1/deployments/plant/"+name, nil, nil)
			delete(want, protocol.DeploymentName(name))
		} else {
			deploy(fmt.Sprintf("d%02d", i))
		}
		follow(fmt.Sprintf("change %d", i))
		if _, err := backup.Create(t.Context(), source, moment(i)); err != nil {
			t.Fatal(err)
		}
	}
	b.end()
	for i := range moments {
		if _, err := backup.Restore(t.Context(), source, moment(i), backup.Choices{Replace: true}); err != nil {
			t.Fatalf("moment %d: %v", i, err)
		}
		before := p.state.Position
		b = startIn(t, state, url, remote)
		p.connected(b, fmt.Sprintf("restored-%d", i))
		deploy(fmt.Sprintf("r%02d", i))
		follow(fmt.Sprintf("the change after the restore of moment %d", i))
		if !p.state.Position.After(before) || p.state.Position.Generation <= before.Generation {
			t.Errorf("moment %d: the site was at %s and is at %s", i, before, p.state.Position)
		}
		if n := b.raised(); n != 1 {
			t.Errorf("moment %d: %d events say that the CO went on above the site, want one", i, n)
		}
		b.end()
	}
	if names := slices.Sorted(maps.Keys(p.runs)); !strings.HasPrefix(string(names[0]), "d00") || len(names) != len(want) {
		t.Errorf("the site runs %v", names)
	}
}

// TestRestoreWhereTheLOLostItsState sets the database back to a removal with volumes, where the site has lost what it held: since then the deployment came back
// and was removed without them, so that they stay.
func TestRestoreWhereTheLOLostItsState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url, remote, state := pgtest.NewOwn(t).URL(), filepath.Join(dir, "remote.git"), filepath.Join(dir, "co")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	source := backup.Source{DatabaseURL: url, StateDir: state, Remote: remote, NoRegistry: true}
	p := &player{runs: map[protocol.DeploymentName]bool{}}
	b := startIn(t, state, url, remote)
	p.connected(b, "first")
	b.pushSample()
	samples, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": samples}, nil)
	deploy := func(name string) {
		t.Helper()
		b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": name}, nil)
		p.adopt(b, "deployment of "+name, func() bool { return p.runs[protocol.DeploymentName(name)] })
	}
	remove := func(name, query string) {
		t.Helper()
		b.call(http.MethodDelete, "/api/v1/deployments/plant/"+name+query, nil, nil)
		p.adopt(b, "removal of "+name, func() bool { return !p.runs[protocol.DeploymentName(name)] })
	}
	deploy("a")
	deploy("b")
	remove("a", "?volumes=true")
	if len(p.state.Removals) != 1 || !p.state.Removals[0].Volumes {
		t.Fatalf("the site is to remove %+v, want a with its volumes", p.state.Removals)
	}
	if _, err := backup.Create(t.Context(), source, filepath.Join(dir, "moment")); err != nil {
		t.Fatal(err)
	}
	deploy("a")
	remove("a", "")
	before := p.state.Position
	b.end()
	if _, err := backup.Restore(t.Context(), source, filepath.Join(dir, "moment"), backup.Choices{Replace: true}); err != nil {
		t.Fatal(err)
	}
	p.state = protocol.SiteDesired{}
	b = startIn(t, state, url, remote)
	p.connected(b, "restored")
	deploy("c")
	if len(p.state.Removals) != 1 || p.state.Removals[0].Volumes || !p.state.Position.After(before) {
		t.Errorf("at %s the site is to remove %+v, want a without its volumes, after %s", p.state.Position, p.state.Removals, before)
	}
	if n := b.raised(); n != 1 {
		t.Errorf("%d events say that the CO went on above the site, want one", n)
	}
}

// TestRestoreOfTwoMoments sets the database and the deployments repo back to different moments: the repo to where a deployment was removed, the database to
// before that, while the site runs a later one of that name. It stays until a person confirms its removal.
func TestRestoreOfTwoMoments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url, remote, state := pgtest.NewOwn(t).URL(), filepath.Join(dir, "remote.git"), filepath.Join(dir, "co")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	source := backup.Source{DatabaseURL: url, StateDir: state, Remote: remote, NoRegistry: true}
	p := &player{runs: map[protocol.DeploymentName]bool{}}
	b := startIn(t, state, url, remote)
	p.connected(b, "first")
	b.pushSample()
	samples, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": samples}, nil)
	deploy := func(name string) {
		t.Helper()
		b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": name}, nil)
		p.adopt(b, "deployment of "+name, func() bool { return p.runs[protocol.DeploymentName(name)] })
	}
	removed := func() {
		t.Helper()
		p.adopt(b, "removal of a", func() bool { return !p.runs["a"] })
	}
	deploy("a")
	deploy("b")
	if _, err := backup.Create(t.Context(), source, filepath.Join(dir, "moment")); err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodDelete, "/api/v1/deployments/plant/a", nil, nil)
	removed()
	earlier := b.git("rev-parse", "main")
	deploy("a")
	b.end()
	b.git("update-ref", "refs/heads/main", earlier)
	source.StateDir = filepath.Join(dir, "another") // the CO's clone of the repo knows better
	if _, err := backup.Restore(t.Context(), source, filepath.Join(dir, "moment"), backup.Choices{Replace: true}); err != nil {
		t.Fatal(err)
	}
	b = startIn(t, source.StateDir, url, remote)
	b.pushSample()
	p.connected(b, "restored")
	deploy("c")
	if !p.runs["a"] || !p.runs["b"] || len(p.state.Removals) > 0 {
		t.Errorf("the site runs %v and is to remove %+v, want a, b and c and nothing", p.runs, p.state.Removals)
	}
	var open form.List[proposal.Proposal]
	b.call(http.MethodGet, "/api/v1/proposals?state=open", nil, &open)
	if len(open.Items) != 1 || open.Items[0].Deployments != 1 {
		t.Fatalf("open proposals %+v, want one of a", open.Items)
	}
	var shown proposal.Proposal
	b.call(http.MethodGet, "/api/v1/proposals/"+open.Items[0].ID, nil, &shown)
	if len(shown.Effects) != 1 || shown.Effects[0].Deployment != "a" || shown.Effects[0].Cause != proposal.SetBack {
		t.Errorf("the proposal has %+v, want a, because the branch was set back", shown.Effects)
	}
	b.call(http.MethodPost, "/api/v1/proposals/"+open.Items[0].ID+"/confirm", nil, nil)
	removed()
	if n := b.raised(); n != 1 {
		t.Errorf("%d events say that the CO went on above the site, want one", n)
	}
}

// git runs a command of git in the deployments repo, and returns what it prints.
func (b *bench) git(args ...string) string {
	b.t.Helper()
	out, err := exec.CommandContext(b.t.Context(), "git", append([]string{"--git-dir=" + b.remote}, args...)...).CombinedOutput() //nolint:gosec // a test
	if err != nil {
		b.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestRestoreWhileRemovalsAreHeld sets the database back to before a deployment was changed, and before its removal was held: the site
// gets nothing of it, and neither goes back nor removes it.
func TestRestoreWhileRemovalsAreHeld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url, remote, state := pgtest.NewOwn(t).URL(), filepath.Join(dir, "remote.git"), filepath.Join(dir, "co")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	source := backup.Source{DatabaseURL: url, StateDir: state, Remote: remote, NoRegistry: true}
	p := &player{runs: map[protocol.DeploymentName]bool{}}
	b := startIn(t, state, url, remote)
	p.connected(b, "first")
	b.pushSample()
	samples, err := filepath.Abs("../examples/registry")
	if err != nil {
		t.Fatal(err)
	}
	b.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": samples}, nil)
	deploy := func(name, version string) {
		t.Helper()
		b.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": version, "name": name}, nil)
		p.adopt(b, "deployment of "+name, func() bool { return p.runs[protocol.DeploymentName(name)] })
	}
	for _, name := range []string{"a", "b", "c"} {
		deploy(name, "1.0.0")
	}
	if _, err := backup.Create(t.Context(), source, filepath.Join(dir, "moment")); err != nil {
		t.Fatal(err)
	}
	before := p.state.Position
	b.push(func(repo string) {
		if err := os.RemoveAll(filepath.Join(repo, "deployments")); err != nil {
			t.Fatal(err)
		}
	})
	b.event(fleet.ProposalOpened, "")
	deploy("d", "1.0.0")
	deploy("e", "1.0.0")
	b.end()
	if _, err := backup.Restore(t.Context(), source, filepath.Join(dir, "moment"), backup.Choices{Replace: true}); err != nil {
		t.Fatal(err)
	}
	b = startIn(t, state, url, remote)
	p.connected(b, "restored")
	deploy("f", "1.0.0")
	var listed []string
	for _, e := range p.state.Deployments {
		listed = append(listed, string(e.Deployment))
	}
	if got := strings.Join(listed, ""); got != "def" || len(p.state.Removals) != 0 || !p.state.Position.After(before) {
		t.Errorf("at %s the site gets %s and is to remove %v, want d, e and f and nothing", p.state.Position, got, p.state.Removals)
	}
	if n := b.raised(); n != 1 {
		t.Errorf("%d events say that the CO went on above the site, want one", n)
	}
}
