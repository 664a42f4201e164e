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
	return map[string]Dashboard{"fleet.json": fleet, "site.json": site, "containers.json": containers}
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
		{Title: "Slowest requests", Description: "The slowest of a hundred, of the ten slowest routes.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`topk(10, histogram_quantile(0.99, sum by (le, method, route) (rate(colony_co_http_request_seconds_bucket[5m]))))`, "{{method}} {{route}}"}}},
		{Title: "Requests that failed", Description: "With a status of 5xx, or broken off in the middle, by route.", Type: "timeseries", Unit: "reqps", Width: 12, Height: 8, Queries: []Query{{`sum by (method, route, code) (rate(colony_co_http_request_seconds_count{code=~"5xx|cut"}[5m])) > 0`, "{{method}} {{route}} {{code}}"}}},
		{Title: "Database", Description: "The slowest transaction of a hundred, by replica, and how long was waited for a connection in each second.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{
			{`histogram_quantile(0.99, sum by (le, instance) (rate(colony_co_db_transaction_seconds_bucket[5m])))`, "{{instance}} transactions"}, {`rate(colony_co_db_connection_wait_seconds_total[5m])`, "{{instance}} waits, {{pool}}"},
		}},
		{Title: "Git", Description: "The slowest call of a hundred, by command; ls-remote, fetch and push reach the remote.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`histogram_quantile(0.99, sum by (le, command) (rate(colony_co_git_seconds_bucket[15m])))`, "{{command}}"}}},
	},
}

// ofSite leaves of the values of LOs those of the chosen site: an LO says its site by colony_lo_info, of the same target.
const ofSite = ` * on (job, instance) group_left () max by (job, instance) (colony_lo_info{site="$site"})`

var site = Dashboard{
	UID: "colony-site", Title: "Colony: site", Description: "How one site is, as the CO and its own LO say it.", Site: true,
	Panels: []Panel{
		{Title: "Online", Description: "1 while the site is connected to the CO.", Type: "stat", Unit: "short", Width: 4, Height: 5, Queries: []Query{{`max(colony_co_site_online{site="$site"})`, "online"}}},
		{Title: "Nodes", Description: "Unknown while the site is offline.", Type: "timeseries", Unit: "short", Width: 10, Height: 8, Queries: []Query{{`max by (state) (colony_co_site_nodes{site="$site"})`, "{{state}}"}}},
		{Title: "Deployments by state", Description: "By its last report.", Type: "timeseries", Unit: "short", Width: 10, Height: 8, Queries: []Query{{`max by (state) (colony_co_site_deployments{site="$site"})`, "{{state}}"}}},
		{Title: "Events that are not at the CO", Description: "As the site said it last.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_backlog_events{site="$site"})`, "events"}}},
		{Title: "Age of the oldest of them", Description: "0: there is none.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_backlog_seconds{site="$site"})`, "age"}}},
		{Title: "Commands that have not ended", Description: "As the CO has it.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`max(colony_co_site_commands_open{site="$site"})`, "commands"}}},
		{Title: "Sent to the CO", Description: "Bytes of payload, by stream, where the LO is scraped.", Type: "timeseries", Unit: "Bps", Width: 12, Height: 8, Queries: []Query{{`rate(colony_lo_uplink_sent_bytes_total[5m])` + ofSite, "{{stream}}"}}},
		{Title: "Journal of the LO", Description: "What the CO does not have yet, on the disk of the LO, where that is scraped.", Type: "timeseries", Unit: "bytes", Width: 12, Height: 8, Queries: []Query{{`colony_lo_journal_bytes` + ofSite, "journal"}}},
		{Title: "Queues of machine data", Description: "Messages that the CO does not have, by rule.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`colony_lo_data_queued` + ofSite, "{{rule}}"}}},
		{Title: "Clients of the site's broker", Description: "Nodes, workloads and devices that are connected.", Type: "timeseries", Unit: "short", Width: 12, Height: 8, Queries: []Query{{`colony_broker_clients_connected{broker="lo"}` + ofSite, "clients"}}},
		{Title: "Time until a node begins", Description: "From sending it an assignment, the last one of each node that is online.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`colony_lo_node_last_response_seconds` + ofSite, "{{node}}"}}},
		{Title: "Time to decide", Description: "The slowest of a hundred decisions of the LO.", Type: "timeseries", Unit: "s", Width: 12, Height: 8, Queries: []Query{{`histogram_quantile(0.99, sum by (le) (rate(colony_lo_reconcile_seconds_bucket[5m])` + ofSite + `))`, "p99"}}},
		{Title: "Image cache", Description: "Requests of nodes: hit, it was there; miss, it came over the link; failed.", Type: "timeseries", Unit: "reqps", Width: 12, Height: 8, Queries: []Query{{`rate(colony_lo_cache_requests_total[5m])` + ofSite, "{{result}}"}}},
		{Title: "Images over the link", Description: "Bytes that the cache had to fetch.", Type: "timeseries", Unit: "Bps", Width: 12, Height: 8, Queries: []Query{{`rate(colony_lo_cache_fetched_bytes_total[5m])` + ofSite, "fetched"}}},
	},
}

// ofNodes leaves of the values of agents those of the chosen site, and adds the name of the node, as colony_en_info has it.
const ofNodes = ` * on (job, instance) group_left (node) max by (job, instance, node) (colony_en_info{site="$site"})`

var containers = Dashboard{
	UID: "colony-containers", Title: "Colony: containers of a site", Description: "What the containers of a site use and how often they fail, where its agents are scraped (http in their configuration).", Site: true,
	Panels: []Panel{
		{Title: "Processors", Description: "Of each container; 1 is one processor.", Type: "timeseries", Unit: "short", Width: 12, Height: 9, Queries: []Query{{`rate(colony_en_container_cpu_seconds_total[5m])` + ofNodes, "{{node}} {{deployment}}/{{container}}"}}},
		{Title: "Memory", Description: "Without file pages that were not used for a while.", Type: "timeseries", Unit: "bytes", Width: 12, Height: 9, Queries: []Query{{`colony_en_container_memory_bytes` + ofNodes, "{{node}} {{deployment}}/{{container}}"}}},
		{Title: "Nearest to their limit of memory", Description: "The share that is used, of containers that have a limit.", Type: "timeseries", Unit: "percentunit", Width: 12, Height: 9, Queries: []Query{{`topk(10, colony_en_container_memory_bytes / (colony_en_container_memory_limit_bytes > 0)` + ofNodes + `)`, "{{node}} {{deployment}}/{{container}}"}}},
		{Title: "Restarts in an hour", Description: "And ends because memory was used up.", Type: "timeseries", Unit: "short", Width: 12, Height: 9, Queries: []Query{
			{`(increase(colony_en_container_restarts_total[1h]) > 0)` + ofNodes, "{{node}} {{deployment}}/{{container}}"}, {`(increase(colony_en_container_oom_kills_total[1h]) > 0)` + ofNodes, "{{node}} {{deployment}}/{{container}} out of memory"},
		}},
		{Title: "Network", Description: "What came, and what went.", Type: "timeseries", Unit: "Bps", Width: 12, Height: 9, Queries: []Query{
			{`rate(colony_en_container_network_received_bytes_total[5m])` + ofNodes, "{{node}} {{deployment}}/{{container}} received"}, {`rate(colony_en_container_network_sent_bytes_total[5m])` + ofNodes, "{{node}} {{deployment}}/{{container}} sent"},
		}},
		{Title: "Disk", Description: "What was read from block devices, and written to them: flash wears.", Type: "timeseries", Unit: "Bps", Width: 12, Height: 9, Queries: []Query{
			{`rate(colony_en_container_disk_read_bytes_total[5m])` + ofNodes, "{{node}} {{deployment}}/{{container}} read"}, {`rate(colony_en_container_disk_written_bytes_total[5m])` + ofNodes, "{{node}} {{deployment}}/{{container}} written"},
		}},
		{Title: "Pulls and starts that failed", Description: "By the code of the failure, in an hour.", Type: "timeseries", Unit: "short", Width: 12, Height: 9, Queries: []Query{
			{`(increase(colony_en_pulls_total{outcome!~"ok|ended"}[1h]) > 0)` + ofNodes, "{{node}} pull {{outcome}}"}, {`(increase(colony_en_starts_total{outcome!~"ok|ended"}[1h]) > 0)` + ofNodes, "{{node}} start {{outcome}}"},
		}},
		{Title: "Probes that were not answered well", Description: "By node.", Type: "timeseries", Unit: "ops", Width: 12, Height: 9, Queries: []Query{{`rate(colony_en_probes_total{result!="healthy"}[5m])` + ofNodes, "{{node}} {{result}}"}}},
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
