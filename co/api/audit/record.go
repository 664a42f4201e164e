// Package auditapi records the operations of the API in the CO's audit, and has the routes that show it.
package auditapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/internal/allowance"
)

// RecorderOptions are what a recorder needs. All are required but for Must.
type RecorderOptions struct {
	// Add writes a row. Errors are of the protocol's kinds.
	Add func(ctx context.Context, r audit.Row) error
	// Recorded says whether a request is to be recorded.
	Recorded func(r *http.Request) bool
	// Operation names what a request asks for, by its method and route.
	Operation func(r *http.Request) string
	// Must says that an operation that cannot be recorded is not carried out.
	Must   bool
	Logger *slog.Logger
}

const (
	// writeWait bounds the writing of a row.
	writeWait = 3 * time.Second
	// refusalEvery and refusalBurst bound the rows about refused requests of one principal, strangersEvery and
	// strangersBurst those of all clients without a valid token: any client can cause them, and rows are never removed.
	refusalEvery, refusalBurst     = 10 * time.Second, 50
	strangersEvery, strangersBurst = 10 * time.Minute, 20
	// mostPrincipals is how many have an allowance of their own at a time.
	mostPrincipals = 1000
	// mostSaid is how much of an answer is looked at for its reason, in bytes.
	mostSaid = 4096
)

// A Recorder records the operations that it lets pass. Its methods may be called concurrently.
type Recorder struct {
	o         RecorderOptions
	strangers *allowance.Allowance

	mu       sync.Mutex                      // protects what follows
	refusals map[string]*allowance.Allowance // by principal
}

// NewRecorder returns a recorder.
func NewRecorder(o RecorderOptions) *Recorder {
	return &Recorder{o: o, strangers: allowance.New(strangersEvery, strangersBurst), refusals: map[string]*allowance.Allowance{}}
}

// allowed is how many refusals of a principal have rows, of the name "" those of strangers.
func (rec *Recorder) allowed(principal string) *allowance.Allowance {
	if principal == "" {
		return rec.strangers
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	a, ok := rec.refusals[principal]
	if !ok {
		if len(rec.refusals) >= mostPrincipals {
			clear(rec.refusals)
		}
		a = allowance.New(refusalEvery, refusalBurst)
		rec.refusals[principal] = a
	}
	return a
}

// row is one of a request.
func (rec *Recorder) row(r *http.Request, p access.Principal, row audit.Row) audit.Row {
	row.Principal, row.Role, row.Token = p.Name, string(p.Role), p.Token
	row.Issuer, row.Subject = p.Issuer, p.Subject
	row.Remote, row.Target = r.RemoteAddr, target(r.URL)
	row.Operation = rec.o.Operation(r)
	return audit.NewRow(time.Now(), row)
}

// target is the requested path and query. One path has one text, however its bytes were encoded (RFC 3986,
// section 6.2.2.2), so that a search finds it.
func target(u *url.URL) string {
	if u.RawPath == "" {
		return u.RequestURI()
	}
	parts := strings.Split(u.RawPath, "/")
	for i, part := range parts {
		if text, err := url.PathUnescape(part); err == nil {
			plain := url.URL{Path: text}
			parts[i] = strings.ReplaceAll(plain.EscapedPath(), "/", "%2F")
		}
	}
	same := url.URL{Path: u.Path, RawPath: strings.Join(parts, "/"), RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}
	return same.RequestURI()
}

func (rec *Recorder) add(ctx context.Context, row audit.Row) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeWait)
	defer cancel()
	err := rec.o.Add(ctx, row)
	if err != nil {
		rec.o.Logger.WarnContext(ctx, "the audit is not written", "err", err, "kind", string(row.Kind), "of", row.Of, "principal", row.Principal, "operation", row.Operation, "target", row.Target, "status", row.Status)
	}
	return err
}

// Handler returns a handler that records an operation before next carries it out, and what became of it afterwards.
func (rec *Recorder) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rec.o.Recorded(r) {
			next.ServeHTTP(w, r)
			return
		}
		p, _ := access.From(r.Context()) // empty where no token is required
		intent := rec.row(r, p, audit.Row{Kind: audit.Intent})
		if rec.add(r.Context(), intent) != nil && rec.o.Must {
			problem.Write(w, http.StatusServiceUnavailable, "the audit cannot be written: nothing was done; try again")
			return
		}
		o := &audit.Operation{Intent: intent.ID}
		a := &answer{ResponseWriter: w}
		// Also where next panics, as one does that cuts its connection.
		defer func() { _ = rec.add(r.Context(), o.Outcome(time.Now(), a.status, a.reason())) }() // it is logged, and the answer is on its way
		next.ServeHTTP(a, r.WithContext(audit.With(r.Context(), o)))
	})
}

// Refused records a refused request; p is empty where the principal is unknown. An endless series of refusals has
// fewer rows than refusals: the next row counts the others.
func (rec *Recorder) Refused(r *http.Request, p access.Principal, status int, why string) {
	who := p.Name
	if p.Subject != "" { // people choose their names
		who = p.Issuer + "\n" + p.Subject
	}
	ok, leftOut := rec.allowed(who).Allow()
	if !ok {
		return
	}
	if leftOut > 0 {
		why += fmt.Sprintf(" (and %d refused requests before this one have no row)", leftOut)
	}
	_ = rec.add(r.Context(), rec.row(r, p, audit.Row{Kind: audit.Refused, Status: status, Detail: why})) // it is logged
}

// answer notes the status of an answer, and the beginning of one that says why something failed.
type answer struct {
	http.ResponseWriter
	status int
	said   bytes.Buffer
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Hijack notes that the protocol is another one from now on (RFC 9110, section 15.2.2).
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}

// WriteHeader notes the status.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write notes why something failed.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	if room := mostSaid - a.said.Len(); a.status >= http.StatusBadRequest && room > 0 {
		a.said.Write(b[:min(room, len(b))])
	}
	return a.ResponseWriter.Write(b)
}

// reason is what a problem (RFC 9457) or an error of a registry (OCI Distribution, "Error Codes") says.
func (a *answer) reason() string {
	var said struct {
		Detail string `json:"detail"`
		Errors []struct {
			Message  string `json:"message"`
			Location string `json:"location"`
		} `json:"errors"`
	}
	if a.said.Len() == 0 || json.Unmarshal(a.said.Bytes(), &said) != nil {
		return ""
	}
	out := said.Detail
	if len(said.Errors) > 0 {
		first := said.Errors[0]
		for _, part := range []string{first.Location, first.Message} {
			if part == "" {
				continue
			}
			if out != "" {
				out += ": "
			}
			out += part
		}
	}
	return out
}
