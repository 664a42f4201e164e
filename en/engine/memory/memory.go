// Package memory is an engine without containers, for simulations and tests. It records the
// containers that it is asked to run and plays them by a script, which says how long a program
// lives and how it ends, what a probe answers, and which call fails.
//
// The engine reads time from package time only, so that it runs in a synctest bubble. The value
// plays the part of the machine: an agent that is started again on the same Engine finds its
// containers, as it would on a gateway.
package memory

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Host      = (*Engine)(nil)
	_ engine.Positions = (*Engine)(nil)
	_ engine.Programs  = (*Engine)(nil)
	_ engine.Meter     = (*Engine)(nil)
)

// A Program is how a container behaves once started.
type Program struct {
	// Err is what Start returns instead of starting it. Nil: it starts.
	Err error
	// Exits says that it ends by itself, After this time with Code.
	Exits bool
	After time.Duration
	Code  int32
	// Output is the last line that it writes to stdout, and Errors that to stderr.
	Output, Errors string
	// StopTakes is the time from the stop signal to its end, with code 0. If that
	// is longer than the grace of Stop, it is killed.
	StopTakes time.Duration
}

// Options are the script. The zero value has every image, and programs that run
// until they are stopped and answer every command with exit code 0. The hooks
// are called without a lock, possibly concurrently.
type Options struct {
	// Image says how a pull goes: its size and time, or the error it ends with.
	Image func(ref string) (size uint64, takes time.Duration, err error)
	// Program says how a container behaves. Restarts counts its earlier starts.
	Program func(c engine.Container, restarts uint32) Program
	// Exec answers a command.
	Exec func(ctx context.Context, c engine.Container, command []string) (engine.ExecResult, error)
	// Open plays a program that a person uses until the program or ctx ends, and returns its code. Nil: the program writes
	// what it reads.
	Open func(ctx context.Context, c engine.Container, p engine.Program) int32
	// Usage is what a container that runs uses. Nil: 1 MiB of memory, and nothing else.
	Usage func(c engine.Container) engine.Usage
	// Name and Version are what Info says. Empty: memory, 1.
	Name, Version string
}

// An Op names a method of Engine, for Fail.
type Op string

// The operations: Pull, Start, Stop, Remove, List, Exec, Open, Events and Sweep are the calls of an engine.
const (
	Pull   Op = "pull"
	Start  Op = "start"
	Stop   Op = "stop"
	Remove Op = "remove"
	List   Op = "list"
	Exec   Op = "exec"
	Open   Op = "open"
	Events Op = "events"
	Sweep  Op = "sweep"
)

// Engine is the engine. Its methods may be called concurrently.
type Engine struct {
	opts Options

	mu         sync.Mutex // protects all below
	lost       bool
	images     map[string]bool
	containers map[engine.ID]*container
	volumes    map[engine.Volume]bool
	followed   map[protocol.DeploymentName]protocol.Position
	faults     map[Op][]error
	calls      map[Op]int
	streams    map[*stream]struct{}
	nextIP     netip.Addr
	nextPort   uint16
	runs       []*run           // the logs, the oldest first
	written    notify.Broadcast // there may be more in the logs
}

type container struct {
	spec    engine.Container
	status  engine.Status
	program Program
	timer   *time.Timer   // the end of a program that exits by itself
	ended   chan struct{} // closed when the current process ends
}

// A stream is one subscription. Its queue is unbounded: no event is dropped.
type stream struct {
	queue []engine.Event
	grown notify.Signal // the queue may have
	cut   chan struct{} // closed when the engine is lost
}

// New returns an engine with nothing in it.
func New(opts Options) *Engine {
	if opts.Image == nil {
		opts.Image = func(string) (uint64, time.Duration, error) { return 1 << 20, 0, nil }
	}
	if opts.Program == nil {
		opts.Program = func(engine.Container, uint32) Program { return Program{} }
	}
	if opts.Exec == nil {
		opts.Exec = func(context.Context, engine.Container, []string) (engine.ExecResult, error) {
			return engine.ExecResult{}, nil
		}
	}
	if opts.Open == nil {
		opts.Open = echo
	}
	if opts.Usage == nil {
		opts.Usage = func(engine.Container) engine.Usage {
			return engine.Usage{Memory: 1 << 20, HasIO: true, HasNetwork: true}
		}
	}
	if opts.Name == "" {
		opts.Name, opts.Version = "memory", "1"
	}
	return &Engine{
		opts: opts, images: map[string]bool{}, containers: map[engine.ID]*container{}, volumes: map[engine.Volume]bool{}, followed: map[protocol.DeploymentName]protocol.Position{},
		faults: map[Op][]error{}, calls: map[Op]int{}, streams: map[*stream]struct{}{},
		nextIP: netip.MustParseAddr("10.89.0.2"), nextPort: 32767,
	}
}

// enter counts a call and returns the error that it must end with, if any. The
// caller holds the lock.
func (e *Engine) enter(op Op) error {
	e.calls[op]++
	if e.lost {
		return engine.Errorf(protocol.EngineUnavailable, "%s: the engine does not answer", op)
	}
	if f := e.faults[op]; len(f) > 0 {
		e.faults[op] = f[1:]
		return f[0]
	}
	return nil
}

// Pull makes an image present, at a steady pace.
func (e *Engine) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	e.mu.Lock()
	err := e.enter(Pull)
	present := e.images[ref]
	e.mu.Unlock()
	if err != nil || present {
		return err
	}
	size, takes, err := e.opts.Image(ref)
	const steps = 10
	for i := range uint64(steps) {
		if report != nil {
			report(engine.Progress{Pulled: size * i / steps, Total: size})
		}
		if err := retry.Sleep(ctx, takes/steps); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if report != nil {
		report(engine.Progress{Pulled: size, Total: size})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[ref] = true
	return nil
}

// Start makes c run.
func (e *Engine) Start(ctx context.Context, c engine.Container) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	if err := e.enter(Start); err != nil {
		e.mu.Unlock()
		return err
	}
	have := e.containers[c.ID]
	switch {
	case have == nil && !e.images[c.Spec.Image]:
		e.mu.Unlock()
		return engine.Errorf(protocol.ImageNotFound, "create container %s: the image %s is not on the node: pull it first", c.ID, c.Spec.Image)
	case have == nil:
		have = &container{spec: c, status: engine.Status{ID: c.ID, Digest: c.Digest, Site: c.Site, Image: c.Spec.Image, State: engine.Created}}
		if c.Spec.Network == protocol.NetworkBridge {
			have.status.IP = e.nextIP.String()
			e.nextIP = e.nextIP.Next()
		}
		have.status.Ports = slices.Clone(c.Spec.Ports)
		for i := range have.status.Ports {
			if have.status.Ports[i].Host == 0 {
				e.nextPort++
				have.status.Ports[i].Host = e.nextPort
			}
		}
		e.containers[c.ID] = have
		for _, m := range c.Spec.Mounts {
			if m.Kind == protocol.MountVolume {
				e.volumes[engine.Volume{Deployment: c.ID.Deployment, Name: m.Source}] = true
			}
		}
	case have.status.Digest != c.Digest:
		e.mu.Unlock()
		return protocol.Errorf(protocol.Conflict, "container %s exists for version %s, not %s: remove it first",
			c.ID, have.status.Digest.Short(), c.Digest.Short())
	case have.status.State == engine.Running:
		e.mu.Unlock()
		return nil
	}
	restarts := have.status.Restarts
	if !have.status.StartedAt.IsZero() {
		restarts++
	}
	e.mu.Unlock()
	program := e.opts.Program(c, restarts)

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.containers[c.ID] != have || have.status.State == engine.Running {
		return nil // another call was faster
	}
	if program.Err != nil {
		return program.Err
	}
	e.begin(have, program, restarts)
	return nil
}

func (e *Engine) begin(c *container, program Program, restarts uint32) {
	ended := make(chan struct{})
	c.program, c.ended = program, ended
	c.status.State, c.status.StartedAt, c.status.Restarts = engine.Running, time.Now(), restarts
	c.status.ExitCode, c.status.ExitedAt, c.status.Message = 0, time.Time{}, ""
	e.beginLog(c.status.ID, restarts)
	if !program.Exits {
		return
	}
	c.timer = time.AfterFunc(program.After, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if c.ended == ended {
			e.end(c, program.Code)
		}
	})
}

// end makes a running container exited and sends the event. The caller holds the lock.
func (e *Engine) end(c *container, code int32) {
	if c.status.State != engine.Running {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	close(c.ended)
	c.ended = nil
	c.status.State, c.status.ExitCode, c.status.ExitedAt, c.status.Message = engine.Exited, code, time.Now(), cmp.Or(c.program.Errors, c.program.Output)
	e.writeLog(c.status.ID, c.program)
	for s := range e.streams {
		s.queue = append(s.queue, engine.Event{ID: c.status.ID, ExitCode: code, At: c.status.ExitedAt})
		s.grown.Notify()
	}
}

const (
	killed      = 128 + 9
	defaultStop = 10 * time.Second
)

// Stop ends a container.
func (e *Engine) Stop(ctx context.Context, id engine.ID, grace time.Duration) error {
	e.mu.Lock()
	err := e.enter(Stop)
	c := e.containers[id]
	if err != nil || c == nil || c.status.State != engine.Running {
		e.mu.Unlock()
		return err
	}
	ended, takes := c.ended, c.program.StopTakes
	if grace == 0 {
		grace = time.Duration(c.spec.Spec.StopTimeoutMillis) * time.Millisecond
	}
	if grace == 0 {
		grace = defaultStop
	}
	e.mu.Unlock()
	code := int32(0)
	if takes > grace {
		takes, code = grace, killed
	}
	if already, err := retry.SleepOr(ctx, takes, ended); already || err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.ended == ended {
		e.end(c, code)
	}
	return nil
}

// Remove removes a container.
func (e *Engine) Remove(_ context.Context, id engine.ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enter(Remove); err != nil {
		return err
	}
	e.remove(id)
	return nil
}

func (e *Engine) remove(id engine.ID) {
	c := e.containers[id]
	if c == nil {
		return
	}
	delete(e.containers, id)
	e.removeLog(id)
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.ended != nil {
		close(c.ended)
		c.ended = nil
	}
}

// List returns all containers.
func (e *Engine) List(context.Context) ([]engine.Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enter(List); err != nil {
		return nil, err
	}
	out := make([]engine.Status, 0, len(e.containers))
	for _, c := range e.containers {
		out = append(out, c.status)
	}
	slices.SortFunc(out, func(a, b engine.Status) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// Exec answers a command by the script.
func (e *Engine) Exec(ctx context.Context, id engine.ID, command []string) (engine.ExecResult, error) {
	e.mu.Lock()
	err := e.enter(Exec)
	c := e.containers[id]
	if err == nil && (c == nil || c.status.State != engine.Running) {
		err = protocol.Errorf(protocol.NotFound, "execute in %s: it does not run", id)
	}
	e.mu.Unlock()
	if err != nil {
		return engine.ExecResult{}, err
	}
	return e.opts.Exec(ctx, c.spec, command)
}

// Events returns the exits of containers from now on.
func (e *Engine) Events(ctx context.Context) (<-chan engine.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enter(Events); err != nil {
		return nil, err
	}
	s := &stream{grown: notify.New(), cut: make(chan struct{})}
	e.streams[s] = struct{}{}
	out := make(chan engine.Event)
	go func() {
		defer close(out)
		e.pump(ctx, s, out)
	}()
	return out, nil
}

func (e *Engine) pump(ctx context.Context, s *stream, out chan<- engine.Event) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.streams, s)
	}()
	for {
		e.mu.Lock()
		queue := s.queue
		s.queue = nil
		e.mu.Unlock()
		for _, event := range queue {
			select {
			case out <- event:
			case <-s.cut:
				return
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-s.grown.C():
		case <-s.cut:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Info returns the name and version of the options.
func (e *Engine) Info(context.Context) (engine.Info, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		return engine.Info{}, engine.Errorf(protocol.EngineUnavailable, "info: the engine does not answer")
	}
	return engine.Info{Name: e.opts.Name, Version: e.opts.Version}, nil
}

// Vacant returns an error where a container of another deployment publishes one of the ports.
func (e *Engine) Vacant(_ context.Context, d protocol.DeploymentName, ports []protocol.Port) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range slices.SortedFunc(maps.Keys(e.containers), engine.ID.Compare) {
		for _, q := range e.containers[id].status.Ports {
			if id.Deployment != d && slices.ContainsFunc(ports, func(p protocol.Port) bool { return p.Host != 0 && p.Meets(q) }) {
				return engine.Errorf(protocol.StartFailed, "port %d of the node is in use by %s: publish another port", q.Host, id)
			}
		}
	}
	return nil
}

// Sweep removes containers of deployments that were removed, and images that are
// neither kept nor used.
func (e *Engine) Sweep(_ context.Context, o engine.SweepOptions) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enter(Sweep); err != nil {
		return err
	}
	used := map[string]bool{}
	for id, c := range e.containers {
		if slices.Contains(o.Removed, id.Deployment) {
			e.remove(id)
			continue
		}
		used[c.status.Image] = true
	}
	maps.DeleteFunc(e.images, func(ref string, _ bool) bool {
		return !o.KeepAllImages && !used[ref] && !slices.Contains(o.KeepImages, ref)
	})
	return nil
}

// Volumes returns the volumes that a container was made with.
func (e *Engine) Volumes(context.Context) ([]engine.Volume, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.SortedFunc(maps.Keys(e.volumes), engine.Volume.Compare), nil
}

// VolumeBytes returns 0: nothing is written here.
func (e *Engine) VolumeBytes(context.Context, engine.Volume) (uint64, error) { return 0, nil }

// RemoveVolume removes a volume.
func (e *Engine) RemoveVolume(_ context.Context, v engine.Volume) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.volumes, v)
	return nil
}
