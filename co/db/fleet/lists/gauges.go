package listdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// Gauges returns how each site is, by its counters, in the order of their ids.
func (s *Lists) Gauges(ctx context.Context) ([]fleet.SiteGauges, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (g fleet.SiteGauges, err error) {
		var states projection.Count
		err = row.Scan(&g.Site, &g.Online, &g.Nodes, &g.NodesOnline, &states, &g.NotAdopted, &g.Problem, &g.EventsLost, &g.Backlog, &g.BacklogSeconds, &g.CommandsOpen)
		g.Deployments = map[lifecycle.State]int{}
		for _, state := range lifecycle.States {
			if n := states.Of(state); n > 0 && state != lifecycle.Deleted {
				g.Deployments[state] = n
			}
		}
		return g, err
	}, `select s.id, s.online, s.nodes, case when s.online then s.nodes_online else 0 end, s.states, s.adopted < s.generation, s.problem <> '', s.events_lost,
			greatest(coalesce(st.last, 0) - s.journal_seq, 0), case when coalesce(st.last, 0) > s.journal_seq then st.oldest_ms / 1000.0 + extract(epoch from now() - st.reported_at) else 0 end, coalesce(c.open, 0)
		from sites s left join (select site, count(*) as open from command_sites where not given_up and state in ('waiting', 'running') group by site) c on c.site = s.id left join streams st on st.site = s.id and st.stream = '' and st.reported_epoch = s.journal_epoch order by s.id`)
	return list, pgdb.Classify("count the fleet by site", err)
}
