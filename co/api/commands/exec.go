package commandsapi

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/commands/socket"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/session"
	"github.com/colonyfleet/colony/co/session/recording"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const (
	// defaultIdle is how long a session may be idle, without input or output, if the request does not say it. mostIdle is the
	// longest that may be asked for.
	defaultIdle = 15 * time.Minute
	mostIdle    = 24 * time.Hour
	// endWrite bounds what is done once a session has ended.
	endWrite = 5 * time.Second
	// allowedEvery is how often it is looked whether a session is still allowed.
	allowedEvery = 5 * time.Second
)

type execInput struct {
	Site      string   `path:"site" doc:"the site"`
	Name      string   `path:"name" doc:"the deployment, by its name at the site"`
	Node      string   `query:"node" doc:"the node; default the one that has the deployment, where it is one alone"`
	Component string   `query:"component" doc:"the component; default the one with such a container"`
	Container string   `query:"container" doc:"the container; default the one of the deployment, where it is one alone"`
	Arguments []string `query:"argument,explode" doc:"the program and its arguments, each by a parameter of its own"`
	Terminal  bool     `query:"terminal" doc:"give it a terminal"`
	Input     bool     `query:"input" doc:"what the client sends is its standard input; otherwise that is at its end"`
	Columns   uint16   `query:"columns" doc:"of the terminal"`
	Rows      uint16   `query:"rows" doc:"of the terminal"`
	Idle      string   `query:"idle" doc:"after how long without anything typed or shown the session ends, such as 2h; from 1s to 24h, default 15m"`
}

func describeExec(o *huma.Operation) {
	o.Description = "The request is the opening handshake of a WebSocket (RFC 6455) of the subprotocol " + socket.Protocol + ". Binary messages begin with a byte that says whose data follows: 0 standard input, 1 standard output or the terminal, 2 standard error. " +
		"Text messages are JSON: {type: resize, columns, rows}, {type: signal, signal} and {type: eof} of the client, {type: open, session}, {type: began, container}, {type: exit, exitCode} and {type: end, reason, message, exitCode} of the CO. " +
		"What the program shows is recorded before it is sent. The end of the connection hangs the program up. 403 also where the site's file does not allow it (spec.exec)."
	o.Errors = append(o.Errors, http.StatusConflict, http.StatusForbidden, http.StatusUpgradeRequired)
	form.Raw(o, http.StatusSwitchingProtocols, "The session")
}

// An opening is a session that may be opened.
type opening struct {
	command       fleet.NewCommand
	key           ed25519.PrivateKey // by which what goes down is signed
	columns, rows uint16             // of the terminal
	idle          time.Duration      // how long nothing may go through
	session       fleet.Session
}

func (r *routes) exec(ctx context.Context, in *execInput) (*huma.StreamResponse, error) {
	o, err := r.program(ctx, in)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return r.upgrade(o, socket.Protocol), nil
}

// upgrade answers with a session, by WebSocket.
func (r *routes) upgrade(o *opening, subprotocol string) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		req, w := humago.Unwrap(hc)
		up := websocket.Upgrader{
			HandshakeTimeout: endWrite, Subprotocols: []string{subprotocol},
			Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
				problem.Write(w, status, strings.TrimPrefix(reason.Error(), "websocket: ")+": a session is opened by the handshake of RFC 6455, from the same origin")
			},
		}
		conn, err := up.Upgrade(w, req, nil)
		if err != nil {
			return // it was answered
		}
		client := socket.New(conn)
		defer client.End()
		r.carry(hc.Context(), o, client)
	}}
}

// program checks a request for a session with a program; nothing is done yet.
func (r *routes) program(ctx context.Context, in *execInput) (*opening, error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	req := &command.ExecRequest{
		Key: public, Subject: command.Subject{Deployment: protocol.DeploymentName(in.Name), Component: in.Component, Container: in.Container},
		Arguments: in.Arguments, Terminal: in.Terminal, Columns: in.Columns, Rows: in.Rows, Input: in.Input,
	}
	o := &opening{key: key, columns: in.Columns, rows: in.Rows, session: fleet.Session{Arguments: in.Arguments, Terminal: in.Terminal}}
	return o, r.opening(ctx, o, asked{in.Site, in.Node, in.Idle, command.Exec, req, &req.Subject})
}

// idle reads how long nothing may go through; empty: as long as the CO says.
func (r *routes) idle(text string) (time.Duration, error) {
	if text == "" {
		return cmp.Or(r.o.Sessions.Idle, defaultIdle), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > mostIdle {
		return 0, protocol.Errorf(protocol.Invalid, "%q: want a duration from 1s to %s, such as 2h", text, mostIdle)
	}
	return d, nil
}

// An asked says what a session is asked for.
type asked struct {
	site, node, idle string
	kind             command.Kind
	args             command.Args
	subject          *command.Subject // of args
}

// opening checks a request for a session; nothing is done yet.
func (r *routes) opening(ctx context.Context, o *opening, a asked) error {
	site, err := protocol.ParseSiteID(a.site)
	if err != nil {
		return problem.At("path.site", err)
	}
	if err := problem.At("query", a.args.Check()); err != nil {
		return err
	}
	if o.idle, err = r.idle(a.idle); err != nil {
		return problem.At("query.idle", err)
	}
	if r.o.Refuse != nil {
		return r.o.Refuse
	}
	d, err := r.o.Fleet.Deployment(ctx, site, a.subject.Deployment)
	if err != nil {
		return err
	}
	if err := r.o.Sessions.Allowed(ctx, site); err != nil {
		return err
	}
	nodes, err := nodesOf(&d)
	if err != nil {
		return err
	}
	if a.node == "" && len(nodes) > 1 {
		return problem.At("query.node", protocol.Errorf(protocol.Invalid, "%d nodes have the deployment %s/%s: name one of %s", len(nodes), site, a.subject.Deployment, names(nodes)))
	}
	node, _, err := r.sources(ctx, &d, cmp.Or(a.node, string(nodes[0])))
	if err != nil {
		return err
	}
	c, err := newCommand(ctx, a.kind, a.args, logsDeadline)
	if err != nil {
		return err
	}
	c.Args = a.subject // a principal that may see commands may not see the command line
	target := fleet.CommandTarget{Site: site, Nodes: node}
	if err := check(c, target); err != nil {
		return err
	}
	c.Targets = []fleet.CommandTarget{target}
	o.command = c
	s := &o.session
	s.ID, s.Site, s.Node, s.Principal, s.OpenedAt = c.ID, site, node[0], c.Actor, c.CreatedAt
	s.Deployment, s.Component, s.Container = a.subject.Deployment, a.subject.Component, a.subject.Container
	return nil
}

// carry opens a session, carries it to its end, and records that.
func (r *routes) carry(ctx context.Context, o *opening, client *socket.Socket) {
	s, store := &o.session, r.o.Sessions.Store
	recorder, first := recording.New(recording.Header{
		Columns: o.columns, Rows: o.rows, At: s.OpenedAt, Arguments: s.Arguments, Title: fmt.Sprintf("%s/%s/%s", s.Site, s.Node, s.Deployment),
	})
	if err := store.Open(ctx, s, r.o.Sessions.Carrier, first); err != nil {
		r.log.WarnContext(ctx, "session not opened", "err", err)
		client.Control(socket.Control{Type: "end", Reason: fleet.SessionUnwrit, Message: problem.Answer(ctx, r.log, err).Error()})
		return
	}
	within, done := r.o.Sessions.Carry(ctx, s.ID)
	end := r.attend(within, o, client, recorder, len(first))
	done(end.Reason)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWrite)
	defer cancel()
	audit.Note(ctx, fmt.Sprintf("session ended: %s %s", end.Reason, end.Message))
	if ended, err := store.End(ctx, s.ID, end); err != nil { // another look finds it abandoned
		r.log.ErrorContext(ctx, "end of a session not recorded", "session_id", string(s.ID), "err", err)
	} else {
		audit.Note(ctx, fmt.Sprintf("recording %s, %d bytes", ended.Digest, ended.Recorded))
	}
	r.log.InfoContext(ctx, "session ended", "session_id", string(s.ID), "reason", string(end.Reason), "message", end.Message)
	client.Control(socket.Control{Type: "end", Reason: end.Reason, Message: end.Message, ExitCode: end.ExitCode})
}

// attend has the program run, and is there until the session ends.
func (r *routes) attend(ctx context.Context, o *opening, client *socket.Socket, recorder *recording.Writer, first int) fleet.SessionEnd {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &o.session
	reader, err := r.o.Open(s.Site, s.ID, 1)
	if err == nil {
		defer reader.Close(ctx)
		err = r.record(ctx, o.command)
	}
	if err != nil {
		return fleet.SessionEnd{Reason: fleet.SessionRefused, Message: problem.Answer(ctx, r.log, err).Error()}
	}
	client.Control(socket.Control{Type: "open", Session: s})
	ended := r.untilOver(ctx, func(ctx context.Context) error { return r.o.Sessions.Allowed(ctx, s.Site) }, stop)
	began := false
	end := session.Run(ctx, session.Options{
		ID: s.ID, Node: s.Node, Key: o.key, Way: reader, Client: client, AnswerWait: r.o.AnswerWait, Idle: o.idle,
		Publish: func(ctx context.Context, payload []byte) error {
			return r.o.Sessions.Input(ctx, s.Site, s.ID, payload)
		},
		Record: func(ctx context.Context, chunk []byte) error { return r.o.Sessions.Store.Append(ctx, s.ID, chunk) },
		Began: func(ctx context.Context, component, container string) {
			began = true
			if err := r.o.Sessions.Store.Began(ctx, s.ID, component, container); err != nil {
				r.log.WarnContext(ctx, "beginning of a session not recorded", "session_id", string(s.ID), "err", err)
			}
		},
		Result: func(ctx context.Context) (*fleet.CommandResult, error) { return r.ended(ctx, s) },
	}, recorder, first)
	ended()
	if !began {
		r.giveUp(ctx, s)
	}
	if end.Reason == fleet.SessionFailed && context.Cause(ctx) != nil { // the request ended without a reason of its own
		if _, ok := access.From(ctx); ok {
			end = fleet.SessionEnd{Reason: fleet.SessionDenied, Message: "the token does not count any more"}
		}
	}
	return end
}

// untilOver has a session end with the CO, and when it is not allowed any more, until ended is called.
func (r *routes) untilOver(ctx context.Context, allowed func(context.Context) error, stop context.CancelCauseFunc) (ended func()) {
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		look := time.NewTicker(allowedEvery)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				if err := allowed(ctx); protocol.KindOf(err) == protocol.Denied { // of another error the next look says more
					stop(session.Because(fleet.SessionDenied, "%v", err))
					return
				}
			case <-r.over():
				stop(session.Because(fleet.SessionCO, "the CO stops"))
				return
			case <-ctx.Done():
				return
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-watched
	}
}

// giveUp cancels the command of a session whose program has not begun.
func (r *routes) giveUp(ctx context.Context, s *fleet.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWrite)
	defer cancel()
	if sites, err := r.o.Store.Cancel(ctx, s.ID, access.SitesOf(ctx)); err == nil && len(sites) > 0 {
		r.o.Changed(s.Site)
	}
}

// ended returns how the command of a session ended; nil: it has not.
func (r *routes) ended(ctx context.Context, s *fleet.Session) (*fleet.CommandResult, error) {
	c, err := r.o.Store.Command(ctx, s.ID, access.SitesOf(ctx))
	if err != nil {
		return nil, err
	}
	for _, at := range c.Sites {
		if at.State == fleet.CommandRefused {
			return &fleet.CommandResult{State: command.Refused, Code: at.Code, Message: at.Message}, nil
		}
	}
	list, _, err := r.o.Store.Results(ctx, s.ID, fleet.ResultFilter{Site: s.Site}, fleet.Page{})
	if err != nil || len(list) == 0 || !list[0].State.Ended() {
		return nil, err
	}
	if list[0].Code == "" && list[0].Message == "" {
		list[0].Message = string(list[0].State)
	}
	return &list[0], nil
}
