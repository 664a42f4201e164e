package containerd

import (
	"context"
	"fmt"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/protocol"
)

// Events returns the exits of containers from now on. The exit of a container
// that was removed meanwhile is left out.
func (e *Engine) Events(ctx context.Context) (<-chan engine.Event, error) {
	ctx = e.in(ctx)
	// The subscription itself reports nothing until the first event, so this call
	// says whether the daemon is there.
	if _, err := e.client.Version(ctx); err != nil {
		return nil, e.fault(err, protocol.InternalError, "subscribe to events")
	}
	ctx, cancel := context.WithCancel(ctx)
	envelopes, errs := e.client.Subscribe(ctx, fmt.Sprintf("namespace==%s,topic==%q", e.opts.Namespace, "/tasks/exit"))
	out := make(chan engine.Event)
	go func() {
		defer cancel()
		defer close(out)
		for {
			select {
			case env, ok := <-envelopes:
				if !ok {
					return
				}
				event, ok := e.event(ctx, env)
				if !ok {
					continue
				}
				select {
				case out <- event:
				case <-ctx.Done():
					return
				}
			case err := <-errs:
				if err != nil && ctx.Err() == nil {
					e.log.WarnContext(ctx, "containerd events lost", "err", err)
				}
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// event turns an exit of a container's first process into ours.
func (e *Engine) event(ctx context.Context, env *events.Envelope) (engine.Event, bool) {
	v, err := typeurl.UnmarshalAny(env.Event)
	if err != nil {
		e.log.WarnContext(ctx, "event not understood", "topic", env.Topic, "err", err)
		return engine.Event{}, false
	}
	exit, ok := v.(*apievents.TaskExit)
	if !ok || exit.ID != exit.ContainerID {
		return engine.Event{}, false // an executed command
	}
	r, err := e.client.ContainerService().Get(ctx, exit.ContainerID)
	if err != nil {
		if !errdefs.IsNotFound(err) && ctx.Err() == nil {
			e.log.WarnContext(ctx, "exited container not found", "container", exit.ContainerID, "err", err)
		}
		return engine.Event{}, false
	}
	return engine.Event{ID: marks.IDOf(r.Labels), ExitCode: int32(exit.ExitStatus), At: exit.ExitedAt.AsTime()}, true
}
