// Package sitegroups has the routes of the API about groups of sites, which tokens and the roles of people name.
package sitegroups

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/protocol"
)

// A Record keeps the groups. Errors are of the protocol's kinds.
type Record interface {
	// SiteGroups returns all groups, by name.
	SiteGroups(ctx context.Context) ([]access.SiteGroup, error)
	// PutSiteGroup and RemoveSiteGroup return the sites of before.
	PutSiteGroup(ctx context.Context, g access.SiteGroup) (before []string, err error)
	RemoveSiteGroup(ctx context.Context, name string) (before []string, err error)
}

// Groups are all groups.
type Groups struct {
	Items []access.SiteGroup `json:"items" doc:"sorted by name"`
}

// NamePath names a group. It is exported because it is embedded, and huma reads exported fields only.
type NamePath struct {
	Group string `path:"group" doc:"the group, by its name"`
}

type putInput struct {
	NamePath
	Body struct {
		Sites []string `json:"sites" doc:"names of sites, or how names begin with a * after it; 1 to 1,024 names, and 64 beginnings"`
	}
}

type routes struct {
	record Record
	log    *slog.Logger
}

// Register adds the routes to h; record is nil where no token is required.
func Register(h huma.API, record Record, log *slog.Logger) {
	r := &routes{record, log}
	errs := func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusConflict)
		o.Description = "Conflict: the CO requires no token, as access.required is not set in its configuration, or there are too many groups."
	}
	huma.Get(h, "/api/v1/site-groups", r.list, form.Describe("access", "List the groups of sites"), errs)
	huma.Put(h, "/api/v1/site-groups/{group}", r.put, form.Describe("access", "Make a group of sites, or give it others"), errs)
	huma.Delete(h, "/api/v1/site-groups/{group}", r.remove, form.Describe("access", "Remove a group of sites"), errs)
}

var errOpen = protocol.Errorf(protocol.Conflict, "this CO requires no token: set access.required in its configuration")

func (r *routes) list(ctx context.Context, _ *struct{}) (*form.Reply[Groups], error) {
	if r.record == nil {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	list, err := r.record.SiteGroups(ctx)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[Groups]{Body: Groups{form.NotNil(list)}}, nil
}

func (r *routes) put(ctx context.Context, in *putInput) (*form.Reply[access.SiteGroup], error) {
	if r.record == nil {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	g, err := access.NewSiteGroup(in.Group, in.Body.Sites)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	before, err := r.record.PutSiteGroup(ctx, g)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	r.note(ctx, g.Name, before, g.Sites)
	return &form.Reply[access.SiteGroup]{Body: g}, nil
}

func (r *routes) remove(ctx context.Context, in *NamePath) (*struct{}, error) {
	if r.record == nil {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	before, err := r.record.RemoveSiteGroup(ctx, in.Group)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	r.note(ctx, in.Group, before, nil)
	return nil, nil
}

// note has the audit and the log say what a group was, and what it is.
func (r *routes) note(ctx context.Context, name string, before, after []string) {
	text := func(sites []string) string { return cmp.Or(strings.Join(sites, ", "), "none") }
	audit.Note(ctx, fmt.Sprintf("sites of group %s: %s; before: %s", name, text(after), text(before)))
	p, _ := access.From(ctx)
	r.log.InfoContext(ctx, "group of sites changed", "principal", p.Name, "group", name, "sites", after, "before", before)
}
