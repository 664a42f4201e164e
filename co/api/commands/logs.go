package commandsapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/commands/logstream"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// eventStream is the type of server-sent events.
const eventStream = "text/event-stream"

type logsInput struct {
	Site       string `path:"site" doc:"the site"`
	Name       string `path:"name" doc:"the deployment, by its name at the site"`
	Accept     string `header:"Accept" doc:"text/event-stream for server-sent events; otherwise the answer is text"`
	Node       string `query:"node" doc:"only of this node; default each that has the deployment"`
	Component  string `query:"component" doc:"only of this component"`
	Container  string `query:"container" doc:"only of this container"`
	Stream     string `query:"stream" enum:"stdout,stderr" doc:"only this one"`
	Previous   bool   `query:"previous" doc:"of the containers before those that run"`
	Follow     bool   `query:"follow" doc:"go on with new lines until the client leaves"`
	Since      string `query:"since" doc:"only lines of so long ago until now, such as 10m"`
	Tail       int64  `query:"tail" minimum:"0" maximum:"100000" doc:"only the last lines of each container; 0 or absent: all"`
	Grep       string `query:"grep" doc:"only lines that this regular expression (RE2) matches"`
	Resumed    bool   `query:"resumed" doc:"with follow: the client goes on after its connection broke; what it was too slow for meanwhile is left out"`
	Timestamps bool   `query:"timestamps" doc:"each line of text begins with its time, by the clock of the node"`
}

func (r *routes) registerLogs(h huma.API) {
	huma.Get(h, "/api/v1/deployments/{site}/{name}/logs", r.logs, form.Describe("commands", "Read or follow the logs of a deployment's containers"), func(o *huma.Operation) {
		o.Description = "The lines come from the nodes as they are asked for; nothing on their way keeps them. The answer is text, a line for each, which begins with the node where there are several, " +
			"or with Accept: text/event-stream a stream of events (WHATWG HTML 9.2): begin, line, gap and end, each with JSON. What did not fit through the link to the site is left out, and a gap says how much. " +
			"Reading ends the command when the client leaves. 504: no node answered in time."
		o.Errors = append(o.Errors, http.StatusConflict, http.StatusForbidden, http.StatusGatewayTimeout)
		form.Raw(o, http.StatusOK, "The lines", "text/plain", eventStream)
	})
}

const (
	// logsDeadline is until when a node may begin to send.
	logsDeadline = 30 * time.Second
	// defaultAnswerWait is some seconds more, for the way of the answer.
	defaultAnswerWait = logsDeadline + 5*time.Second
	// firstLook is how often the record is asked for what nodes reported before the first has begun, laterLook how often then,
	// and awayLook how often whether they are there.
	firstLook = 500 * time.Millisecond
	laterLook = 2 * time.Second
	awayLook  = 5 * time.Second
	// endWait is how long the last frames of a node may come after its result, which goes another way.
	endWait = 5 * time.Second
	// beat is how often a stream without lines is written to, so that a client that left is noticed.
	beat = 15 * time.Second
)

func (r *routes) logs(ctx context.Context, in *logsInput) (*huma.StreamResponse, error) {
	t, err := r.openTail(ctx, in)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	if err := t.begin(ctx); err != nil {
		t.close(ctx)
		return nil, r.fail(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer t.close(hc.Context())
		_, w := humago.Unwrap(hc)
		t.out = logstream.New(w, in.events(), in.Timestamps, t.whose)
		if err := t.run(hc.Context()); err != nil && hc.Context().Err() == nil {
			r.log.InfoContext(hc.Context(), "log stream ended", "command_id", string(t.id), "err", err)
		}
	}}, nil
}

// events reports whether the answer is a stream of events.
func (in *logsInput) events() bool { return strings.Contains(in.Accept, eventStream) }

// request reads what is asked for.
func (in *logsInput) request() (req command.LogRequest, err error) {
	req = command.LogRequest{
		Subject:  command.Subject{Deployment: protocol.DeploymentName(in.Name), Component: in.Component, Container: in.Container},
		Previous: in.Previous, Follow: in.Follow, Tail: uint64(max(in.Tail, 0)), Grep: in.Grep, Stream: in.Stream,
		Numbered: in.Follow && in.events(), Resumed: in.Follow && in.Resumed,
	}
	if in.Since != "" {
		d, err := time.ParseDuration(in.Since)
		if err != nil || d <= 0 {
			return req, problem.At("query.since", protocol.Errorf(protocol.Invalid, "since %q: want a time such as 10m", in.Since))
		}
		req.SinceMillis = uint64(max(d.Milliseconds(), 1))
	}
	return req, problem.At("query", req.Check())
}

// A tail is the logs of a deployment on their way to a client.
type tail struct {
	api    *routes
	id     command.ID
	site   protocol.SiteID
	nodes  map[protocol.NodeID]*source
	reader Reader
	out    *logstream.Writer
	stop   context.CancelFunc
	keeper sync.WaitGroup
	open   int             // nodes that have not ended
	away   []logstream.End // of nodes that are not asked
	whose  logstream.Whose
	// elsewhere says where else there may be lines; empty: nowhere.
	elsewhere string
}

// A source is a node that is asked.
type source struct {
	heard bool // it sent a frame, or reported that it began
	ended bool
	// result is what it reported, an end; due is until when its last frames are waited for.
	result *fleet.CommandResult
	due    time.Time
}

// openTail has the nodes asked.
func (r *routes) openTail(ctx context.Context, in *logsInput) (*tail, error) {
	site, err := protocol.ParseSiteID(in.Site)
	if err != nil {
		return nil, problem.At("path.site", err)
	}
	req, err := in.request()
	if err != nil {
		return nil, err
	}
	if r.o.Refuse != nil {
		return nil, r.o.Refuse
	}
	d, err := r.o.Fleet.Deployment(ctx, site, req.Deployment)
	if err != nil {
		return nil, err
	}
	nodes, away, err := r.sources(ctx, &d, in.Node)
	if err != nil {
		return nil, err
	}
	c, err := newCommand(ctx, command.Logs, &req, logsDeadline)
	if err != nil {
		return nil, err
	}
	target := fleet.CommandTarget{Site: site, Nodes: nodes}
	if err := check(c, target); err != nil {
		return nil, err
	}
	c.Targets = []fleet.CommandTarget{target}
	t := &tail{
		api: r, id: c.ID, site: site, nodes: map[protocol.NodeID]*source{}, open: len(nodes), away: away,
		whose: logstream.Whose{Nodes: len(nodes)+len(away) > 1, Containers: in.Container == "" && logstream.Several(&d)},
	}
	if !in.Previous {
		t.elsewhere = fmt.Sprintf("; what containers wrote that run no more: colony logs %s/%s --previous", site, req.Deployment)
	}
	for _, n := range nodes {
		t.nodes[n] = &source{}
	}
	if t.reader, err = r.o.Open(site, c.ID, len(nodes)); err != nil {
		return nil, err
	}
	if err := r.record(ctx, c); err != nil {
		t.reader.Close(ctx)
		return nil, err
	}
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	t.keeper.Go(func() { t.reader.Keep(keep) })
	return t, nil
}

// close ends the stream: nodes stop, and those that have not begun do not begin.
func (t *tail) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	t.stop()
	t.keeper.Wait()
	t.reader.Close(ctx)
	for _, s := range t.nodes {
		if s.heard || s.ended {
			continue
		}
		if sites, err := t.api.o.Store.Cancel(ctx, t.id, access.SitesOf(ctx)); err == nil && len(sites) > 0 {
			t.api.o.Changed(t.site)
		}
		return
	}
}

// having returns the nodes that have a deployment, by name.
func (r *routes) having(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) ([]protocol.NodeID, error) {
	d, err := r.o.Fleet.Deployment(ctx, site, name)
	if err != nil {
		return nil, err
	}
	return nodesOf(&d)
}

// nodesOf is having of a deployment that was read.
func nodesOf(d *fleet.Deployment) ([]protocol.NodeID, error) {
	site, name := d.Site, d.Name
	var nodes []protocol.NodeID
	for i := range d.Nodes {
		if n := &d.Nodes[i]; n.State != lifecycle.Deleted {
			nodes = append(nodes, n.Node)
		}
	}
	switch {
	case len(nodes) == 0:
		return nil, protocol.Errorf(protocol.Conflict, "no node has the deployment %s/%s: its state is %s", site, name, d.State)
	case len(nodes) > command.MaxNodes:
		return nil, protocol.Errorf(protocol.Invalid, "%d nodes have the deployment %s/%s, and %d can be named: select them by labels, or name some", len(nodes), site, name, command.MaxNodes)
	}
	slices.Sort(nodes)
	return nodes, nil
}

// sources returns the nodes to ask for logs, and what is to be said of others. The error is of kind Unavailable where none of
// them is online.
func (r *routes) sources(ctx context.Context, d *fleet.Deployment, only string) (online []protocol.NodeID, away []logstream.End, err error) {
	site, name := d.Site, d.Name
	nodes, err := nodesOf(d)
	if err != nil {
		return nil, nil, err
	}
	if only != "" {
		node, err := protocol.ParseNodeID(only)
		if err != nil {
			return nil, nil, problem.At("query.node", err)
		}
		if _, err := r.o.Fleet.Node(ctx, site, node); err != nil {
			return nil, nil, err
		}
		if !slices.Contains(nodes, node) {
			return nil, nil, protocol.Errorf(protocol.NotFound, "node %s/%s does not have the deployment %q; these do: %s", site, node, name, names(nodes))
		}
		nodes = []protocol.NodeID{node}
	}
	s, err := r.o.Fleet.Site(ctx, site)
	if err != nil {
		return nil, nil, err
	}
	if !s.Online {
		return nil, nil, protocol.Errorf(protocol.Unavailable, "site %q is offline%s: try again once it is back", site, since(s.OnlineSince))
	}
	absent, err := r.o.Store.Away(ctx, site, nodes)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range nodes {
		at, ok := absent[id]
		if !ok {
			online = append(online, id)
			continue
		}
		away = append(away, logstream.End{Node: id, State: string(command.Unknown), Code: command.NodeAway, Message: "the node is offline" + since(&at)})
	}
	switch {
	case len(online) > 0:
		return online, away, nil
	case len(nodes) > 1:
		return nil, nil, protocol.Errorf(protocol.Unavailable, "none of the %d nodes that have the deployment is online; %s", len(nodes), away[0])
	}
	at := absent[nodes[0]]
	return nil, nil, protocol.Errorf(protocol.Unavailable, "node %s/%s is offline%s: try again once it is back", site, nodes[0], since(&at))
}

func names(nodes []protocol.NodeID) string {
	const most = 10
	text := make([]string, 0, most+1)
	for i, n := range nodes {
		if i == most {
			text = append(text, fmt.Sprintf("and %d more", len(nodes)-most))
			break
		}
		text = append(text, string(n))
	}
	return strings.Join(text, ", ")
}

// since says for how long something has been so.
func since(at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", at.UTC().Format(time.RFC3339), time.Since(*at).Truncate(time.Second))
}
