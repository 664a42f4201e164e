package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/leftover"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/en/engine/containerd/runspec"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// taskTimeout bounds the start of a process.
	taskTimeout = time.Minute
	// leftoverTimeout is how long a start waits for what an earlier one left.
	leftoverTimeout = 10 * time.Second
)

// Start makes c run.
func (e *Engine) Start(ctx context.Context, c engine.Container) error {
	ctx, k := e.in(ctx), marks.Key(c.ID)
	unlock, err := e.locks.Lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	have, err := e.client.LoadContainer(ctx, k)
	switch {
	case errdefs.IsNotFound(err):
		if have, err = e.create(ctx, k, c); err != nil {
			return err
		}
	case err != nil:
		return e.fault(err, protocol.InternalError, "look up container "+c.ID.String())
	}
	labels, err := have.Labels(ctx)
	if err != nil {
		return e.fault(err, protocol.InternalError, "look up container "+c.ID.String())
	}
	if d := labels[marks.Digest]; d != string(c.Digest) {
		return protocol.Errorf(protocol.Conflict, "container %s exists for version %s, not %s: remove it first",
			c.ID, protocol.Digest(d).Short(), c.Digest.Short())
	}
	running, err := e.clearTask(ctx, have)
	if err != nil {
		return err
	}
	if running {
		return e.recover(ctx, k, c)
	}
	if labels[marks.Started] != "" && foundAnew(c) {
		if err := e.findAnew(ctx, have, k, c); err != nil {
			return e.fault(err, protocol.CreateFailed, "start "+c.ID.String())
		}
	}
	if err := e.prepare(ctx, k, c); err != nil {
		return err
	}
	return e.run(ctx, have, c, labels)
}

// prepare makes what a container needs of its surroundings: after a reboot it
// is gone although the container is not.
func (e *Engine) prepare(ctx context.Context, k string, c engine.Container) error {
	if err := e.writeFiles(k, c); err != nil {
		return e.fault(err, protocol.CreateFailed, "write files of "+c.ID.String())
	}
	if err := runspec.LoadAppArmor(ctx, c); err != nil {
		return err
	}
	if c.Spec.NetworkOf != "" {
		return e.checkNetworkOf(c)
	}
	if c.Spec.Network != protocol.NetworkBridge {
		return nil
	}
	if err := e.joined.Attach(ctx, k, c); err != nil {
		return e.fault(err, protocol.StartFailed, "network of "+c.ID.String())
	}
	if err := e.names.Join(ctx, k, string(c.ID.Deployment)); err != nil {
		return e.fault(err, protocol.CreateFailed, "names of "+c.ID.String())
	}
	return nil
}

// networkKey returns the key of the container whose network c has, its own or another's,
// or nothing where it has none of a deployment.
func (e *Engine) networkKey(c engine.Container) string {
	switch {
	case c.Spec.NetworkOf != "":
		return marks.Key(engine.ID{Deployment: c.ID.Deployment, Component: c.ID.Component, Name: c.Spec.NetworkOf})
	case c.Spec.Network == protocol.NetworkBridge:
		return marks.Key(c.ID)
	}
	return ""
}

// checkNetworkOf refuses a start before that of the container whose network is shared.
func (e *Engine) checkNetworkOf(c engine.Container) error {
	a, err := e.net.Get(e.networkKey(c))
	if err == nil && (a == nil || a.IP == "" || !netns.Live(e.net.NetNS(e.networkKey(c)))) {
		err = engine.Errorf(protocol.StartFailed, "start %s: it shares the network of %s, which has none yet: it must start first", c.ID, c.Spec.NetworkOf)
	}
	return err
}

// create makes the container's record, the last step of a creation: what was
// left without one is made again.
func (e *Engine) create(ctx context.Context, k string, c engine.Container) (client.Container, error) {
	what := "create container " + c.ID.String()
	snapshotter, err := e.snapshots(ctx)
	if err != nil {
		return nil, err
	}
	img, err := e.client.GetImage(ctx, c.Spec.Image)
	if errdefs.IsNotFound(err) {
		return nil, engine.Errorf(protocol.ImageNotFound, "%s: the image %s is not on the node: pull it first", what, c.Spec.Image)
	}
	if err != nil {
		return nil, e.fault(err, protocol.InternalError, what)
	}
	config, err := imageConfig(ctx, img)
	if err != nil {
		return nil, e.fault(err, protocol.CreateFailed, what)
	}
	if c.Spec.Mounts, err = volumes.WithImageVolumes(c, config); err != nil {
		return nil, err
	}
	spec, err := e.specOf(k, c, config)
	if err != nil {
		return nil, e.fault(err, protocol.CreateFailed, what)
	}
	from := volumes.Image{User: cmp.Or(c.Spec.User, config.User), Files: func(ctx context.Context, f func(root string) error) error {
		return e.withRootFS(ctx, img, k+"-view", f)
	}}
	for _, m := range c.Spec.Mounts {
		if m.Kind == protocol.MountVolume {
			if err := e.fillVolume(ctx, from, c.ID, m); err != nil {
				return nil, e.fault(err, protocol.CreateFailed, what)
			}
		}
	}
	if err := e.client.SnapshotService(snapshotter).Remove(ctx, k); err != nil && !errdefs.IsNotFound(err) {
		return nil, e.fault(err, protocol.CreateFailed, what)
	}
	ctx, done, err := e.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var have client.Container
	how := []client.NewContainerOpts{
		client.WithRuntime("io.containerd.runc.v2", &options.Options{Root: e.runcRoot()}),
		client.WithSnapshotter(snapshotter),
		client.WithImageName(c.Spec.Image),
		client.WithNewSnapshot(k, img),
		client.WithContainerLabels(map[string]string{
			marks.Deployment: string(c.ID.Deployment), marks.Component: c.ID.Component, marks.Name: c.ID.Name,
			marks.Digest: string(c.Digest), marks.Image: c.Spec.Image, marks.Stop: stopOf(c, config), marks.NetworkOf: e.networkKey(c),
			marks.Site: c.Site.String(),
		}),
		client.WithNewSpec(spec...),
	}
	if err := leftover.Moved(func() (err error) {
		have, err = e.client.NewContainer(ctx, k, how...)
		return err
	}); err != nil {
		return nil, e.fault(err, protocol.CreateFailed, what)
	}
	return have, nil
}

// runcRoot is where runc keeps what it knows of running containers: it must be
// gone after a reboot. The default is shared by all daemons of a machine, whose
// containers of equal names would meet there.
func (e *Engine) runcRoot() string { return filepath.Join("/run", "colony-runc-"+e.net.Mark()) }

// run starts a new task. The caller holds the lock.
func (e *Engine) run(ctx context.Context, c client.Container, spec engine.Container, labels map[string]string) error {
	id, restarts := spec.ID, 0
	if labels[marks.Started] != "" {
		n, _ := strconv.Atoi(labels[marks.Restarts]) // absent means 0
		restarts = n + 1
	}
	// A caller that gives up does not cut this short: a task whose creation is cancelled leaves its
	// folder behind for a while, and no start succeeds until the folder is removed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := e.runOnce(ctx, c, spec, restarts)
		if err == nil {
			return nil
		}
		// The daemon may still be clearing away the shim of an earlier task, and takes the new
		// task of the same container with it.
		if try == vanishTries || !errdefs.IsNotFound(err) {
			return e.fault(tidy(err), protocol.StartFailed, "start "+id.String())
		}
		e.log.WarnContext(ctx, "task of a container not found while it was started, trying again", "container", id.String(), "err", err)
		if err := e.clearLeftovers(ctx, c.ID()); err != nil {
			return err
		}
	}
}

// vanishTries is how often a start is tried whose task vanishes.
const vanishTries = 3

// runOnce makes a task and starts it; what it made of one that does not start is removed.
func (e *Engine) runOnce(ctx context.Context, c client.Container, spec engine.Container, restarts int) error {
	t, err := e.newTask(ctx, c, spec)
	if err != nil {
		return err
	}
	started := map[string]string{
		marks.Started: strconv.FormatInt(time.Now().UnixNano(), 10), marks.Restarts: strconv.Itoa(restarts), marks.Exit: "", marks.OOM: "",
	}
	err = runspec.CheckReadOnly(ctx, c, t, spec.ID)
	if err == nil {
		err = runspec.CheckSubpaths(spec, t, func(name string) string { return e.volumes.Dir(spec.ID.Deployment, name) })
	}
	if err == nil {
		err = runspec.SetModes(spec, t)
	}
	if err == nil {
		_, err = c.SetLabels(ctx, started)
	}
	if err == nil {
		err = t.Start(ctx)
	}
	if err == nil {
		return nil
	}
	clean, cancelClean := e.toTheEnd(ctx)
	defer cancelClean()
	if _, e := t.Delete(clean, client.WithProcessKill); e != nil && !errdefs.IsNotFound(e) {
		err = errors.Join(err, e)
	}
	return err
}

// newTask makes the task. If the daemon is still removing an earlier task, of an agent that was
// killed while creating it, newTask waits for that. If the daemon does not remove it, because the
// daemon was killed too, newTask removes the rest: at once if no daemon can be at work on it.
func (e *Engine) newTask(ctx context.Context, c client.Container, spec engine.Container) (client.Task, error) {
	streams, err := e.taskIO(c.ID(), spec)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(leftoverTimeout)
	for {
		t, err := c.NewTask(ctx, streams)
		if err == nil || !strings.Contains(err.Error(), "file exists") && !folderWent(err) {
			return t, err
		}
		if folderWent(err) && time.Now().After(deadline) {
			return nil, err
		}
		if left := shims.FolderOf(err, e.opts.Namespace, c.ID()); left != "" && left.Outlived(e.opts.Address) || time.Now().After(deadline) {
			if rerr := e.removeBundle(ctx, c.ID(), err); rerr != nil {
				return nil, errors.Join(err, rerr)
			}
			return c.NewTask(ctx, streams)
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, err
		}
	}
}

// folderWent reports whether the daemon removed the folder of the new task while its shim began in it: the daemon was late in
// clearing away an earlier task of the container. The next try makes the folder anew.
func folderWent(err error) bool {
	return strings.Contains(err.Error(), "failed to start shim") && strings.Contains(err.Error(), "getwd: no such file or directory")
}

var runcNoise = regexp.MustCompile(`^.*(?:runc create failed|runc start failed|container_linux\.go:\d+): `)

// tidy shortens what runc says to the part that a person needs.
func tidy(err error) error {
	if short := runcNoise.ReplaceAllString(err.Error(), ""); short != err.Error() {
		return &tidied{strings.TrimSuffix(short, ": unknown"), err}
	}
	return err
}

type tidied struct {
	text string
	err  error
}

func (t *tidied) Error() string { return t.text }
func (t *tidied) Unwrap() error { return t.err }

func parseStop(label string) (signal string, grace time.Duration) {
	var millis int64
	if _, err := fmt.Sscanf(label, "%s %d", &signal, &millis); err != nil {
		return "SIGTERM", 10 * time.Second
	}
	return signal, time.Duration(millis) * time.Millisecond
}
