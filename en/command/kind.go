package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	wire "github.com/colonyfleet/colony/protocol/command"
)

// A Kind is how a node executes the commands of one kind. All that the node knows are in the list that the agent is given: one more is a
// package, and an entry there.
type Kind struct {
	Kind wire.Kind
	// Run executes a command, whose arguments were checked, and returns its output for people. An error says that it did not do what was
	// asked; its code is that of a *Failure, or wire.ExecutionFailed. It returns soon after ctx has ended.
	Run func(ctx context.Context, r Request) (output string, err error)
}

// Without returns the kinds with those in refused changed: the node refuses them for every caller.
func Without(refused []wire.Kind, all []Kind) []Kind {
	for i := range all {
		kind := all[i].Kind
		if !slices.Contains(refused, kind) {
			continue
		}
		all[i].Run = func(context.Context, Request) (string, error) {
			return "", Failf(wire.Forbidden, "the configuration of the node refuses commands of kind %s (refusedCommands)", kind)
		}
	}
	return all
}

// A Request is what to execute.
type Request struct {
	Command *wire.Command
	// Live sends what the command gives while it is executed. Nil for kinds that send nothing live.
	Live Stream
}

// A Stream is what a live command sends and gets, see Live.
type Stream interface {
	// Send adds an item, encoded. It waits for credit. An error ends the execution.
	Send(item []byte) error
	// Flush sends what was added, without waiting for more.
	Flush() error
	// Input returns the next segment that was sent to the command. It waits for one, until ctx ends.
	Input(ctx context.Context) (wire.Segment, error)
}

// A Failure says why a command did not do what was asked.
type Failure struct {
	Code    wire.Code
	Message string
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Failf returns a Failure.
func Failf(code wire.Code, format string, args ...any) error {
	return &Failure{code, fmt.Sprintf(format, args...)}
}

// errStopping ends executions when the agent stops.
var errStopping = Failf(wire.Interrupted, "the agent was stopped while it executed it")

// outcome fills in how an execution ended.
func outcome(ctx context.Context, r *wire.Result, limit time.Duration, output string, err error) {
	r.Output, r.Cut = clip(output, wire.MaxOutput)
	if err == nil {
		r.State = wire.Done
		return
	}
	r.State, r.Code = wire.Failed, wire.ExecutionFailed
	if cause := context.Cause(ctx); cause != nil {
		if _, ok := errors.AsType[*Failure](cause); ok {
			err = cause
		} else if errors.Is(cause, context.DeadlineExceeded) {
			err = Failf(wire.TimedOut, "it took longer than %s", limit)
		}
	}
	if f, ok := errors.AsType[*Failure](err); ok {
		r.Code = f.Code
	}
	r.Message, _ = clip(err.Error(), wire.MaxMessage)
}

// clip cuts a text to so many bytes, within no character, and makes it valid UTF-8.
func clip(s string, most int) (out string, cut bool) {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s, false
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most], true
}
