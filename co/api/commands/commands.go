// Package commandsapi has the routes of the API about commands, which are what an operator asks of nodes once, and about the
// logs that nodes send for one.
package commandsapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Store is the record of commands.
type Store interface {
	// Create records a new command.
	Create(ctx context.Context, c fleet.NewCommand) error
	// Commands lists the commands that f selects, the newest first; next is the cursor of the next page.
	Commands(ctx context.Context, f fleet.CommandFilter, p fleet.Page) (list []fleet.Command, next string, err error)
	// Command returns a command, as far as it concerns sites in within.
	Command(ctx context.Context, id command.ID, within siteset.Set) (fleet.Command, error)
	// Results lists the results of a command that f selects; next is the cursor of the next page.
	Results(ctx context.Context, id command.ID, f fleet.ResultFilter, p fleet.Page) (list []fleet.CommandResult, next string, err error)
	// Cancel cancels a command at the sites in within, and returns the sites that have it.
	Cancel(ctx context.Context, id command.ID, within siteset.Set) (sites []protocol.SiteID, err error)
	// Away returns those of some nodes that are not online, with since when; zero: it is not known.
	Away(ctx context.Context, site protocol.SiteID, nodes []protocol.NodeID) (map[protocol.NodeID]time.Time, error)
}

// A Fleet has what commands are about.
type Fleet interface {
	// Site returns one site.
	Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error)
	// Node returns one node.
	Node(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.Node, error)
	// Deployment returns one deployment with its nodes.
	Deployment(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (fleet.Deployment, error)
}

// A Reader gets what nodes send live for a command.
type Reader interface {
	// C delivers a value when there may be something to read, Next the frame that has waited longest.
	C() <-chan struct{}
	Next() (f command.Frame, ok bool)
	// Keep lets the nodes send until ctx ends. Close says that the output is not read any more.
	Keep(ctx context.Context)
	Close(ctx context.Context)
}

// Options are what the routes need. All are required, but for the last two.
type Options struct {
	Store Store
	Fleet Fleet
	// Changed says that the record of commands of a site has changed.
	Changed func(site protocol.SiteID)
	// Open begins to collect what so many nodes send for a command.
	Open func(site protocol.SiteID, id command.ID, nodes int) (Reader, error)
	// Sessions are about programs that are run in containers.
	Sessions Sessions
	// Refuse is why no command is made. Nil: they are.
	Refuse error
	// AnswerWait is how long the first answer of a node to a request for logs may take. 0: 35 s.
	AnswerWait time.Duration
}

// Commands are a page of commands.
type Commands struct {
	Items []fleet.Command `json:"items"` // the newest first
	Next  string          `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// Results are a page of results.
type Results struct {
	Items []fleet.CommandResult `json:"items"` // by site and node
	Next  string                `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// A Target is the nodes of a site that are meant.
type Target struct {
	Site     string            `json:"site"`
	Nodes    []string          `json:"nodes,omitempty" doc:"by name; absent, as the others: those that have the deployment that the arguments name"`
	Selector map[string]string `json:"selector,omitempty" doc:"labels that each node that is meant has"`
	All      bool              `json:"all,omitempty" doc:"every node of the site"`
}

// A Request is a command that is asked for.
type Request struct {
	Kind     string   `json:"kind" doc:"restart, probe, pull, inventory, network-check, cordon, uncordon, drain, hold or release"`
	Args     any      `json:"args,omitempty" doc:"as the kind defines them: {deployment, component, container} for restart, probe and pull; {method, target, count} for network-check; {reason, forMillis, force} for cordon, drain and hold; none for inventory, uncordon and release"`
	Targets  []Target `json:"targets" doc:"each site once"`
	Deadline string   `json:"deadline,omitempty" doc:"for how long it may begin, such as 10m, which is the default; at most 24h"`
	Budget   int64    `json:"budget,omitempty" minimum:"0" doc:"what it may send live, in bytes; default that of its kind"`
}

type createInput struct{ Body Request }

type listInput struct {
	form.PageQuery
	Site  string    `query:"site" doc:"only those that this site was asked"`
	Kind  string    `query:"kind" doc:"only of this kind"`
	State string    `query:"state" enum:"open,ended" doc:"only in this state"`
	Since time.Time `query:"since" doc:"only those that were asked from then on"`
	Text  string    `query:"q" doc:"a part of the id, of whose token was shown, or of the arguments"`
}

// IDPath names a command. It is exported because it is embedded, and huma reads exported fields only.
type IDPath struct {
	ID string `path:"id" doc:"the command, by its id"`
}

type resultsInput struct {
	IDPath
	form.PageQuery
	Site  string `query:"site" doc:"only of this site"`
	State string `query:"state" enum:"running,done,failed,refused,expired,unknown" doc:"only in this state"`
}

func (p IDPath) parse() (command.ID, error) {
	id, err := command.ParseID(p.ID)
	return id, problem.At("path.id", err)
}

const (
	// defaultDeadline is for how long a command may begin that names no deadline.
	defaultDeadline = 10 * time.Minute
	// maxSites bounds the sites of a command, and maxLabels the labels of a selection.
	maxSites  = 1000
	maxLabels = 64
)

type routes struct {
	o    Options
	over func() <-chan struct{}
	log  *slog.Logger
}

// Register adds the routes to h. Streams end when over is closed.
func Register(h huma.API, o Options, over func() <-chan struct{}, log *slog.Logger) {
	o.AnswerWait = cmp.Or(o.AnswerWait, defaultAnswerWait)
	r := &routes{o, over, log}
	conflict := func(op *huma.Operation) { op.Errors = append(op.Errors, http.StatusConflict, http.StatusForbidden) }
	const one = "/api/v1/commands/{id}"
	huma.Get(h, "/api/v1/commands", r.list, form.Describe("commands", "List commands, the newest first"))
	huma.Post(h, "/api/v1/commands", r.create, form.Describe("commands", "Have nodes carry out a command"), conflict, func(op *huma.Operation) {
		op.DefaultStatus = http.StatusCreated
		op.Description = "A command is carried out at most once on each node that is meant, and not after its deadline. The answer comes once it is recorded; its results say how it ended. Logs are read at a deployment."
	})
	huma.Get(h, one, r.get, form.Describe("commands", "Show a command and its sites"))
	huma.Get(h, one+"/results", r.results, form.Describe("commands", "List what became of a command on each node"))
	huma.Delete(h, one, r.cancel, form.Describe("commands", "Cancel a command: what has not begun does not begin"), conflict, func(op *huma.Operation) { op.DefaultStatus = http.StatusOK })
	r.registerLogs(h)
	r.registerSessions(h)
	r.registerCollect(h)
}

func (r *routes) fail(ctx context.Context, err error) huma.StatusError {
	return problem.Answer(ctx, r.log, err)
}

// A made is the answer to a command that was made.
type made struct {
	Location string `header:"Location"`
	Body     fleet.Command
}

func (r *routes) create(ctx context.Context, in *createInput) (*made, error) {
	c, err := r.asked(ctx, in)
	if err == nil {
		err = r.record(ctx, c)
	}
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	out, err := r.o.Store.Command(ctx, c.ID, access.SitesOf(ctx))
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &made{"/api/v1/commands/" + string(c.ID), out}, nil
}

// asked reads a request.
func (r *routes) asked(ctx context.Context, in *createInput) (c fleet.NewCommand, err error) {
	b := &in.Body
	switch command.Kind(b.Kind) { //nolint:exhaustive // the others are made here
	case command.Logs:
		return c, problem.At("body.kind", protocol.Errorf(protocol.Invalid, "logs are read at the deployment: GET /api/v1/deployments/{site}/{name}/logs"))
	case command.Exec:
		return c, problem.At("body.kind", protocol.Errorf(protocol.Invalid, "a program is run at the deployment: GET /api/v1/deployments/{site}/{name}/exec"))
	case command.Forward:
		return c, problem.At("body.kind", protocol.Errorf(protocol.Invalid, "a port is forwarded at the deployment: GET /api/v1/deployments/{site}/{name}/forward"))
	case command.Diagnose, command.Files:
		return c, problem.At("body.kind", protocol.Errorf(protocol.Invalid, "what is collected is asked of the node: GET /api/v1/nodes/{site}/{node}/%s", b.Kind))
	}
	life := defaultDeadline
	if b.Deadline != "" {
		if life, err = time.ParseDuration(b.Deadline); err != nil || life < time.Second || life > command.MaxLifeMillis*time.Millisecond {
			return c, problem.At("body.deadline", protocol.Errorf(protocol.Invalid, "deadline %q: want a time such as 10m, from 1s to 24h", b.Deadline))
		}
	}
	if c, err = newCommand(ctx, command.Kind(b.Kind), b.Args, life); err != nil {
		return c, err
	}
	c.Budget = uint64(b.Budget)
	if len(b.Targets) < 1 || len(b.Targets) > maxSites {
		return c, problem.At("body.targets", protocol.Errorf(protocol.Invalid, "%d targets: want 1 to %d sites", len(b.Targets), maxSites))
	}
	seen := map[protocol.SiteID]bool{}
	for i, t := range b.Targets {
		target, err := r.target(ctx, t, c)
		if err == nil && seen[target.Site] {
			err = protocol.Errorf(protocol.Invalid, "site %q is there twice", target.Site)
		}
		if err != nil {
			return c, problem.At(fmt.Sprintf("body.targets[%d]", i), err)
		}
		seen[target.Site] = true
		c.Targets = append(c.Targets, target)
	}
	return c, nil
}

// newCommand returns a command of the request's principal, without targets.
func newCommand(ctx context.Context, kind command.Kind, args any, life time.Duration) (c fleet.NewCommand, err error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	who, _ := access.From(ctx)
	now := time.Now().UTC().Truncate(time.Millisecond)
	c.Command = fleet.Command{ID: command.ID(hex.EncodeToString(id[:])), Kind: kind, Actor: who.Name, CreatedAt: now, Deadline: now.Add(life)}
	if _, err := command.Lookup(kind); err != nil {
		return c, problem.At("body.kind", err)
	}
	c.Args, c.Encoded, err = arguments(kind, args)
	return c, problem.At("body.args", err)
}

// target reads which nodes of a site are meant.
func (r *routes) target(ctx context.Context, t Target, c fleet.NewCommand) (out fleet.CommandTarget, err error) {
	if out.Site, err = protocol.ParseSiteID(t.Site); err != nil {
		return out, err
	}
	if err := access.Check(ctx, out.Site); err != nil {
		return out, err
	}
	for _, name := range t.Nodes {
		node, err := protocol.ParseNodeID(name)
		if err != nil {
			return out, err
		}
		out.Nodes = append(out.Nodes, node)
	}
	for k, v := range t.Selector {
		if k == "" || strings.ContainsRune(k+v, 0) || len(t.Selector) > maxLabels {
			return out, protocol.Errorf(protocol.Invalid, "selection by the label %q=%q: want up to %d labels with names", k, v, maxLabels)
		}
	}
	out.Selector, out.All = t.Selector, t.All
	if subject := subjectOf(c.Args); subject != nil && len(out.Nodes) == 0 && len(out.Selector) == 0 && !out.All {
		if out.Nodes, err = r.having(ctx, out.Site, subject.Deployment); err != nil {
			return out, err
		}
	}
	slices.Sort(out.Nodes)
	out.Nodes = slices.Compact(out.Nodes)
	return out, check(c, out)
}

// check returns what is wrong with a command for a site.
func check(c fleet.NewCommand, t fleet.CommandTarget) error {
	m := command.Command{
		V: protocol.Version, ID: c.ID, Site: t.Site, Kind: c.Kind, Args: c.Encoded, Nodes: t.Nodes, Selector: t.Selector, All: t.All,
		IssuedMillis: c.CreatedAt.UnixMilli(), DeadlineMillis: c.Deadline.UnixMilli(),
	}
	return m.Check()
}

// record records a command, and has it published.
func (r *routes) record(ctx context.Context, c fleet.NewCommand) error {
	if r.o.Refuse != nil {
		return r.o.Refuse
	}
	if err := r.o.Store.Create(ctx, c); err != nil {
		return err
	}
	audit.Note(ctx, describe(c))
	for _, t := range c.Targets {
		r.o.Changed(t.Site)
	}
	r.log.InfoContext(ctx, "command made", "command_id", string(c.ID), "kind", string(c.Kind), "principal", c.Actor, "sites", len(c.Targets), "deadline", c.Deadline)
	return nil
}

// describe says in a line what a command is, for the audit.
func describe(c fleet.NewCommand) string {
	const most = 10
	var b strings.Builder
	fmt.Fprintf(&b, "command %s: %s", c.ID, c.Kind)
	if s := subjectOf(c.Args); s != nil {
		fmt.Fprintf(&b, " %s", s.Deployment)
	}
	if r, ok := c.Args.(*command.Restriction); ok {
		fmt.Fprintf(&b, " (%s", r.Reason)
		if r.ForMillis > 0 {
			fmt.Fprintf(&b, ", for %s", time.Duration(r.ForMillis)*time.Millisecond)
		}
		b.WriteString(")")
	}
	for i, t := range c.Targets {
		if i == most {
			fmt.Fprintf(&b, " and at %d more sites", len(c.Targets)-most)
			break
		}
		names := make([]string, 0, most+1)
		for j, n := range t.Nodes {
			if j == most {
				names = append(names, fmt.Sprintf("and %d more", len(t.Nodes)-most))
				break
			}
			names = append(names, string(n))
		}
		which := strings.Join(names, " ")
		switch {
		case t.All:
			which = "all nodes"
		case len(t.Selector) > 0:
			which = fmt.Sprintf("nodes with %v", t.Selector)
		}
		fmt.Fprintf(&b, "; at %s: %s", t.Site, which)
	}
	return b.String()
}

func (r *routes) list(ctx context.Context, in *listInput) (*form.Reply[Commands], error) {
	f := fleet.CommandFilter{Kind: in.Kind, State: in.State, Since: in.Since, Text: in.Text}
	var err error
	if in.Site != "" {
		if f.Site, err = protocol.ParseSiteID(in.Site); err != nil {
			return nil, r.fail(ctx, problem.At("query.site", err))
		}
	}
	if in.Kind != "" {
		if _, err := command.Lookup(command.Kind(in.Kind)); err != nil {
			return nil, r.fail(ctx, problem.At("query.kind", err))
		}
	}
	if f.Within, err = within.Picked(ctx, f.Site); err != nil {
		return nil, r.fail(ctx, err)
	}
	list, next, err := r.o.Store.Commands(ctx, f, in.Page())
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[Commands]{Body: Commands{form.NotNil(list), next}}, nil
}

func (r *routes) get(ctx context.Context, in *IDPath) (*form.Reply[fleet.Command], error) {
	id, err := in.parse()
	var c fleet.Command
	if err == nil {
		c, err = r.o.Store.Command(ctx, id, access.SitesOf(ctx))
	}
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[fleet.Command]{Body: c}, nil
}

func (r *routes) results(ctx context.Context, in *resultsInput) (*form.Reply[Results], error) {
	id, err := in.parse()
	f := fleet.ResultFilter{Site: protocol.SiteID(in.Site), State: in.State}
	if err == nil {
		f.Within, err = within.Picked(ctx, f.Site)
	}
	if err == nil {
		_, err = r.o.Store.Command(ctx, id, f.Within) // whether there is one
	}
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	list, next, err := r.o.Store.Results(ctx, id, f, in.Page())
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[Results]{Body: Results{form.NotNil(list), next}}, nil
}

func (r *routes) cancel(ctx context.Context, in *IDPath) (*form.Reply[fleet.Command], error) {
	id, err := in.parse()
	var c fleet.Command
	if err == nil {
		c, err = r.cancelAt(ctx, id)
	}
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[fleet.Command]{Body: c}, nil
}

func (r *routes) cancelAt(ctx context.Context, id command.ID) (fleet.Command, error) {
	sites := access.SitesOf(ctx)
	if c, err := r.o.Store.Command(ctx, id, sites); err != nil {
		return c, err
	}
	changed, err := r.o.Store.Cancel(ctx, id, sites)
	if err != nil {
		return fleet.Command{}, err
	}
	audit.Note(ctx, fmt.Sprintf("command %s cancelled at %d sites", id, len(changed)))
	for _, site := range changed {
		r.o.Changed(site)
	}
	return r.o.Store.Command(ctx, id, sites)
}
