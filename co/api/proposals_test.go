package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// push makes a commit as a person does, past the API. A content of nil removes the file.
func (w *world) push(message string, files map[string][]byte) string {
	w.t.Helper()
	commit, err := w.repo.Commit(w.t.Context(), git.Change{Message: message, Files: files})
	if err != nil {
		w.t.Fatal(err)
	}
	w.loop.Notify()
	return commit
}

// until waits until a condition holds.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (w *world) proposals(query string) []proposal.Proposal {
	w.t.Helper()
	var out form.List[proposal.Proposal]
	w.get("/api/v1/proposals"+query).into(http.StatusOK, &out)
	return out.Items
}

// names returns the deployments of the site home that are not archived.
func (w *world) names() string {
	w.t.Helper()
	var out form.List[fleet.Deployment]
	w.get("/api/v1/deployments?site=home").into(http.StatusOK, &out)
	var names []string
	for _, d := range out.Items {
		names = append(names, string(d.Name))
	}
	return strings.Join(names, " ")
}

// threeRun returns a world in which a, b and c run at home, and the files of all.
func threeRun(t *testing.T) (*world, map[string][]byte) {
	t.Helper()
	w := site(t)
	files := map[string][]byte{}
	for _, name := range []string{"a", "b", "c"} {
		w.deploy(map[string]any{"site": "home", "app": "hello", "name": name, "version": "1.0.0"})
		w.transitions(protocol.DeploymentName(name), lifecycle.Pending, lifecycle.Installing, lifecycle.Installed)
		path := "deployments/home/" + name + "/deployment.yaml"
		content, _, err := repo{w.repo}.File(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = content
	}
	return w, files
}

// removed returns the paths of files, each to be removed.
func removed(files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for p := range files {
		out[p] = nil
	}
	return out
}

func TestProposalIsShownAndConfirmed(t *testing.T) {
	t.Parallel()
	w, files := threeRun(t)
	commit := w.push("Remove everything", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })

	p := w.proposals("?state=open")[0]
	diff(t, "proposal", []any{proposal.Removals, commit, proposal.Open, 3, 1, 3, 3}, []any{p.Kind, p.Commit, p.State, p.Held, p.Sites, p.Deployments, p.Nodes})
	var shown proposal.Proposal
	w.get("/api/v1/proposals/"+p.ID).into(http.StatusOK, &shown)
	diff(t, "number of effects", 3, len(shown.Effects))
	diff(t, "first effect", proposal.Effect{
		Site: "home", Deployment: "a", App: "hello", AppVersion: "1.0.0", Cause: proposal.Many, State: proposal.Open, Nodes: []protocol.NodeID{"gw-1"}, NodeCount: 1,
	}, shown.Effects[0])
	var d fleet.Deployment
	w.get("/api/v1/deployments/home/b").into(http.StatusOK, &d)
	if want := "removal held (proposal " + p.ID + ")"; d.Held != p.ID || !strings.HasPrefix(d.Reason, want) || d.Archived {
		t.Errorf("b is held by %q because of %q, archived %t; want it held by %s, %q", d.Held, d.Reason, d.Archived, p.ID, want)
	}
	w.do(http.MethodPatch, "/api/v1/deployments/home/b", map[string]any{}).fails(http.StatusNotFound, "its removal is held and it stays as it is", p.ID)
	var s api.Status
	w.get("/api/v1/status").into(http.StatusOK, &s)
	diff(t, "status", []int{1, 3}, []int{s.Proposals, s.Held})

	w.do(http.MethodPost, "/api/v1/proposals/"+p.ID+"/confirm", map[string]string{"by": "Ann"}).into(http.StatusOK, &shown)
	diff(t, "answer", []any{proposal.Confirmed, 0, "Ann"}, []any{shown.State, shown.Held, shown.ClosedBy})
	for _, name := range []string{"a", "b", "c"} {
		w.until(name+" is on its way out", func() bool {
			var now fleet.Deployment
			w.get("/api/v1/deployments/home/"+name).into(http.StatusOK, &now)
			return now.State == lifecycle.Deleting && now.Held == ""
		})
	}
	w.do(http.MethodPost, "/api/v1/proposals/"+p.ID+"/confirm", nil).into(http.StatusOK, nil) // once more is no error
	w.do(http.MethodPost, "/api/v1/proposals/"+p.ID+"/withdraw", nil).fails(http.StatusConflict, "proposal "+p.ID+" was confirmed already")
	w.do(http.MethodPost, "/api/v1/proposals/00000000/confirm", nil).fails(http.StatusNotFound, `no proposal "00000000"`)

	events, err := w.store.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.ProposalOpened, fleet.ProposalConfirmed, fleet.DeploymentRemoved}})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	diff(t, "events", []string{
		fleet.ProposalOpened, fleet.ProposalConfirmed, fleet.DeploymentRemoved, fleet.DeploymentRemoved, fleet.DeploymentRemoved,
	}, kinds)
	if want := "proposal " + p.ID + " to remove 3 deployments at 1 sites (commit " + commit[:12] + ") was confirmed by Ann"; events[1].Message != want {
		t.Errorf("event %q, want %q", events[1].Message, want)
	}
}

func TestProposalIsSuperseded(t *testing.T) {
	t.Parallel()
	w, files := threeRun(t)
	w.push("Remove everything", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })
	w.push("Put it back", files)
	w.until("nothing is held", func() bool { return len(w.proposals("?state=open")) == 0 })
	all := w.proposals("")
	diff(t, "proposals", []any{1, proposal.Superseded}, []any{len(all), all[0].State})
	diff(t, "deployments", "a b c", w.names())
	w.do(http.MethodPost, "/api/v1/proposals/"+all[0].ID+"/confirm", nil).fails(http.StatusConflict, "was superseded already")

	// The same once more is another proposal.
	w.push("Remove everything", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })
	if all = w.proposals("?limit=1"); len(all) != 1 || all[0].State != proposal.Open {
		t.Errorf("the newest proposal is %+v, want an open one", all)
	}
}

func TestProposalIsConfirmedByTrailer(t *testing.T) {
	t.Parallel()
	w, files := threeRun(t)
	w.push("Remove everything", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })
	id := w.proposals("")[0].ID
	w.push("Yes\n\nColony-Confirm: "+id, map[string][]byte{"NOTES.md": []byte("x")})
	w.until("it is confirmed", func() bool { return w.proposals("")[0].State == proposal.Confirmed })
	if by := w.proposals("")[0].ClosedBy; !strings.HasPrefix(by, "Colony <colony@localhost> in commit ") {
		t.Errorf("confirmed by %q, want the author and the commit", by)
	}
}

// TestDeleteConfirmsItself deletes everything by name, also what was withdrawn before.
func TestDeleteConfirmsItself(t *testing.T) {
	t.Parallel()
	w, files := threeRun(t)
	path := "deployments/home/c/deployment.yaml"
	delete(files, path)
	w.push("Remove two", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })
	var p proposal.Proposal
	w.do(http.MethodPost, "/api/v1/proposals/"+w.proposals("")[0].ID+"/withdraw", map[string]string{"by": "Ann"}).into(http.StatusOK, &p)
	diff(t, "state", proposal.Withdrawn, p.State)
	w.push("Something else", map[string][]byte{"NOTES.md": []byte("x")})

	state := func(name string) fleet.Deployment {
		var d fleet.Deployment
		w.get("/api/v1/deployments/home/"+name).into(http.StatusOK, &d)
		return d
	}
	w.do(http.MethodDelete, "/api/v1/deployments/home/a", nil).into(http.StatusNoContent, nil)
	w.until("a is on its way out", func() bool { return state("a").State == lifecycle.Deleting })
	if d := state("b"); d.Held != p.ID || d.State == lifecycle.Deleting || !d.Withdrawn || !strings.Contains(d.Reason, "it stays until it is deleted by name, or deployed again") || strings.Contains(d.Reason, "held") {
		t.Errorf("b is %s, held by %q, because of %q; want it to stay, held by %s, which was withdrawn", d.State, d.Held, d.Reason, p.ID)
	}
	w.do(http.MethodPatch, "/api/v1/deployments/home/b", map[string]any{}).fails(http.StatusNotFound, "proposal "+p.ID+" was withdrawn; colony deployment delete removes it")
	w.do(http.MethodDelete, "/api/v1/deployments/home/b", nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, "/api/v1/deployments/home/c", nil).into(http.StatusNoContent, nil)
	for _, name := range []string{"b", "c"} {
		w.until(name+" is on its way out", func() bool { return state(name).State == lifecycle.Deleting })
	}
	w.do(http.MethodDelete, "/api/v1/deployments/home/b", nil).into(http.StatusNoContent, nil) // a node holds it
	if open := w.proposals("?state=open"); len(open) != 0 {
		t.Errorf("open proposals: %+v", open)
	}
	standing, err := w.proposalStore.Standing(t.Context())
	if err != nil || len(standing) != 0 {
		t.Errorf("standing %v, %v; want nothing", standing, err)
	}
}

// TestDeletedRowsHeal deletes what is recorded as desired from the database: the next audit
// puts back what the repo says.
func TestDeletedRowsHeal(t *testing.T) {
	t.Parallel()
	w := site(t)
	w.deploy(map[string]any{"site": "home", "app": "hello", "name": "a", "version": "1.0.0"})
	w.deploy(map[string]any{"site": "home", "app": "hello", "name": "b", "version": "1.0.0"})
	if _, err := w.db.Exec(t.Context(), `delete from deployments where name = 'a'`); err != nil {
		t.Fatal(err)
	}
	w.loop.Reread()
	w.until("a is recorded again", func() bool { return w.names() == "a b" })
	last, err := w.store.LastDesired(t.Context(), "home")
	if err != nil || len(last.Deployments) != 2 {
		t.Errorf("the desired state has %d deployments, %v; want both", len(last.Deployments), err)
	}
}

// TestDeleteWithVolumes asks to remove the volumes of one of two deployments.
func TestDeleteWithVolumes(t *testing.T) {
	t.Parallel()
	w, _ := threeRun(t)
	w.do(http.MethodDelete, "/api/v1/deployments/home/a?volumes=true", nil).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, "/api/v1/deployments/home/b", nil).into(http.StatusNoContent, nil)
	var last protocol.SiteDesired
	w.until("both have tombstones", func() bool {
		var err error
		if last, err = w.store.LastDesired(t.Context(), "home"); err != nil {
			t.Fatal(err)
		}
		return len(last.Removals) == 2
	})
	for i, want := range []bool{true, false} {
		if r := last.Removals[i]; r.Volumes != want {
			t.Errorf("the tombstone of %s removes volumes: %t, want %t", r.Deployment, r.Volumes, want)
		}
	}
}

// TestDeleteOfWhatIsHeldTakesTheVolumes deletes, by name and with the volumes, a deployment whose removal is held.
func TestDeleteOfWhatIsHeldTakesTheVolumes(t *testing.T) {
	t.Parallel()
	w, files := threeRun(t)
	w.push("Remove everything", removed(files))
	w.until("the removals are held", func() bool { return len(w.proposals("?state=open")) == 1 })
	w.do(http.MethodDelete, "/api/v1/deployments/home/b?volumes=true", nil).into(http.StatusNoContent, nil)
	w.until("it is removed, with its volumes", func() bool {
		m, err := w.store.LastDesired(t.Context(), "home")
		return err == nil && len(m.Removals) == 1 && m.Removals[0].Deployment == "b" && m.Removals[0].Volumes
	})
}
