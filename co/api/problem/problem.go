// Package problem turns what is wrong with a request into an answer: an RFC 9457 document with
// the status code that its cause has. What a database or the network says is logged, not shown.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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

// statusClientClosed is the status for a client that has left: it does not read the answer.
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

// At says which part of the request err is about, such as body.site. A nil err stays nil.
func At(location string, err error) error {
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

// WithStatus returns an error whose answer has a status code that no kind stands for.
func WithStatus(status int, message string) error { return &statusError{status, message} }

// Error returns the message.
func (e *statusError) Error() string { return e.message }

// invalidDetails are several faults of the input, each with where it is in the request.
type invalidDetails []error

// Error returns the faults, one to a line.
func (d invalidDetails) Error() string { return errors.Join(d...).Error() }

// OfSiteFile says where in the request's body the faults of a site's file are. document reports
// that the body has the file as it is, or that the faulty part is in the stored file already;
// otherwise the body has rules or maintenance windows. Other errors stay as they are.
func OfSiteFile(err error, document bool) error {
	problems, ok := errors.AsType[v1rc3.Problems](err)
	if !ok {
		return err
	}
	out := make(invalidDetails, len(problems))
	for i, p := range problems {
		if document {
			out[i] = &huma.ErrorDetail{Location: "body.document", Message: p.String()}
			continue
		}
		path := strings.TrimPrefix(strings.TrimPrefix(p.Path, "spec.data."), "spec.maintenance.")
		out[i] = &huma.ErrorDetail{Location: "body." + path, Message: p.Message}
	}
	return out
}

// Answer turns an error into an RFC 9457 answer. The cause of what is internal, or
// of a part that is away, is logged and not shown.
func Answer(ctx context.Context, log *slog.Logger, err error) huma.StatusError {
	if s, ok := errors.AsType[*statusError](err); ok {
		return huma.NewError(s.status, s.message)
	}
	if d, ok := errors.AsType[invalidDetails](err); ok {
		return huma.NewError(http.StatusUnprocessableEntity, invalidInput, d...)
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
		log.ErrorContext(ctx, "request failed", "err", err)
		return huma.NewError(http.StatusInternalServerError, "an internal fault; the log of the CO says more")
	case kind == protocol.Unavailable:
		log.WarnContext(ctx, "request failed", "err", err)
	}
	if f, ok := errors.AsType[*fault](err); ok && kind == protocol.Invalid {
		return huma.NewError(statusOf[kind], invalidInput, &huma.ErrorDetail{Message: Public(f), Location: f.location})
	}
	return huma.NewError(statusOf[kind], Public(err))
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

// Public returns the text of an error without what the database's driver or the
// network says: it holds addresses, users and statements.
func Public(err error) string {
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

// RefuseText returns what is wrong with the path and query of a request: text that
// no identifier has and that no database stores. "": nothing is wrong.
func RefuseText(r *http.Request) string {
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

// Write writes an RFC 9457 answer.
func Write(w http.ResponseWriter, status int, detail string) {
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

// ForNoRoute returns a writer that turns the plain-text answer of a ServeMux, for a path
// that it does not have, into an RFC 9457 answer.
func ForNoRoute(w http.ResponseWriter, path string) http.ResponseWriter {
	return &plainWriter{ResponseWriter: w, path: path}
}

// WriteHeader writes the whole answer where the status is an error.
func (p *plainWriter) WriteHeader(status int) {
	switch {
	case status < 400:
		p.ResponseWriter.WriteHeader(status)
	case status == http.StatusMethodNotAllowed:
		p.done = true
		Write(p.ResponseWriter, status, p.path+" takes only "+p.Header().Get("Allow"))
	default:
		p.done = true
		Write(p.ResponseWriter, status, "the API has no "+p.path+": see /openapi.json")
	}
}

// Write drops the text that WriteHeader has replaced.
func (p *plainWriter) Write(b []byte) (int, error) {
	if p.done {
		return len(b), nil
	}
	return p.ResponseWriter.Write(b)
}
