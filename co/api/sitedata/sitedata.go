// Package sitedata has the routes of the API about one site's machine data: the link with its streams; the site's
// file with the rules, the device accounts and the maintenance windows; and the messages, stored and live.
package sitedata

import (
	"context"
	"log/slog"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// FleetStore reads sites; NotFound where there is none.
type FleetStore interface {
	// Site returns one site.
	Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error)
}

// Repo is the deployments repo, which has the file of each site. Errors are of the protocol's
// kinds.
type Repo interface {
	// File returns a file of the head and the last commit that changed it; NotFound where there is none.
	File(ctx context.Context, path string) (content []byte, commit string, err error)
	// Sync asks the remote for what others committed, after which File has it, and returns the head.
	Sync(ctx context.Context) (head string, err error)
	// Put commits one file, or removes it where content is nil. expect is the last commit that
	// changed the file, "" where there must be none; otherwise the error is a Conflict.
	Put(ctx context.Context, path string, content []byte, expect, message string) (commit string, err error)
}

// Options are what the routes need. All are required.
type Options struct {
	Fleet FleetStore
	Repo  Repo
	Rules RuleStore
	Data  DataStore
	// Ask makes a site report the state of its streams now. It does not wait for the answer.
	Ask func(ctx context.Context, site protocol.SiteID) error
	// Watch begins to collect what this CO delivers of a site's machine data and want
	// picks, up to limit messages.
	Watch func(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) Watch
	// Changed is called after a commit; it makes the CO look at the repo at once.
	Changed func()
	// Over returns a channel that is closed when open streams are to end.
	Over   func() <-chan struct{}
	Logger *slog.Logger
}

// routes answers the requests.
type routes struct {
	opts Options
	log  *slog.Logger
}

// Register adds the routes to h.
func Register(h huma.API, o Options) {
	a := &routes{opts: o, log: o.Logger}
	const site = "/api/v1/sites/{site}"
	huma.Get(h, site+"/link", a.getLink, form.Describe("data", "Show the link to a site and its streams"))
	huma.Get(h, site+"/data-rules", a.getDataRules, form.Describe("data", "Show the rules of a site's machine data"))
	huma.Put(h, site+"/data-rules", a.putDataRules, form.Describe("data", "Replace the rules of a site's machine data"), form.Guarded)
	huma.Delete(h, site+"/data-rules", a.deleteDataRules, form.Describe("data", "Remove the rules of a site's machine data"), form.Guarded)
	huma.Get(h, site+"/exec", a.getExec, form.Describe("sessions", "Say whether programs may be run in containers of a site"))
	huma.Put(h, site+"/exec", a.putExec, form.Describe("sessions", "Allow or refuse that programs are run in containers of a site, by a commit"))
	huma.Get(h, site+"/maintenance", a.getMaintenance, form.Describe("sites", "Show the maintenance windows of a site"))
	huma.Put(h, site+"/maintenance", a.putMaintenance, form.Describe("sites", "Set the maintenance windows of a site, by a commit"))
	huma.Delete(h, site+"/maintenance", a.deleteMaintenance, form.Describe("sites", "Remove the maintenance windows of a site, by a commit: changes are carried out at any time"))
	huma.Get(h, site+"/devices", a.listDevices, form.Describe("data", "List the device accounts of a site's broker"))
	huma.Put(h, site+"/devices/{user}", a.putDevice, form.Describe("data", "Set a device account of a site's broker"))
	huma.Delete(h, site+"/devices/{user}", a.deleteDevice, form.Describe("data", "Remove a device account of a site's broker"))
	huma.Get(h, site+"/data", a.listMessages, form.Describe("data", "List stored messages of a site's machine data"))
	huma.Get(h, site+"/data/stream", a.streamData, form.Describe("data", "Follow a site's machine data as server-sent events"), func(o *huma.Operation) {
		o.Description = "The answer is a stream of events (WHATWG HTML 9.2), each with a DataMessage as JSON. Messages of rules that store have " +
			"an id; Last-Event-ID resumes after it without a gap. Those of other rules come only while the stream is open, at least once; " +
			"an event lost says how many of them a slow client missed."
		o.Responses = map[string]*huma.Response{"200": {
			Description: "A stream of events", Content: map[string]*huma.MediaType{"text/event-stream": {}},
		}}
	})
}

// fail turns an error into an RFC 9457 answer.
func (a *routes) fail(ctx context.Context, err error) huma.StatusError {
	return problem.Answer(ctx, a.log, err)
}
