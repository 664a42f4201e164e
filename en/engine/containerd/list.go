package containerd

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/protocol"
)

// List returns all containers of ours.
func (e *Engine) List(ctx context.Context) ([]engine.Status, error) {
	ctx = e.in(ctx)
	records, err := e.client.ContainerService().List(ctx, `labels."`+marks.Name+`"`)
	if err != nil {
		return nil, e.fault(err, protocol.InternalError, "list containers")
	}
	response, err := e.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, e.fault(errgrpc.ToNative(err), protocol.InternalError, "list processes")
	}
	processes := map[string]*task.Process{}
	for _, p := range response.Tasks {
		processes[p.ID] = p
	}
	attached, err := e.net.All()
	if err != nil {
		return nil, e.fault(err, protocol.InternalError, "list networks")
	}
	out := make([]engine.Status, 0, len(records))
	for _, r := range records {
		e.logs.Name(r.ID, marks.IDOf(r.Labels))
		st := e.status(ctx, r, processes[r.ID])
		network := cmp.Or(r.Labels[marks.NetworkOf], r.ID)
		if a := attached[network]; a != nil {
			st.IP = a.IP
		}
		st.NetworkLost = st.State == engine.Running && (e.joined.Lost(network, attached) || e.names.Unknown(r.ID))
		if a := attached[r.ID]; a != nil {
			st.Ports = a.Ports
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b engine.Status) int { return a.ID.Compare(b.ID) })
	return out, nil
}

func (e *Engine) status(ctx context.Context, r containers.Container, p *task.Process) engine.Status {
	st := engine.Status{
		ID: marks.IDOf(r.Labels), Digest: protocol.Digest(r.Labels[marks.Digest]), Image: r.Labels[marks.Image], State: engine.Created,
		Site: marks.ParsePosition(r.Labels[marks.Site]),
	}
	n, _ := strconv.ParseUint(r.Labels[marks.Restarts], 10, 32) // absent means 0
	st.Restarts = uint32(n)
	switch {
	case p == nil:
		if code, at, ok := marks.ParseExit(r.Labels[marks.Exit]); ok {
			st.State, st.ExitCode, st.ExitedAt = engine.Exited, code, at
			st.OutOfMemory = r.Labels[marks.OOM] == "true"
		}
	case p.Status == task.Status_STOPPED:
		st.State, st.ExitCode, st.ExitedAt = engine.Exited, int32(p.ExitStatus), p.ExitedAt.AsTime()
		st.OutOfMemory = e.outOfMemory(ctx, r.ID)
		e.noteExit(ctx, r.ID)
	case p.Status == task.Status_RUNNING, p.Status == task.Status_PAUSED, p.Status == task.Status_PAUSING:
		st.State = engine.Running
	}
	if st.State != engine.Created {
		st.StartedAt = marks.ParseNanos(r.Labels[marks.Started])
	}
	if st.State == engine.Exited {
		st.Message = e.reason(r.ID)
	}
	return st
}

// reapWait bounds how long a List waits for another goroutine that works on a container whose task
// has ended.
const reapWait = 10 * time.Second

// noteExit reaps a task that ended by itself. The last output of a container is in its log only
// after that, so a List waits while another goroutine reaps the task. If that takes longer than
// reapWait, that goroutine, or the next List, reaps it.
func (e *Engine) noteExit(ctx context.Context, k string) {
	wait, cancel := context.WithTimeout(ctx, reapWait)
	defer cancel()
	unlock, err := e.locks.Lock(wait, k)
	if err != nil {
		return
	}
	defer unlock()
	c, err := e.client.LoadContainer(ctx, k)
	if err == nil {
		_, err = e.clearTask(ctx, c)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		e.log.WarnContext(ctx, "exit not noted", "container", k, "err", err)
	}
}
