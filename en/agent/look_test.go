package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// copyTo copies the state directory of a stopped agent into an empty one.
func (n *node) copyTo(dir string) {
	n.t.Helper()
	if err := os.CopyFS(dir, os.DirFS(n.dir)); err != nil {
		n.t.Fatal(err)
	}
}

// setBack puts what was copied in the place of the state directory of a stopped agent.
func (n *node) setBack(dir string) {
	n.t.Helper()
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Fatal(err)
	}
	if err := os.CopyFS(n.dir, os.DirFS(dir)); err != nil {
		n.t.Fatal(err)
	}
}

// TestListOfBeforeARemoval has a list of the containers arrive after a deployment in it was removed and forgotten: it is not said to have
// containers without a record, and where it is installed once more, nothing is known of how it did before.
func TestListOfBeforeARemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		n.want(version("1", 1, web()))
		n.eventually("app", lifecycle.Installed)
		n.stop()
		r := n.runner
		list, err := n.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.listing()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.records, "app")
		r.forgot("app")
		r.lookedAt(list)
		if len(r.unknown)+len(r.strays) > 0 {
			t.Errorf("containers of before: unknown are %q, without a record %v", r.unknown, r.strays)
		}
		r.mu.Unlock()
		r.listing()
		r.mu.Lock()
		r.lookedAt(list)
		if len(r.unknown) != 1 || len(r.strays) != 1 {
			t.Errorf("listed since then: unknown are %q, without a record %v, want those of app", r.unknown, r.strays)
		}
		r.forgot("app")
		if len(r.strays) > 0 {
			t.Errorf("once they are removed there are %v without a record", r.strays)
		}
	})
}

// TestFilesOfBeforeRemoveNothing sets the files of the agent back to before a deployment was installed once more, while its LO, which was set
// back as well, sends the removal of that time: containers and volumes are later than that, and stay.
func TestFilesOfBeforeRemoveNothing(t *testing.T) {
	t.Parallel()
	assigned := func(generation uint64) protocol.Assignment {
		a := version("1", 1, withVolumes("a"))
		a.Site = protocol.Position{Epoch: 1, Generation: generation}
		return a
	}
	removal := func(generation uint64) protocol.NodeRemoval {
		return protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: generation}, Volumes: true}
	}
	for name, until := range map[string]func(n *node){
		"while it is removed": func(n *node) {
			n.engine.Fail(memory.Remove, os.ErrDeadlineExceeded)
			n.remove(removal(3))
			synctest.Wait()
		},
		"once it is removed": func(n *node) {
			n.remove(removal(3))
			n.eventually("app", lifecycle.Deleted)
		},
		"once the LO knows of it": func(n *node) {
			n.remove(removal(3))
			n.removed()
		},
		"where nothing is left": func(n *node) {
			n.remove(removal(3))
			n.removed()
			n.stop()
			if err := os.RemoveAll(n.dir); err != nil {
				n.t.Fatal(err)
			}
			n.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, memory.Options{})
				n.start()
				n.want(assigned(2))
				n.eventually("app", lifecycle.Installed)
				until(n)
				n.stop()
				n.copyTo(before)
				gen := n.gen

				n.start()
				if rec := n.runner.Records(); len(rec) > 0 {
					n.eventually("app", lifecycle.Deleted)
				}
				n.want(assigned(4))
				n.eventually("app", lifecycle.Installed)
				n.stop()
				n.setBack(before)
				reported := len(n.lo.transitions())

				n.gen = gen
				n.start()
				<-time.After(time.Minute)
				n.remove(removal(3))
				<-time.After(time.Minute)
				n.wantContainers(running("web", assigned(4)))
				n.wantVolumes("after the removal of before", []string{"a"}, nil)
				if got := n.runner.Unknown(); !slices.Equal(got, []protocol.DeploymentName{"app"}) {
					t.Errorf("unknown are %v, want app", got)
				}
				if got := n.lo.transitions()[reported:]; slices.Contains(got, "DELETING>DELETED") {
					t.Errorf("reported %q, want no removal", got)
				}
				all := n.lo.reports()
				if got := all[len(all)-1].Held.Site; got != assigned(4).Site {
					t.Errorf("the LO knows that the node has followed %s, want %s", got, assigned(4).Site)
				}

				starts := n.engine.Calls(memory.Start)
				n.want(assigned(4))
				n.eventually("app", lifecycle.Installed)
				if list, err := n.engine.List(t.Context()); err != nil || len(list) != 1 || list[0].Restarts != 0 {
					t.Errorf("containers %+v %v after %d starts, want the one that ran", list, err, n.engine.Calls(memory.Start)-starts)
				}
				n.remove(removal(5))
				n.removed()
				n.wantContainers()
				n.wantVolumes("after a later removal", nil, nil)
				n.stop()
			})
		})
	}
}

// TestLostRecordOfWhatNeverWorked kills the agent while an update comes up that does not work, and damages the record: the node says that it only
// presumes that it did, until it does, and returns to the version before where the LO knows better.
func TestLostRecordOfWhatNeverWorked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sick := true
		n := newNode(t, memory.Options{})
		n.probe = func(plan.Target) bool { return !sick }
		n.start()
		v1, v2 := version("1", 1, web()), version("2", 1, probed(web()))
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(3 * time.Minute)
		lost := func() {
			t.Helper()
			n.stop()
			if err := os.RemoveAll(filepath.Join(n.dir, "deployments")); err != nil {
				t.Fatal(err)
			}
			n.start()
			n.eventually("app", lifecycle.Failed)
		}
		n.want(v2)
		for range 100 { // until its container runs
			<-time.After(10 * time.Millisecond)
			if slices.Equal(n.containers(), []string{running("web", v2)}) {
				break
			}
		}
		lost()
		defer func() { n.stop() }()
		if m := n.lo.last(t); m.Digest != v2.Digest || !m.Recovering || !m.Presumed {
			t.Errorf("reported %+v, want that the version recovers, and that it may never have worked", m)
		}
		n.stop() // it knows it after a restart
		n.start()
		synctest.Wait()
		v2.Attempt = 2
		n.want(v2)
		<-time.After(time.Minute)
		if m := n.lo.last(t); m.Attempt != 2 || !m.Recovering || !m.Presumed {
			t.Errorf("reported %+v of the second attempt, want that it may never have worked", m)
		}
		v1.Rollback, v1.Attempt = true, 2
		n.want(v1)
		if rec := n.eventually("app", lifecycle.Installed); rec.Digest != v1.Digest || rec.Refused != v2.Digest {
			t.Errorf("record %+v, want the version before, and the other one refused", rec)
		}
		n.wantContainers(running("web", v1))

		v2.Attempt, sick = 3, false
		n.want(v2)
		n.eventually("app", lifecycle.Installed)
		sick = true
		lost()
		sick = false
		n.eventually("app", lifecycle.Installed)
		sick = true
		n.eventually("app", lifecycle.Failed)
		if m := n.lo.last(t); !m.Recovering || m.Presumed {
			t.Errorf("reported %+v, want that the version has worked since", m)
		}
	})
}

// TestLostRecordOfWhatWasProven loses, or damages, the record of a deployment whose database has been away for long: its containers are not given
// up, as they might be where it had never worked.
func TestLostRecordOfWhatWasProven(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(n *node){
		"damaged": func(n *node) {
			path := filepath.Join(n.dir, "deployments/app.cbor")
			b, err := os.ReadFile(path)
			if err != nil {
				n.t.Fatal(err)
			}
			b[len(b)/2] ^= 4
			if err := os.WriteFile(path, b, 0o600); err != nil {
				n.t.Fatal(err)
			}
		},
		"lost": func(n *node) {
			if err := os.RemoveAll(filepath.Join(n.dir, "deployments")); err != nil {
				n.t.Fatal(err)
			}
		},
		"lost, and the desired state too": func(n *node) {
			if err := errors.Join(os.RemoveAll(filepath.Join(n.dir, "deployments")), os.Remove(filepath.Join(n.dir, "desired.cbor"))); err != nil {
				n.t.Fatal(err)
			}
		},
		"lost, and the engine is away for an hour": func(n *node) {
			if err := os.RemoveAll(filepath.Join(n.dir, "deployments")); err != nil {
				n.t.Fatal(err)
			}
			n.engine.Lose()
			time.AfterFunc(time.Hour, n.engine.Return)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, memory.Options{})
				sick := time.Now().Add(24 * time.Hour)
				well := sick.Add(24 * time.Hour)
				n.probe = func(plan.Target) bool { return time.Now().Before(sick) || time.Now().After(well) }
				n.start()
				c := web()
				c.Health = &protocol.Health{HTTP: "/", Port: 80, IntervalMillis: 10_000, Retries: 3}
				v1 := version("1", 1, c)
				n.want(v1)
				n.eventually("app", lifecycle.Installed)
				<-time.After(time.Until(sick))
				n.eventually("app", lifecycle.Failed)
				n.stop()
				lose(n)
				n.start()
				defer n.stop()
				<-time.After(time.Minute)
				n.want(v1)
				<-time.After(2 * time.Hour)
				n.eventually("app", lifecycle.Failed)
				if m := n.lo.last(t); !m.Recovering && m.Code != protocol.EngineUnavailable {
					t.Errorf("reported %+v, want that it recovers", m)
				}
				n.wantContainers(running("web", v1))
				<-time.After(time.Until(well))
				n.eventually("app", lifecycle.Installed)
				if got := n.engine.Calls(memory.Remove); got != 0 {
					t.Errorf("%d containers removed, want none", got)
				}
			})
		})
	}
}

// TestFilesOfBeforeRemoveNoLaterVolumes sets the files of the agent back to a removal with volumes, whatever that had done by then, after the
// deployment has had new data and was removed without its volumes: these stay, also where the LO asks for the removal of then once more.
func TestFilesOfBeforeRemoveNoLaterVolumes(t *testing.T) {
	t.Parallel()
	site := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	assigned := func(generation uint64) protocol.Assignment {
		a := version("1", 1, withVolumes("a"))
		a.Site = site(generation)
		return a
	}
	for name, begun := range map[string]bool{"while it is removed": true, "once it is removed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, memory.Options{})
				n.start()
				n.want(assigned(2))
				n.eventually("app", lifecycle.Installed)
				if begun {
					n.engine.Fail(memory.Remove, os.ErrDeadlineExceeded)
				}
				n.remove(protocol.NodeRemoval{Site: site(3), Volumes: true})
				synctest.Wait()
				if !begun {
					n.removed()
				}
				n.stop()
				n.copyTo(before)
				gen := n.gen

				n.engine.Fail(memory.Remove, nil)
				n.start()
				if begun {
					n.eventually("app", lifecycle.Deleted)
				}
				n.want(assigned(4))
				n.eventually("app", lifecycle.Installed)
				n.remove(protocol.NodeRemoval{Site: site(5)})
				n.removed()
				n.wantVolumes("at first", []string{"a"}, []string{"a"})
				n.stop()
				n.setBack(before)

				n.gen = gen
				n.start()
				<-time.After(time.Minute)
				n.wantVolumes("with the files of before", []string{"a"}, []string{"a"})
				n.remove(protocol.NodeRemoval{Site: site(3), Volumes: true})
				<-time.After(time.Minute)
				n.wantVolumes("after the removal of before", []string{"a"}, []string{"a"})
				// What is later is carried out as ever, and then nothing is remembered.
				n.remove(protocol.NodeRemoval{Site: site(6), Volumes: true})
				n.removed()
				n.wantVolumes("after a later removal", nil, nil)
				<-time.After(time.Hour)
				if followed, err := n.engine.Followed(t.Context()); err != nil || len(followed) > 0 {
					t.Errorf("once nothing is left there is %v (%v)", followed, err)
				}
				n.stop()
			})
		})
	}
}

// TestContainersThatStayedOverARemoval has containers of before a removal that was not carried out serve the same version, desired once more: with
// the files of the agent set back to that removal they stay, with their data.
func TestContainersThatStayedOverARemoval(t *testing.T) {
	t.Parallel()
	before := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		assigned := func(generation uint64) protocol.Assignment {
			a := version("1", 1, withVolumes("a"))
			a.Site = protocol.Position{Epoch: 1, Generation: generation}
			return a
		}
		n.start()
		n.want(assigned(2))
		n.eventually("app", lifecycle.Installed)
		n.engine.Fail(memory.Stop, os.ErrDeadlineExceeded)
		removal := protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 3}, Volumes: true}
		n.remove(removal)
		synctest.Wait()
		n.stop()
		n.copyTo(before)
		gen := n.gen
		n.start()
		n.want(assigned(4))
		n.eventually("app", lifecycle.Installed)
		n.engine.Fail(memory.Stop, nil)
		n.wantContainers(running("web", assigned(2)))
		n.stop()
		n.setBack(before)

		n.gen = gen
		n.start()
		<-time.After(time.Minute)
		n.remove(removal)
		<-time.After(time.Minute)
		n.wantContainers(running("web", assigned(2)))
		n.wantVolumes("after the removal of before", []string{"a"}, nil)
		n.stop()
	})
}
