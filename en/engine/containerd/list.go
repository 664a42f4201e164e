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
	"github.com/colonyfleet/colony/protocol"
)

// List returns all containers of ours.
func (e *Engine) List(ctx context.Context) ([]engine.Status, error) {
	ctx = e.in(ctx)
	records, err := e.client.ContainerService().List(ctx, `labels."`+labelName+`"`)
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
		e.logs.Name(r.ID, idOf(r.Labels))
		st := e.status(ctx, r, processes[r.ID])
		network := cmp.Or(r.Labels[labelNetworkOf], r.ID)
		if a := attached[network]; a != nil {
			st.IP = a.IP
		}
		st.NetworkLost = st.State == engine.Running && (e.networkLost(network, attached) || e.names.Unknown(r.ID))
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
		ID: idOf(r.Labels), Digest: protocol.Digest(r.Labels[labelDigest]), Image: r.Labels[labelImage], State: engine.Created,
	}
	n, _ := strconv.ParseUint(r.Labels[labelRestarts], 10, 32) // absent means 0
	st.Restarts = uint32(n)
	switch {
	case p == nil:
		if code, at, ok := parseExit(r.Labels[labelExit]); ok {
			st.State, st.ExitCode, st.ExitedAt = engine.Exited, code, at
			st.OutOfMemory = r.Labels[labelOOM] == "true"
		}
	case p.Status == task.Status_STOPPED:
		st.State, st.ExitCode, st.ExitedAt = engine.Exited, int32(p.ExitStatus), p.ExitedAt.AsTime()
		st.OutOfMemory = e.outOfMemory(ctx, r.ID)
		e.noteExit(ctx, r.ID)
	case p.Status == task.Status_RUNNING, p.Status == task.Status_PAUSED, p.Status == task.Status_PAUSING:
		st.State = engine.Running
	}
	if st.State != engine.Created {
		st.StartedAt = parseNanos(r.Labels[labelStarted])
	}
	if st.State == engine.Exited {
		st.Message = e.reason(r.ID)
	}
	return st
}

// reapWait bounds how long a List waits for whoever works on a container whose task has ended.
const reapWait = 10 * time.Second

// noteExit reaps a task that ended by itself. What the container wrote last is in its log only
// then: so a List waits while another one reaps it. Where somebody works longer on the
// container, that work, or the next List, does it.
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
