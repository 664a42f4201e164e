package journaldb

import (
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
)

// commands records what sites report of commands.
func (w writer) commands() {
	var taken []db.TakenCommand
	var results []fleet.CommandResult
	for _, c := range w.list {
		for _, t := range c.changes.Taken {
			taken = append(taken, db.TakenCommand{Site: c.site, CommandTaken: t})
		}
		for _, r := range c.changes.Results {
			r.Site = c.site
			results = append(results, r)
		}
	}
	db.QueueCommandsTaken(w.b, taken)
	db.QueueCommandResults(w.b, results)
}
