package commandsapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A SessionStore is the record of sessions and of what they showed, see sessionsdb.Store.
type SessionStore interface {
	// Open records a new session of a carrier, with the first bytes of its recording.
	Open(ctx context.Context, s *fleet.Session, carrier string, first []byte) error
	// Append appends to the recording of a session.
	Append(ctx context.Context, id command.ID, chunk []byte) error
	// Began records the container in which the program began.
	Began(ctx context.Context, id command.ID, component, container string) error
	// End records the end of a session, and returns the session.
	End(ctx context.Context, id command.ID, e fleet.SessionEnd) (fleet.Session, error)
	// Stop asks for the end of a session, for the person by; its carrier ends it.
	Stop(ctx context.Context, id command.ID, by string, within siteset.Set) error
	SessionReader
}

// A SessionReader reads the record.
type SessionReader interface {
	// Session returns one session.
	Session(ctx context.Context, id command.ID, within siteset.Set) (fleet.Session, error)
	// Sessions lists the sessions that f selects, the newest first; next is the cursor of the next page.
	Sessions(ctx context.Context, f fleet.SessionFilter, p fleet.Page) (list []fleet.Session, next string, err error)
	// Recording returns the recording of a session from an offset on, at most about a megabyte at a time.
	Recording(ctx context.Context, id command.ID, from int64) ([]byte, error)
}

// Sessions are what the routes about sessions need. All are required but for Idle.
type Sessions struct {
	Store SessionStore
	// Allowed returns why no program may be run in containers of a site; nil: they may.
	Allowed func(ctx context.Context, site protocol.SiteID) error
	// Carrier names this CO, and Carry adds a session to those that it carries until done is called.
	Carrier string
	Carry   func(ctx context.Context, id command.ID) (within context.Context, done func(fleet.SessionReason))
	// Input sends an encoded command.Segment to a site; it may get lost.
	Input func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error
	// Idle is how long nothing may be typed or shown. 0: 15 min.
	Idle time.Duration
}

// SessionList is a page of sessions.
type SessionList struct {
	Items []fleet.Session `json:"items"` // the newest first
	Next  string          `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

type sessionsInput struct {
	form.PageQuery
	Site string `query:"site" doc:"only of this site"`
	Open string `query:"open" enum:"true,false" doc:"only those that are open, or that have ended"`
}

// SessionPath names a session. It is exported because it is embedded, and huma reads exported fields only.
type SessionPath struct {
	ID string `path:"id" doc:"the session, by its id"`
}

func (p SessionPath) parse() (command.ID, error) {
	id, err := command.ParseID(p.ID)
	return id, problem.At("path.id", err)
}

func (r *routes) registerSessions(h huma.API) {
	const one = "/api/v1/sessions/{id}"
	huma.Get(h, "/api/v1/deployments/{site}/{name}/exec", r.exec, form.Describe("sessions", "Run a program in a container, and be at it: by WebSocket"), describeExec)
	huma.Get(h, "/api/v1/deployments/{site}/{name}/forward", r.forward, form.Describe("sessions", "Have connections to a port of a container: by WebSocket"), describeForward)
	huma.Get(h, "/api/v1/sessions", r.listSessions, form.Describe("sessions", "List sessions with programs in containers, the newest first"))
	huma.Get(h, one, r.getSession, form.Describe("sessions", "Show a session"))
	huma.Delete(h, one, r.stopSession, form.Describe("sessions", "End a session: its program is hung up"), func(op *huma.Operation) {
		op.DefaultStatus = http.StatusAccepted
		op.Errors = append(op.Errors, http.StatusConflict)
	})
	huma.Get(h, one+"/recording", r.recording, form.Describe("sessions", "Read what a session showed, as asciicast v2"), func(op *huma.Operation) {
		op.Description = "With follow what an open session shows comes as it does, until it ends. What was typed is not recorded; a terminal shows most of it."
		form.Raw(op, http.StatusOK, "The recording", asciicast)
	})
}

// asciicast is the type of recordings.
const asciicast = "application/x-asciicast"

func (r *routes) listSessions(ctx context.Context, in *sessionsInput) (*form.Reply[SessionList], error) {
	var f fleet.SessionFilter
	var err error
	if in.Site != "" {
		if f.Site, err = protocol.ParseSiteID(in.Site); err != nil {
			return nil, r.fail(ctx, problem.At("query.site", err))
		}
	}
	if in.Open != "" {
		f.Open = new(in.Open == "true")
	}
	if f.Within, err = within.Picked(ctx, f.Site); err != nil {
		return nil, r.fail(ctx, err)
	}
	list, next, err := r.o.Sessions.Store.Sessions(ctx, f, in.Page())
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[SessionList]{Body: SessionList{form.NotNil(list), next}}, nil
}

func (r *routes) session(ctx context.Context, in *SessionPath) (fleet.Session, error) {
	id, err := in.parse()
	if err != nil {
		return fleet.Session{}, err
	}
	return r.o.Sessions.Store.Session(ctx, id, access.SitesOf(ctx))
}

func (r *routes) getSession(ctx context.Context, in *SessionPath) (*form.Reply[fleet.Session], error) {
	s, err := r.session(ctx, in)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &form.Reply[fleet.Session]{Body: s}, nil
}

func (r *routes) stopSession(ctx context.Context, in *SessionPath) (*struct{}, error) {
	id, err := in.parse()
	if err == nil {
		who, _ := access.From(ctx)
		err = r.o.Sessions.Store.Stop(ctx, id, who.Name, access.SitesOf(ctx))
	}
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	audit.Note(ctx, fmt.Sprintf("session %s is to end", id))
	return nil, nil
}

type recordingInput struct {
	SessionPath
	Follow bool `query:"follow" doc:"go on with what the session shows until it ends"`
}

// recordingLook is how often is looked for more of a recording that is followed.
const recordingLook = 250 * time.Millisecond

func (r *routes) recording(ctx context.Context, in *recordingInput) (*huma.StreamResponse, error) {
	s, err := r.session(ctx, &in.SessionPath)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", asciicast)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Accel-Buffering", "no")
		if err := r.copyRecording(hc.Context(), w, s, in.Follow); err != nil && hc.Context().Err() == nil {
			r.log.InfoContext(hc.Context(), "recording not read to its end", "session_id", string(s.ID), "err", err)
			panic(http.ErrAbortHandler) // what was sent is not whole
		}
	}}, nil
}

// copyRecording writes a recording to a client, to the end of the session where it is followed.
func (r *routes) copyRecording(ctx context.Context, w http.ResponseWriter, s fleet.Session, follow bool) error {
	control := http.NewResponseController(w)
	for from := int64(0); ; {
		data, err := r.o.Sessions.Store.Recording(ctx, s.ID, from)
		if err != nil {
			return err
		}
		if len(data) > 0 {
			from += int64(len(data))
			if _, err := w.Write(data); err != nil {
				return err
			}
			continue
		}
		if !follow || s.EndedAt != nil {
			return nil
		}
		if err := control.Flush(); err != nil {
			return err
		}
		if _, err := retry.SleepOr(ctx, recordingLook, r.over()); err != nil {
			return err
		}
		select {
		case <-r.over():
			return io.ErrUnexpectedEOF
		default:
		}
		if s, err = r.o.Sessions.Store.Session(ctx, s.ID, siteset.Set{}); err != nil {
			return err
		}
	}
}
