// Package grafana makes the dashboards of this directory, for Grafana 9 and later. Their test writes them.
package grafana

import (
	"encoding/json"
	"fmt"
)

// A Panel shows the result of expressions of PromQL. {{label}} in a Legend is the value of a label.
type Panel struct {
	Title, Description string
	Type               string // timeseries, stat or table
	Unit               string // as Grafana names it
	Queries            []Query
	Width, Height      int // of 24 columns, in rows
}

// A Query is an expression, and what its lines are called.
type Query struct{ Expr, Legend string }

// A Dashboard is a page of panels.
type Dashboard struct {
	UID, Title, Description string
	// Site says that one site is chosen, as $site.
	Site   bool
	Panels []Panel
}

// Dashboards are all of them, by the names of their files.
func Dashboards() map[string]Dashboard {
	return map[string]Dashboard{"fleet.json": fleet, "site.json": site}
}

var fleet = Dashboard{
	UID: "colony-fleet", Title: "Colony: fleet", Description: "How all sites are, as each CO says it at /metrics.",
	Panels: []Panel{
		{Title: "Sites offline", Description: "They go on with what they have; what is shown of them is as of their last report.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_sites{online="false"})`, "offline"}}},
		{Title: "Nodes offline", Description: "Of sites that are online.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_nodes{state="offline"})`, "offline"}}},
		{Title: "Deployments failed", Description: "By the last report of their sites.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_deployments{state="FAILED"})`, "failed"}}},
		{Title: "Not adopted", Description: "They have not adopted the desired state that was published last.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`sum(max by (site) (colony_co_site_not_adopted))`, "not adopted"}}},
		{Title: "Oldest event that is not here", Description: "Of all sites, by what they said last.", Type: "stat", Unit: "s", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_site_backlog_seconds)`, "age"}}},
		{Title: "Record readable", Description: "0: the CO cannot read its database, and the numbers of the fleet are absent.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`min(colony_co_fleet_readable)`, "readable"}}},
		{Title: "Deployments by state", Description: "All of the fleet.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`max by (state) (colony_co_deployments)`, "{{state}}"}}},
		{Title: "Sites and nodes", Description: "Online and offline; the nodes of a site that is offline are unknown.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{
			{`max(colony_co_sites{online="true"})`, "sites online"}, {`max(colony_co_sites{online="false"})`, "sites offline"}, {`max by (state) (colony_co_nodes)`, "nodes {{state}}"},
		}},
		{Title: "Sites in trouble", Description: "Offline, with a problem of their machine, with a desired state that they have not adopted, or with deployments that failed.", Type: "table", Unit: "short", Width: 12, Height: 9, Queries: []Query{
			{`max by (site) (colony_co_site_online) == 0`, "offline"},
			{`max by (site) (colony_co_site_problem) == 1`, "problem"},
			{`max by (site) (colony_co_site_not_adopted) == 1`, "not adopted"},
			{`max by (site) (colony_co_site_deployments{state="FAILED"}) > 0`, "failed"},
		}},
		{Title: "Longest backlogs", Description: "Events that sites hold and the CO does not have.", Type: "timeseries", Unit: "short", Width: 12, Height: 9, Queries: []Query{{`topk(10, max by (site) (colony_co_site_backlog_events))`, "{{site}}"}}},
		{Title: "Commands", Description: "How they ended on nodes, by state, and what sites refused as a whole, by code.", Type: "timeseries", Unit: "ops", Width: 12, Height: 8, Queries: []Query{
			{`sum by (state) (rate(colony_co_command_results_total[5m]))`, "{{state}}"}, {`sum by (code) (rate(colony_co_commands_refused_total[5m]))`, "refused: {{code}}"},
		}},
		{Title: "Logs that are read", Description: "Readers, by replica.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`colony_co_live_readers`, "{{instance}}"}}},
		{Title: "Events committed", Description: "By replica.", Type: "timeseries", Unit: "ops", Width: 12, Height: 8, Queries: []Query{{`rate(colony_co_site_events_total[5m])`, "{{instance}}"}}},
		{Title: "Time to commit a batch", Description: "From its arrival at the CO: the median, and the slowest of a hundred.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{
			{`histogram_quantile(0.5, sum by (le) (rate(colony_co_batch_seconds_bucket[5m])))`, "p50"}, {`histogram_quantile(0.99, sum by (le) (rate(colony_co_batch_seconds_bucket[5m])))`, "p99"},
		}},
	},
}

var site = Dashboard{
	UID: "colony-site", Title: "Colony: site", Description: "How one site is, as the CO and its own LO say it.", Site: true,
	Panels: []Panel{
		{Title: "Online", Description: "1 while the site is connected to the CO.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_site_online{site="$site"})`, "online"}}},
		{Title: "Nodes", Description: "Unknown while the site is offline.", Type: "timeseries", Unit: "short", Width: 10, Height: 8, Queries: []Query{{`max by (state) (colony_co_site_nodes{site="$site"})`, "{{state}}"}}},
		{Title: "Deployments by state", Description: "By its last report.", Type: "timeseries", Unit: "short", Width: 10, Height: 8, Queries: []Query{{`max by (state) (colony_co_site_deployments{site="$site"})`, "{{state}}"}}},
		{Title: "Events that are not at the CO", Description: "As the site said it last.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_backlog_events{site="$site"})`, "events"}}},
		{Title: "Age of the oldest of them", Description: "0: there is none.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_backlog_seconds{site="$site"})`, "age"}}},
		{Title: "Commands that have not ended", Description: "As the CO has it.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_commands_open{site="$site"})`, "commands"}}},
		{Title: "Sent to the CO", Description: "Bytes of payload, of each LO that is scraped.", Type: "timeseries", Unit: "Bps", Width: 12, Height: 8, Queries: []Query{{`rate(colony_lo_uplink_sent_bytes_total[5m])`, "{{instance}} {{stream}}"}}},
		{Title: "Journal of the LO", Description: "Of each LO that is scraped.", Type: "timeseries", Unit: "bytes", Width: 12, Height: 8, Queries: []Query{{`colony_lo_journal_bytes`, "{{instance}}"}}},
		{Title: "Queues of machine data", Description: "Messages that the CO does not have, by rule.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`colony_lo_data_queued`, "{{instance}} {{rule}}"}}},
		{Title: "Clients of the site's broker", Description: "Nodes, workloads and devices that are connected.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`colony_broker_clients_connected`, "{{instance}} {{broker}}"}}},
	},
}

// JSON returns a dashboard as Grafana imports it. It is the same each time.
func (d Dashboard) JSON() ([]byte, error) {
	source := map[string]any{"type": "prometheus", "uid": "${datasource}"}
	variables := []any{map[string]any{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}}
	if d.Site {
		variables = append(variables, map[string]any{
			"name": "site", "type": "query", "label": "Site", "datasource": source, "refresh": 2, "sort": 1,
			"query": map[string]any{"query": "label_values(colony_co_site_online, site)", "refId": "site"},
		})
	}
	x, y, row := 0, 0, 0
	panels := []any{}
	for i, p := range d.Panels {
		if x+p.Width > 24 {
			x, y, row = 0, y+row, 0
		}
		targets := []any{}
		for n, q := range p.Queries {
			t := map[string]any{"refId": string(rune('A' + n)), "expr": q.Expr, "legendFormat": q.Legend, "datasource": source}
			if p.Type == "table" {
				t["format"], t["instant"] = "table", true
			}
			targets = append(targets, t)
		}
		panels = append(panels, map[string]any{
			"id": i + 1, "title": p.Title, "description": p.Description, "type": p.Type, "datasource": source, "targets": targets,
			"gridPos":     map[string]int{"x": x, "y": y, "w": p.Width, "h": p.Height},
			"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.Unit}, "overrides": []any{}},
		})
		x, row = x+p.Width, max(row, p.Height)
	}
	b, err := json.MarshalIndent(map[string]any{
		"uid": d.UID, "title": d.Title, "description": d.Description, "tags": []string{"colony"}, "schemaVersion": 37, "refresh": "30s",
		"time": map[string]string{"from": "now-6h", "to": "now"}, "templating": map[string]any{"list": variables}, "panels": panels,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode dashboard %s: %w", d.UID, err)
	}
	return append(b, '\n'), nil
}
