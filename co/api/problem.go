package api

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// statusOf maps error kinds to HTTP status codes.
var statusOf = map[protocol.Kind]int{
	protocol.Invalid:     http.StatusUnprocessableEntity,
	protocol.NotFound:    http.StatusNotFound,
	protocol.Conflict:    http.StatusConflict,
	protocol.Denied:      http.StatusForbidden,
	protocol.Unavailable: http.StatusServiceUnavailable,
	protocol.Internal:    http.StatusInternalServerError,
}

// statusClientClosed is the answer that nobody reads any more.
const statusClientClosed = 499

// invalidInput is the detail of an answer whose errors say where the input is wrong.
const invalidInput = "the input is not valid"

// A fault is an error of one part of the request.
type fault struct {
	location string // such as body.site
	err      error
}

// Error returns what is wrong there.
func (f *fault) Error() string { return f.err.Error() }

// Unwrap returns the cause.
func (f *fault) Unwrap() error { return f.err }

// at says which part of the request err is about. A nil err stays nil.
func at(location string, err error) error {
	if err == nil {
		return nil
	}
	return &fault{location, err}
}

// A statusError has a status code that no kind stands for.
type statusError struct {
	status  int
	message string
}

// Error returns the message.
func (e *statusError) Error() string { return e.message }

// fail turns an error into an RFC 9457 answer. The cause of what is internal, or
// of a part that is away, is logged and not shown.
func (a *API) fail(ctx context.Context, err error) huma.StatusError {
	if s, ok := errors.AsType[*statusError](err); ok {
		return huma.NewError(s.status, s.message)
	}
	if r, ok := errors.AsType[*rulesError](err); ok {
		return huma.NewError(http.StatusUnprocessableEntity, invalidInput, r.details...)
	}
	if errors.Is(err, context.Canceled) {
		return huma.NewError(statusClientClosed, "the client went away")
	}
	kind := protocol.KindOf(err)
	problems, broken := errors.AsType[v1rc3.Problems](err)
	_, classified := errors.AsType[*protocol.Error](err)
	if broken && (kind == protocol.Invalid || !classified) {
		details := make([]error, len(problems))
		for i, p := range problems {
			details[i] = &huma.ErrorDetail{Message: p.Message, Location: bodyPath(p.Path)}
		}
		return huma.NewError(http.StatusUnprocessableEntity, invalidInput, details...)
	}
	switch {
	case kind == protocol.Internal:
		a.log.ErrorContext(ctx, "request failed", "err", err)
		return huma.NewError(http.StatusInternalServerError, "an internal fault; the log of the CO says more")
	case kind == protocol.Unavailable:
		a.log.WarnContext(ctx, "request failed", "err", err)
	}
	if f, ok := errors.AsType[*fault](err); ok && kind == protocol.Invalid {
		return huma.NewError(statusOf[kind], invalidInput, &huma.ErrorDetail{Message: public(f), Location: f.location})
	}
	return huma.NewError(statusOf[kind], public(err))
}

// bodyPath returns where in the request's body the value is that a path of the
// Margo rules names.
func bodyPath(path string) string {
	if name, ok := strings.CutPrefix(path, "values."); ok {
		return "body.parameters." + name
	}
	if name, ok := strings.CutPrefix(path, "spec.parameters."); ok { // of the file that would be written
		return "body.parameters." + strings.TrimSuffix(name, ".value")
	}
	return "body." + path
}

// public returns the text of an error without what the database's driver or the
// network says: it holds addresses, users and statements.
func public(err error) string {
	_, fromNet := errors.AsType[net.Error](err)
	var fromSQL interface{ SQLState() string }
	if !fromNet && !errors.As(err, &fromSQL) {
		return err.Error()
	}
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return "a part of the CO is away; its log says more"
	}
	text := e.Message
	if e.Err != nil {
		text = strings.TrimSuffix(strings.TrimSuffix(text, e.Err.Error()), ": ")
	}
	if e.Kind == protocol.Unavailable {
		return text + ": a part of the CO is away, try again; its log says more"
	}
	return text + ": the database does not take this"
}

// refuseText returns what is wrong with the path and query of a request: text that
// no identifier has and that no database stores.
func refuseText(r *http.Request) string {
	query := r.URL.Query()
	if !storable(r.URL.Path) {
		return "the path holds NUL or bytes that are not UTF-8"
	}
	for name, values := range query {
		for _, v := range append(values, name) {
			if !storable(v) {
				return "the query holds NUL or bytes that are not UTF-8"
			}
		}
	}
	return ""
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// writeProblem writes an RFC 9457 answer.
func writeProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(&huma.ErrorModel{Title: http.StatusText(status), Status: status, Detail: detail})
}

// A plainWriter turns the plain-text answers of a ServeMux, for a route that it
// does not have, into RFC 9457 answers.
type plainWriter struct {
	http.ResponseWriter
	path string
	done bool
}

// WriteHeader writes the whole answer where the status is an error.
func (p *plainWriter) WriteHeader(status int) {
	switch {
	case status < 400:
		p.ResponseWriter.WriteHeader(status)
	case status == http.StatusMethodNotAllowed:
		p.done = true
		writeProblem(p.ResponseWriter, status, p.path+" takes only "+p.Header().Get("Allow"))
	default:
		p.done = true
		writeProblem(p.ResponseWriter, status, "the API has no "+p.path+": see /openapi.json")
	}
}

// Write drops the text that WriteHeader has replaced.
func (p *plainWriter) Write(b []byte) (int, error) {
	if p.done {
		return len(b), nil
	}
	return p.ResponseWriter.Write(b)
}
