package commandsapi

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/api/commands/logstream"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/session"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// NodePath names a node. It is exported because it is embedded, and huma reads exported fields only.
type NodePath struct {
	Site string `path:"site" doc:"the site"`
	Node string `path:"node" doc:"the node"`
}

type filesInput struct {
	NodePath
	Paths []string `query:"path,explode" doc:"an absolute path of a file at the node, or a pattern in which * stands for a name; each by a parameter of its own"`
}

// archived is the type of what is collected.
const archived = "application/gzip"

func (r *routes) registerCollect(h huma.API) {
	collected := func(what string) func(o *huma.Operation) {
		return func(o *huma.Operation) {
			o.Description = what + " The answer is a compressed tar file, as it comes from the node; one that breaks off is not whole. What could not be collected is in its file faults.txt. 504: the node did not answer in time."
			o.Errors = append(o.Errors, http.StatusConflict, http.StatusForbidden, http.StatusGatewayTimeout)
			form.Raw(o, http.StatusOK, "The archive", archived)
		}
	}
	huma.Get(h, "/api/v1/nodes/{site}/{node}/diagnostics", func(ctx context.Context, in *NodePath) (*huma.StreamResponse, error) {
		return r.collect(ctx, in, command.Diagnose, func(key []byte) command.Args { return &command.DiagnosticsRequest{Key: key} })
	}, form.Describe("commands", "Collect what a node knows of itself"), collected("States, logs, inventory, engine, network, disk and versions. Values of parameters and variables of applications are not in it; their logs are."))
	huma.Get(h, "/api/v1/nodes/{site}/{node}/files", func(ctx context.Context, in *filesInput) (*huma.StreamResponse, error) {
		return r.collect(ctx, &in.NodePath, command.Files, func(key []byte) command.Args { return &command.FilesRequest{Key: key, Paths: in.Paths} })
	}, form.Describe("commands", "Collect files of a node"), collected("Only files that the configuration of its agent names (files)."))
}

// collect has a node collect something, and passes it on as it comes.
func (r *routes) collect(ctx context.Context, in *NodePath, kind command.Kind, request func(key []byte) command.Args) (*huma.StreamResponse, error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	args := request(public)
	if err := problem.At("query.path", args.Check()); err != nil {
		return nil, r.fail(ctx, err)
	}
	target, err := r.oneNode(ctx, in)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	c, err := newCommand(ctx, kind, args, logsDeadline)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	c.Targets = []fleet.CommandTarget{target}
	reader, err := r.o.Open(target.Site, c.ID, 1)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	if err := r.record(ctx, c); err != nil {
		reader.Close(ctx)
		return nil, r.fail(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer reader.Close(hc.Context())
		_, w := humago.Unwrap(hc)
		r.passOn(hc.Context(), w, session.Options{ID: c.ID, Node: target.Nodes[0], Key: key, Way: reader}, target.Site)
	}}, nil
}

// oneNode returns a node that is to be asked, and is there.
func (r *routes) oneNode(ctx context.Context, in *NodePath) (t fleet.CommandTarget, err error) {
	if t.Site, err = protocol.ParseSiteID(in.Site); err != nil {
		return t, problem.At("path.site", err)
	}
	node, err := protocol.ParseNodeID(in.Node)
	if err != nil {
		return t, problem.At("path.node", err)
	}
	if _, err := r.o.Fleet.Node(ctx, t.Site, node); err != nil {
		return t, err
	}
	s, err := r.o.Fleet.Site(ctx, t.Site)
	if err != nil {
		return t, err
	}
	if !s.Online {
		return t, protocol.Errorf(protocol.Unavailable, "site %q is offline%s: try again once it is back", t.Site, since(s.OnlineSince))
	}
	t.Nodes = []protocol.NodeID{node}
	absent, err := r.o.Store.Away(ctx, t.Site, t.Nodes)
	if at, away := absent[node]; err == nil && away {
		err = protocol.Errorf(protocol.Unavailable, "node %s/%s is offline%s: try again once it is back", t.Site, node, since(&at))
	}
	return t, err
}

// passOn sends what the node does to a client.
func (r *routes) passOn(ctx context.Context, w http.ResponseWriter, o session.Options, site protocol.SiteID) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := r.untilOver(ctx, func(context.Context) error { return nil }, stop)
	client := &download{id: o.ID, w: w, c: http.NewResponseController(w), sum: sha256.New(), over: make(chan struct{})}
	s := &fleet.Session{ID: o.ID, Site: site, Node: o.Node}
	o.Client, o.AnswerWait, o.Idle = client, r.o.AnswerWait, command.LimitOf(command.Diagnose)
	o.Publish = func(ctx context.Context, payload []byte) error {
		return r.o.Sessions.Input(ctx, site, o.ID, payload)
	}
	o.Result = func(ctx context.Context) (*fleet.CommandResult, error) { return r.ended(ctx, s) }
	end := session.Run(ctx, o, nil, 0)
	ended()
	if end.Reason == fleet.SessionExited && client.bytes > 0 {
		audit.Note(ctx, fmt.Sprintf("archive sha256:%s, %d bytes", hex.EncodeToString(client.sum.Sum(nil)), client.bytes))
		return
	}
	r.log.InfoContext(ctx, "not collected", "command_id", string(o.ID), "reason", string(end.Reason), "message", end.Message)
	audit.Note(ctx, fmt.Sprintf("not collected: %s %s", end.Reason, end.Message))
	if client.bytes > 0 {
		panic(http.ErrAbortHandler) // what was sent is not whole
	}
	r.giveUp(ctx, s)
	err := r.uncollected(ctx, s, end)
	problem.Write(w, err.GetStatus(), err.Error())
}

// uncollected returns why nothing was collected.
func (r *routes) uncollected(ctx context.Context, s *fleet.Session, end fleet.SessionEnd) huma.StatusError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWrite)
	defer cancel()
	switch end.Reason { //nolint:exhaustive // the others are answered alike
	case fleet.SessionLost:
		return huma.Error504GatewayTimeout(fmt.Sprintf("%s; colony site show %s shows the link, colony command show %s what is known", end.Message, s.Site, s.ID))
	case fleet.SessionRefused, fleet.SessionFailed:
		for range 10 { // its result goes another way than what it sends, and is somewhat later
			if result, err := r.ended(ctx, s); err == nil && result != nil {
				return r.fail(ctx, protocol.Errorf(kindOf(result), "node %s/%s: %s", s.Site, s.Node, said(result)))
			}
			if retry.Sleep(ctx, firstLook) != nil {
				break
			}
		}
	}
	return r.fail(ctx, protocol.Errorf(protocol.Unavailable, "node %s/%s: %s (%s)", s.Site, s.Node, end.Message, end.Reason))
}

// A download is a client that gets what is collected.
type download struct {
	id    command.ID
	w     http.ResponseWriter
	c     *http.ResponseController
	sum   hash.Hash
	bytes int64
	over  chan struct{}
}

// Receive waits for Close: a client of a download does nothing.
func (d *download) Receive() (command.Record, error) {
	<-d.over
	return command.Record{}, context.Canceled
}

// Close ends Receive.
func (d *download) Close() { close(d.over) }

// Send sends output to the client.
func (d *download) Send(r *command.Record) error {
	if r.Kind != command.Stdout || len(r.Data) == 0 {
		return nil
	}
	if d.bytes == 0 {
		h := d.w.Header()
		h.Set("Content-Type", archived)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		h.Set("Connection", "close") // it has a write deadline that no further request should meet
		h.Set("Colony-Command", string(d.id))
	}
	_ = d.c.SetWriteDeadline(time.Now().Add(logstream.Stall)) // where there is none the server has its own
	n, err := d.w.Write(r.Data)
	d.bytes += int64(n)
	_, _ = d.sum.Write(r.Data[:n]) // it never fails
	return err
}
