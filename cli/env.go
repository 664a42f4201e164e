package cli

import (
	"context"
	"fmt"
)

// env is what the packages of commands below this one share with it.
type env struct{ *app }

// Call sends a request to the API and decodes the answer into out, which may be nil.
func (e env) Call(ctx context.Context, method, path string, body, out any) error {
	_, err := e.client().call(ctx, method, path, body, out)
	return err
}

// Machine writes value as JSON or YAML and reports true, where the user wants that.
func (e env) Machine(value any) (bool, error) { return e.view().machine(value) }

// Table writes rows below the words of a header.
func (e env) Table(header string, rows [][]string) error { return e.view().table(header, rows) }

// Fields writes pairs of names and values; those without a value are left out.
func (e env) Fields(pairs ...string) error { return e.view().fields(pairs...) }

// Printf writes a line for people.
func (e env) Printf(format string, args ...any) { fmt.Fprintf(e.out, format+"\n", args...) }

// Size words a number of bytes; "" for none.
func (e env) Size(bytes uint64) string { return size(bytes) }

// IsNotFound reports whether the API answered that there is no such thing.
func (e env) IsNotFound(err error) bool { return isNotFound(err) }

// Usage marks an error as one of the command line or its input.
func (e env) Usage(err error) error { return usageError{err} }
