// Package audit records which principal did what by the CO's API: its rows, the chain of hashes
// over them, and the signed checkpoints of that chain. Rows are written by the caller.
package audit

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/trailer"
)

// A Kind is what a row is about.
type Kind string

// The kinds of rows.
const (
	// Intent is an operation that is about to be carried out.
	Intent Kind = "intent"
	// Outcome is what became of an intent.
	Outcome Kind = "outcome"
	// Settled stands for an outcome that was not written in time. An outcome that comes later counts.
	Settled Kind = "settled"
	// Refused is an operation that was not carried out, as its caller may not do it.
	Refused Kind = "refused"
	// Local is what was done on the CO's own machine, or on that of a site's LO, without its API.
	Local Kind = "local"
	// Pushed is a commit that was pushed to the deployments repo, without the API.
	Pushed Kind = "pushed"
)

// A Row is what the record keeps. It never changes.
type Row struct {
	ID   string    `json:"id"`
	At   time.Time `json:"at"` // by the CO's clock, in UTC, to the microsecond
	Kind Kind      `json:"kind"`
	// Of is the intent that an outcome is of.
	Of string `json:"of,omitempty"`
	// Principal, Role and Token are of the caller; empty where no token is required.
	Principal string `json:"principal,omitempty"`
	Role      string `json:"role,omitempty"`
	Token     string `json:"token,omitempty"`
	// Issuer and Subject are of a person for whom an OpenID provider vouches; empty for others.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Remote is the address that the request came from.
	Remote string `json:"remote,omitempty"`
	// Operation is the method and the pattern of the route, Target the path that was asked for.
	Operation string `json:"operation,omitempty"`
	Target    string `json:"target,omitempty"`
	// Status is that of the answer (RFC 9110, section 15); 0 in an intent, and where there was no answer.
	Status int `json:"status,omitempty"`
	// Commits are those that the operation made in the deployments repo.
	Commits []string `json:"commits,omitempty"`
	// Detail says more: why something failed, or what was made.
	Detail string `json:"detail,omitempty"`
}

const (
	// mostText bounds each text of a row, in bytes.
	mostText = 1024
	// mostNotes bounds what an operation says of itself.
	mostNotes = 16
)

// NewRow returns a row with an id and a time, whose texts are bounded and fit into a database.
func NewRow(now time.Time, r Row) Row {
	r.ID, r.At = rand.Text(), now.UTC().Truncate(time.Microsecond)
	for _, text := range []*string{&r.Principal, &r.Role, &r.Token, &r.Issuer, &r.Subject, &r.Remote, &r.Operation, &r.Target, &r.Detail} {
		*text = bounded(*text)
	}
	return r
}

func bounded(text string) string {
	if len(text) > mostText {
		text = text[:mostText] + " ..."
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}

// An Operation is one that is carried out, as its request's context carries it. Its methods may be called
// concurrently.
type Operation struct {
	// Intent is the id of the row that was written before.
	Intent string

	mu      sync.Mutex // guards what follows
	commits []string
	notes   []string
}

type key struct{}

// With returns a context of an operation.
func With(ctx context.Context, o *Operation) context.Context { return context.WithValue(ctx, key{}, o) }

func from(ctx context.Context) *Operation {
	o, _ := ctx.Value(key{}).(*Operation) // absent means nil
	return o
}

// Committed adds a commit to the outcome of the operation that ctx is of, if it is of one.
func Committed(ctx context.Context, commit string) {
	if o := from(ctx); o != nil && commit != "" {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.commits) < mostNotes {
			o.commits = append(o.commits, commit)
		}
	}
}

// Note adds to the outcome of the operation that ctx is of, if it is of one, what was made or removed. No secret
// belongs there.
func Note(ctx context.Context, text string) {
	if o := from(ctx); o != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.notes) < mostNotes {
			o.notes = append(o.notes, text)
		}
	}
}

// Outcome is the row of what became of o, with the status of the answer and what it said.
func (o *Operation) Outcome(now time.Time, status int, said string) Row {
	o.mu.Lock()
	defer o.mu.Unlock()
	notes := o.notes
	if said != "" {
		notes = append(notes[:len(notes):len(notes)], said)
	}
	return NewRow(now, Row{Kind: Outcome, Of: o.Intent, Status: status, Commits: o.commits, Detail: strings.Join(notes, "; ")})
}

// Trailer is the key under which a commit names the intent that it is of.
const Trailer = "Colony-Audit"

// Stamp adds to the message of a commit the intent that it is of, as a trailer.
func Stamp(ctx context.Context, message string) string {
	o := from(ctx)
	if o == nil {
		return message
	}
	return trailer.Add(message, Trailer, o.Intent)
}

// An Entry is an operation with what became of it, as people read it.
type Entry struct {
	ID        string     `json:"id" doc:"the id of its row; commits name it as Colony-Audit"`
	At        time.Time  `json:"at" doc:"when it was asked for, by the CO's clock"`
	Kind      Kind       `json:"kind" enum:"intent,refused,local,pushed" doc:"intent: it was carried out; refused: the caller may not do it; local: it was done on the CO's own machine, or on that of a site's LO, which reports it; pushed: a commit that was pushed to the deployments repo, without the API"`
	Principal string     `json:"principal,omitempty" doc:"whose token was shown; absent: none"`
	Role      string     `json:"role,omitempty" doc:"of the principal at that time"`
	Token     string     `json:"token,omitempty" doc:"id of the token"`
	Issuer    string     `json:"issuer,omitempty" doc:"the OpenID provider that vouched for the principal; absent: this CO did"`
	Subject   string     `json:"subject,omitempty" doc:"the principal's identifier at the provider"`
	Remote    string     `json:"remote,omitempty" doc:"the address that the request came from"`
	Operation string     `json:"operation,omitempty" doc:"method and route"`
	Target    string     `json:"target,omitempty" doc:"path that was asked for"`
	Status    int        `json:"status,omitempty" doc:"of the answer; absent: there was none, or not yet"`
	Commits   []string   `json:"commits,omitempty" doc:"made in the deployments repo"`
	Detail    string     `json:"detail,omitempty" doc:"why it failed, or what it made"`
	DoneAt    *time.Time `json:"doneAt,omitempty" doc:"when it was answered; absent: not yet, or not known"`
}

// A Filter picks entries; its zero value all.
type Filter struct {
	Principal string // name of the caller; empty: all
	Target    string // the beginning of the path that was asked for
	Kind      Kind
	Since     time.Time // inclusive
	Until     time.Time // exclusive; zero: no end
}
