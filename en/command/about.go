package command

import (
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
