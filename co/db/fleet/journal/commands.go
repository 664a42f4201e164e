package journaldb

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
)

// commands records what sites report of commands.
func (w writer) commands() {
	var received []db.ReceivedCommand
	var results []fleet.CommandResult
	for _, c := range w.list {
		for _, t := range c.changes.Received {
			received = append(received, db.ReceivedCommand{Site: c.site, CommandReceived: t})
		}
		for _, r := range c.changes.Results {
			r.Site = c.site
			results = append(results, r)
		}
	}
	db.QueueCommandsReceived(w.b, received)
	db.QueueCommandResults(w.b, results)
}

// locals writes into the audit what was done at the machines of LOs. The actor's name includes the site, as the site alone vouches for
// it.
func (w writer) locals() {
	for _, c := range w.list {
		for _, l := range c.changes.Locals {
			detail := l.Reason
			if l.SiteTime != nil {
				detail = fmt.Sprintf("at %s by the clock of the site: %s", l.SiteTime.Format(time.RFC3339), l.Reason)
			}
			db.QueueAudit(w.b, audit.NewRow(time.Now(), audit.Row{
				Kind: audit.Local, Principal: fmt.Sprintf("%s at site %s", l.Actor, c.site), Operation: "colony lo node " + l.Did,
				Target: fmt.Sprintf("/api/v1/nodes/%s/%s", c.site, l.Node), Detail: detail,
			}))
		}
	}
}
