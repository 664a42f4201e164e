package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func withVolumes(names ...string) protocol.Container {
	c := web()
	for _, name := range names {
		c.Mounts = append(c.Mounts, protocol.Mount{Kind: protocol.MountVolume, Source: name, Target: "/" + name})
	}
	return c
}

// present returns the names of the volumes on the node.
func (n *node) present() []string {
	n.t.Helper()
	list, err := n.engine.Volumes(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, v := range list {
		out = append(out, v.Name)
	}
	return out
}

func (n *node) wantVolumes(what string, present []string, retained []string) {
	n.t.Helper()
	synctest.Wait()
	if got := n.present(); !slices.Equal(got, present) {
		n.t.Errorf("%s: volumes %v, want %v", what, got, present)
	}
	var got []string
	list, count := n.runner.Volumes()
	for _, v := range list {
		got = append(got, v.Name)
	}
	if !slices.Equal(got, retained) || count != len(retained) {
		n.t.Errorf("%s: retained %v (%d), want %v", what, got, count, retained)
	}
}

// TestVolumesOutliveTheirDeployment follows volumes through a removal, a return, a
// purge and the end of their retention.
func TestVolumesOutliveTheirDeployment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		o := n.options()
		o.VolumeRetention = 48 * time.Hour
		n.startWith(o)
		v1 := version("1", 1, withVolumes("a", "b", "c"))
		all := []string{"a", "b", "c"}
		n.want(v1)
		n.eventually("app", lifecycle.Installed)
		n.wantVolumes("in use", all, nil)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 1}})
		n.removed()
		n.wantVolumes("after the removal", all, all)
		<-time.After(40 * time.Hour)
		n.want(v1) // it finds them again
		n.eventually("app", lifecycle.Installed)
		n.wantVolumes("deployed again", all, nil)
		<-time.After(40 * time.Hour)
		n.wantVolumes("still in use", all, nil)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 2}})
		n.removed()
		n.wantVolumes("removed again", all, all)

		purge := func(volume string, generation uint64) {
			t.Helper()
			n.gen++
			d := protocol.NodeDesired{
				V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen},
				Purges: []protocol.NodePurge{{Deployment: "app", Volume: volume, Site: protocol.Position{Epoch: 1, Generation: generation}}},
			}
			if err := n.runner.Accept(t.Context(), protocol.Marshal(d)); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		purge("b", 3)
		n.wantVolumes("after a purge", []string{"a", "c"}, []string{"a", "c"})
		purge("c", 3) // at a position that was carried out
		n.wantVolumes("after a purge of before", []string{"a", "c"}, []string{"a", "c"})

		<-time.After(30 * time.Hour)
		n.stop()
		<-time.After(1000 * time.Hour) // the agent does not run: it counts nothing
		n.startWith(func() Options { o := n.options(); o.VolumeRetention = 48 * time.Hour; return o }())
		<-time.After(17 * time.Hour)
		n.wantVolumes("before the end of the retention", []string{"a", "c"}, []string{"a", "c"})
		<-time.After(3 * time.Hour)
		n.wantVolumes("after the retention", nil, nil)
		n.stop()
	})
}

// TestVolumesAreRemovedWhereAPersonAsked has tombstones with Volumes.
func TestVolumesAreRemovedWhereAPersonAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		n.want(version("1", 1, withVolumes("a")))
		n.eventually("app", lifecycle.Installed)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 1}, Volumes: true})
		n.eventually("app", lifecycle.Deleted)
		n.wantVolumes("after a removal with volumes", nil, nil)

		// Those of a deployment that was removed before, too.
		n.want(version("1", 2, withVolumes("a")))
		n.eventually("app", lifecycle.Installed)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 2}})
		n.removed()
		n.wantVolumes("after a removal without volumes", []string{"a"}, []string{"a"})
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 3}, Volumes: true})
		n.eventually("app", lifecycle.Deleted)
		n.wantVolumes("after they were asked for", nil, nil)

		// What comes again of before is about other volumes.
		n.want(version("1", 4, withVolumes("a")))
		n.eventually("app", lifecycle.Installed)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 5}})
		n.removed()
		n.wantVolumes("after another removal without volumes", []string{"a"}, []string{"a"})
		for range 2 { // also after a restart
			n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 3}, Volumes: true})
			<-time.After(time.Minute)
			n.wantVolumes("after a tombstone of before, as of a CO that was restored", []string{"a"}, []string{"a"})
			n.stop()
			n.start()
		}
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 2, Generation: 1}, Volumes: true})
		n.eventually("app", lifecycle.Deleted)
		n.wantVolumes("after they were asked for again", nil, nil)
	})
}

// TestPurgeWithTheRemoval has a purge that arrives while its deployment is still there.
func TestPurgeWithTheRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		n.start()
		defer n.stop()
		n.want(version("1", 1, withVolumes("a")))
		n.eventually("app", lifecycle.Installed)
		n.gen++
		d := protocol.NodeDesired{
			V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen},
			Removals: []protocol.NodeRemoval{{Deployment: "app", Site: protocol.Position{Epoch: 1, Generation: 1}}},
			Purges:   []protocol.NodePurge{{Deployment: "app", Site: protocol.Position{Epoch: 1, Generation: 2}}},
		}
		if err := n.runner.Accept(t.Context(), protocol.Marshal(d)); err != nil {
			t.Fatal(err)
		}
		n.eventually("app", lifecycle.Deleted)
		<-time.After(time.Minute)
		n.wantVolumes("after the removal and the purge", nil, nil)
	})
}

// A badHost never answers how large a volume is, and cannot remove those of stuck.
type badHost struct {
	Host
	hangs bool
	stuck string
}

func (h *badHost) VolumeBytes(ctx context.Context, v engine.Volume) (uint64, error) {
	if h.hangs {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return h.Host.VolumeBytes(ctx, v)
}

func (h *badHost) RemoveVolume(ctx context.Context, v engine.Volume) error {
	if v.Name == h.stuck {
		return errors.New("it is busy")
	}
	return h.Host.RemoveVolume(ctx, v)
}

// TestVolumesYoungerThanATombstone has tombstones of before, as of a CO whose database was restored: they are about other volumes,
// whatever the node was about to store, and over restarts.
func TestVolumesYoungerThanATombstone(t *testing.T) {
	t.Parallel()
	site := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	assigned := func(generation uint64) protocol.Assignment {
		a := version("1", 1, withVolumes("a"))
		a.Site = site(generation)
		return a
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		begin := func() {
			o := n.options()
			o.Host = &badHost{Host: n.engine, hangs: true} // what is retained is never measured
			n.startWith(o)
		}
		old := func() {
			t.Helper()
			n.remove(protocol.NodeRemoval{Site: site(3), Volumes: true})
			<-time.After(time.Minute)
		}
		begin()
		n.want(assigned(1))
		n.eventually("app", lifecycle.Installed)
		n.want(assigned(4)) // the same content once more
		<-time.After(time.Second)
		old()
		n.eventually("app", lifecycle.Installed)
		n.wantVolumes("after a tombstone of before what is installed", []string{"a"}, nil)

		n.remove(protocol.NodeRemoval{Site: site(5)})
		n.eventually("app", lifecycle.Deleted)
		old()
		n.wantVolumes("after one of before the removal", []string{"a"}, []string{"a"})
		n.want()
		n.eventually("app", "")
		for range 2 {
			old()
			n.wantVolumes("after one of before, once the record has ended", []string{"a"}, []string{"a"})
			n.stop()
			begin()
		}
		for range 2 { // what it had followed is lost, with the tombstone in the desired state on its disk, and without
			n.stop()
			if err := os.Remove(filepath.Join(n.dir, "trust.cbor")); err != nil {
				t.Fatal(err)
			}
			begin()
			<-time.After(time.Minute)
			n.wantVolumes("after the loss of what it had followed", []string{"a"}, []string{"a"})
			old()
			n.wantVolumes("after one of before, once that is lost", []string{"a"}, []string{"a"})
			n.want()
			<-time.After(time.Minute)
		}
		n.remove(protocol.NodeRemoval{Site: site(6), Volumes: true})
		n.eventually("app", lifecycle.Deleted)
		n.wantVolumes("after they were asked for", nil, nil)
		n.stop()
	})
}

// TestVolumeThatCannotBeRemoved has one volume whose removal fails: it holds up neither the others nor their retention.
func TestVolumeThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memory.Options{})
		begin := func() {
			o := n.options()
			o.Host, o.VolumeRetention = &badHost{Host: n.engine, stuck: "b"}, 48*time.Hour
			n.startWith(o)
		}
		begin()
		n.want(version("1", 1, withVolumes("a", "b", "c")))
		n.eventually("app", lifecycle.Installed)
		n.remove(protocol.NodeRemoval{Site: protocol.Position{Epoch: 1, Generation: 1}})
		n.removed()
		n.gen++
		d := protocol.NodeDesired{
			V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen},
			Purges: []protocol.NodePurge{{Deployment: "app", Volume: "b", Site: protocol.Position{Epoch: 1, Generation: 2}}},
		}
		if err := n.runner.Accept(t.Context(), protocol.Marshal(d)); err != nil {
			t.Fatal(err)
		}
		<-time.After(40 * time.Hour)
		n.wantVolumes("after a purge that fails", []string{"a", "b", "c"}, []string{"a", "b", "c"})
		n.stop()
		begin()
		<-time.After(10 * time.Hour)
		n.wantVolumes("after the retention, but for what cannot be removed", []string{"b"}, []string{"b"})
		n.stop()
		n.start() // it can be removed now
		<-time.After(time.Minute)
		n.wantVolumes("once it can be removed", nil, nil)
		n.stop()
	})
}
