// Package tokens has the routes of the API about the tokens of people and programs.
package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A Record makes, lists and ends tokens. Errors are of the protocol's kinds.
type Record interface {
	// Create records a token, and returns it with its text.
	Create(ctx context.Context, t access.Token) (made access.Token, text string, err error)
	// Tokens lists the tokens, the newest first; next is the cursor of the next page.
	Tokens(ctx context.Context, p fleet.Page) (list []access.Token, next string, err error)
	// Revoke ends a token.
	Revoke(ctx context.Context, id string) error
	// Roles are those of the configuration.
	Roles() access.Custom
}

// A Made is a token that was made. Its text is in no other answer.
type Made struct {
	access.Token
	Text string `json:"token" doc:"what goes into the header Authorization, after Bearer; it is kept nowhere"`
}

// Tokens are a page of tokens.
type Tokens struct {
	Items []access.Token `json:"items"` // the newest first
	Next  string         `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// A siteList is a list that is not null, as a program writes one that it has not set: that would be all sites.
type siteList []string

// UnmarshalJSON is described at siteList.
func (s *siteList) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return errors.New("sites has no value: name sites, or leave it out for all")
	}
	return json.Unmarshal(b, (*[]string)(s))
}

type createInput struct {
	Body struct {
		Name    string   `json:"name" doc:"whom it is for; each change that is made with it names it"`
		Role    string   `json:"role" doc:"read-only, operator, admin, or a role of the configuration"`
		Sites   siteList `json:"sites,omitempty" doc:"the sites for which the role holds: names, or how names begin with a * after it; absent: all"`
		Seconds int64    `json:"seconds,omitempty" doc:"how long it holds; default 30 days"`
	}
}

type idInput struct {
	ID string `path:"id" doc:"the token, by its id"`
}

// defaultLife is the life of a token whose maker names none.
const defaultLife = 30 * 24 * time.Hour

type routes struct {
	record Record
	signIn *access.SignIn
	log    *slog.Logger
}

// Register adds the routes to h; record is nil where no token is required, and signIn where there is no OpenID provider.
func Register(h huma.API, record Record, signIn *access.SignIn, log *slog.Logger) {
	r := &routes{record, signIn, log}
	errs := func(o *huma.Operation) {
		o.Errors = append(o.Errors, http.StatusConflict)
		o.Description = "Conflict: the CO requires no token, as access.required is not set in its configuration."
	}
	huma.Get(h, "/api/v1/sign-in", r.how, form.Describe("access", "Show how to sign in with an OpenID provider"), errs)
	huma.Get(h, "/api/v1/principal", r.self, form.Describe("access", "Show whose token the request has"), errs)
	huma.Get(h, "/api/v1/tokens", r.list, form.Describe("access", "List the tokens of people and programs"), errs)
	huma.Post(h, "/api/v1/tokens", r.create, form.Describe("access", "Make a token"), errs, func(o *huma.Operation) { o.DefaultStatus = http.StatusCreated })
	huma.Delete(h, "/api/v1/tokens/{id}", r.revoke, form.Describe("access", "Revoke a token"), errs)
}

var errOpen = protocol.Errorf(protocol.Conflict, "this CO requires no token: set access.required in its configuration")

func (r *routes) self(ctx context.Context, _ *struct{}) (*form.Reply[access.Principal], error) {
	p, ok := access.From(ctx)
	if !ok {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	return &form.Reply[access.Principal]{Body: p}, nil
}

// how needs no token: it tells a client without a token what the provider's own page shows to everyone.
func (r *routes) how(ctx context.Context, _ *struct{}) (*form.Reply[access.SignIn], error) {
	switch {
	case r.record == nil:
		return nil, problem.Answer(ctx, r.log, errOpen)
	case r.signIn == nil:
		return nil, problem.Answer(ctx, r.log, protocol.Errorf(protocol.NotFound, "this CO has no OpenID provider: log in with a token"))
	}
	return &form.Reply[access.SignIn]{Body: *r.signIn}, nil
}

func (r *routes) list(ctx context.Context, in *form.PageQuery) (*form.Reply[Tokens], error) {
	if r.record == nil {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	all, next, err := r.record.Tokens(ctx, in.Page())
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[Tokens]{Body: Tokens{form.NotNil(all), next}}, nil
}

func (r *routes) create(ctx context.Context, in *createInput) (*form.Reply[Made], error) {
	p, ok := access.From(ctx)
	if r.record == nil || !ok {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	life := defaultLife
	if in.Body.Seconds != 0 {
		life = time.Duration(min(max(in.Body.Seconds, -1), int64(access.MaxLife/time.Second)+1)) * time.Second
	}
	t, err := access.NewToken(access.Request{Name: in.Body.Name, Role: in.Body.Role, Custom: r.record.Roles(), Sites: in.Body.Sites, Life: life}, p.Name, time.Now())
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("body", err))
	}
	t, text, err := r.record.Create(ctx, t)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	audit.Note(ctx, t.String())
	r.log.InfoContext(ctx, "token made", "principal", p.Name, "token_id", t.ID, "name", t.Name, "role", string(t.Role), "sites", t.Sites, "until", t.Expires)
	return &form.Reply[Made]{Body: Made{t, text}}, nil
}

func (r *routes) revoke(ctx context.Context, in *idInput) (*struct{}, error) {
	p, ok := access.From(ctx)
	if r.record == nil || !ok {
		return nil, problem.Answer(ctx, r.log, errOpen)
	}
	if err := r.record.Revoke(ctx, in.ID); err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	r.log.InfoContext(ctx, "token revoked", "principal", p.Name, "token_id", in.ID)
	return nil, nil
}
