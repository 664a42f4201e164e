package co_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
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
