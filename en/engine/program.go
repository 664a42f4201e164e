package engine

import (
	"context"
	"io"
)

// Programs runs programs in containers for a person who uses them. All methods may be called concurrently.
type Programs interface {
	// Open starts a program in a running container. The program ends with ctx: Open sends SIGHUP to it and to all its children, and kills those that go
	// on. A container that does not run, or does not exist, is an error of kind protocol.NotFound; a program that cannot be started is an error with the
	// code protocol.StartFailed. The first Sweep of an agent ends the programs that an earlier agent left.
	Open(ctx context.Context, id ID, p Program) (Process, error)
}

// A Program is what to run in a container, as its user, in its directory and with its environment.
type Program struct {
	// Name tells it from others of the container.
	Name string
	// Arguments are the program and its arguments.
	Arguments []string
	// Terminal gives it a terminal of Columns and Rows, whose output is Output.
	Terminal      bool
	Columns, Rows uint16
	// Input is its standard input. Reads may go on until Wait has returned. Nil: it is at its end.
	Input io.Reader
	// Output and Errors get what it writes. A writer that waits makes the program wait.
	Output, Errors io.Writer
}

// A Process is a program that runs.
type Process interface {
	// Resize sets the size of its terminal.
	Resize(ctx context.Context, columns, rows uint16) error
	// Signal sends it a signal, such as TERM. An unknown one is an error of kind protocol.Invalid.
	Signal(ctx context.Context, name string) error
	// Wait returns its exit code, 128 and the number of the signal that ended it, once all that it has written is in Output
	// and Errors, or the reason for which ctx of Open ended. It is called once.
	Wait() (code int32, err error)
}
