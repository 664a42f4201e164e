package command

import (
	"context"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/subject"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// About returns the subject of a command, and the record of its deployment. The error is a *Failure, which says what the node has.
func About(c *wire.Command, records []plan.Record) (s wire.Subject, rec plan.Record, err error) {
	if err := protocol.Unmarshal(c.Args, &s); err != nil {
		return s, rec, Failf(wire.BadArguments, "%v", err)
	}
	if rec, err = subject.Record(records, s); err != nil {
		return s, rec, Failf(wire.NoSuchSubject, "%v", err)
	}
	return s, rec, nil
}

// One returns the container that a command names; the error says why that is not one. list asks the engine.
func One(ctx context.Context, records []plan.Record, list func(ctx context.Context) ([]engine.Status, error), s wire.Subject) (subject.Container, error) {
	rec, err := subject.Record(records, s)
	if err != nil {
		return subject.Container{}, Failf(wire.NoSuchSubject, "%v", err)
	}
	all, err := list(ctx)
	if err != nil {
		return subject.Container{}, err
	}
	found, err := subject.Find(rec, all, s)
	if err != nil {
		return subject.Container{}, Failf(wire.NoSuchSubject, "%v", err)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	names := make([]string, len(found))
	for i := range found {
		names[i] = found[i].Name()
	}
	return subject.Container{}, Failf(wire.BadArguments, "deployment %s has the containers %s: name one", s.Deployment, strings.Join(names, ", "))
}
