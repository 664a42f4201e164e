// Package command has what all commands share: how they call the CO's API, how they answer,
// and which of their errors are errors of the command line.
package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/output"
)

// An Env is the environment of a command. The flags that all commands have set it before a
// command runs; after that nothing changes it.
type Env struct {
	URL   string // of the CO's API
	Token string // that it is shown; empty: none
	// Renew returns the token that counts now, in place of Token. Nil: Token stays as it is.
	Renew func(ctx context.Context) (string, error)
	// CA is certificates (PEM) that the CO's own may come from, besides those that the system trusts. Empty: none.
	CA     string
	Format string // of answers: table, json or yaml
	// Timeout bounds how long the API may take to answer.
	Timeout time.Duration
	Out     io.Writer // for answers
	Err     io.Writer // for what goes beside them
}

// Client returns a client of the API.
func (e *Env) Client() *client.Client {
	h := &http.Client{CheckRedirect: stay}
	if e.CA != "" {
		h.Transport = e.transport()
	}
	return &client.Client{Base: strings.TrimSuffix(e.URL, "/"), HTTP: h, Token: e.Token, Renew: e.Renew, Timeout: e.Timeout}
}

// transport trusts what the system does, and CA.
func (e *Env) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: e.Roots(), MinVersion: tls.VersionTLS12}
	return t
}

// Roots are the certificates that the CO's own may come from; nil: those that the system trusts.
func (e *Env) Roots() *x509.CertPool {
	if e.CA == "" {
		return nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // the system has none
	}
	roots.AppendCertsFromPEM([]byte(e.CA))
	return roots
}

// maxCA bounds a file of certificates.
const maxCA = 1 << 20

// ReadCA reads CA from a file. An error is a UsageError.
func (e *Env) ReadCA(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return Usage(fmt.Errorf("--ca: %w", err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCA))
	if err != nil {
		return Usage(fmt.Errorf("--ca: %w", err))
	}
	if !x509.NewCertPool().AppendCertsFromPEM(b) {
		return Usage(fmt.Errorf("--ca (or COLONY_CA) %s: want a file with certificates in PEM", path))
	}
	e.CA = string(b)
	return nil
}

// stay keeps a client from following a redirection: the token is for the CO of its address alone.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Call sends a request to the API and decodes the answer into out, which may be nil. Errors
// are those of Call of the client.
func (e *Env) Call(ctx context.Context, method, path string, body, out any) error {
	return e.Client().Call(ctx, method, path, body, out)
}

func (e *Env) view() output.View { return output.View{Out: e.Out, Format: e.Format} }

// Machine writes value as JSON or YAML and reports true, where the user wants that.
func (e *Env) Machine(value any) (bool, error) { return e.view().Machine(value) }

// Table writes rows below the words of a header.
func (e *Env) Table(header string, rows [][]string) error { return e.view().Table(header, rows) }

// Fields writes pairs of names and values; those without a value are left out.
func (e *Env) Fields(pairs ...string) error { return e.view().Fields(pairs...) }

// Printf writes a line for people.
func (e *Env) Printf(format string, args ...any) { fmt.Fprintf(e.Out, format+"\n", args...) }

// A UsageError is a command line, or an input that it names, that cannot be understood. It
// hides its cause: an interruption, for one, does not show through it.
type UsageError struct{ error }

// Usage marks an error as one of the command line or its input.
func Usage(err error) error { return UsageError{err} }

// A Failure is what was asked for and not done, though nothing is wrong with the command line or the API.
type Failure struct{ error }

// Fail marks an error as a Failure.
func Fail(err error) error { return Failure{err} }

// An ExitError ends the program with a code of its own.
type ExitError struct {
	Code int
	Err  error // nil: nothing is to be said
}

// Error says why.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Exit returns an ExitError.
func Exit(code int, err error) error { return &ExitError{code, err} }

// Pair splits "left/right", as SITE/NODE. The error is a UsageError that says the form.
func Pair(s, form string) (left, right string, err error) {
	left, right, ok := strings.Cut(s, "/")
	if !ok || left == "" || right == "" || strings.Contains(right, "/") {
		return "", "", Usage(fmt.Errorf("%q: want %s", s, form))
	}
	return left, right, nil
}

// PairPath returns the path in the API of what a user names as "left/right" in the collection below a root, as /nodes.
func PairPath(root, s, form string) (string, error) {
	left, right, err := Pair(s, form)
	return root + "/" + url.PathEscape(left) + "/" + url.PathEscape(right), err
}

// UntilInterrupted makes the interruption of a command that has no other end its
// success.
func UntilInterrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
