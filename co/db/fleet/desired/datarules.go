package desireddb

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// DataRules returns the rules of a site's machine data in the order in which they
// are tried, as SaveDesired recorded them: nothing where there are none.
func (s *Desired) DataRules(ctx context.Context, site protocol.SiteID) ([]fleet.DataRule, error) {
	recorded, err := readRules(ctx, s.db, []protocol.SiteID{site})
	if err != nil {
		return nil, pgdb.Classify("read data rules", err)
	}
	return plainRules(recorded[site]), nil
}

// SiteData returns what SaveDesired recorded last of a site's site.yaml: the zero
// SiteData where there is none.
func (s *Desired) SiteData(ctx context.Context, site protocol.SiteID) (fleet.SiteData, error) {
	var out fleet.SiteData
	err := s.db.Tx(ctx, "read data rules", func(tx pgx.Tx) error {
		recorded, err := readSiteData(ctx, tx, []protocol.SiteID{site})
		out = recorded[site].SiteData
		return err
	})
	return out, err
}

// A ruleRow is one recorded rule, with its encoding for the site.
type ruleRow struct {
	fleet.DataRule
	encoded []byte
}

func readRules(ctx context.Context, pool pgdb.Querier, sites []protocol.SiteID) (map[protocol.SiteID][]ruleRow, error) {
	out := map[protocol.SiteID][]ruleRow{}
	_, err := pgdb.Rows(ctx, pool, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var r ruleRow
		var keep int64
		if err = row.Scan(&site, &r.encoded, &r.Store, &keep, &r.Metric, &r.Fields); err != nil {
			return none, err
		}
		r.Keep = time.Duration(keep) * time.Millisecond
		err = protocol.Unmarshal(r.encoded, &r.DataRule.DataRule)
		out[site] = append(out[site], r)
		return none, err
	}, `select site, rule, store, keep_millis, metric, fields from data_rules where site = any($1) order by site, position`, pgdb.Texts(sites))
	return out, err
}

func plainRules(recorded []ruleRow) []fleet.DataRule {
	var out []fleet.DataRule
	for _, r := range recorded {
		out = append(out, r.DataRule)
	}
	return out
}

// wireRules returns the part of the rules that is sent to the site.
func wireRules(rules []fleet.DataRule) []protocol.DataRule {
	var out []protocol.DataRule
	for _, r := range rules {
		out = append(out, r.DataRule)
	}
	return out
}

// A siteDataRow is what is recorded of a site.yaml.
type siteDataRow struct {
	fleet.SiteData
	rules       []ruleRow
	devices     []byte // as they are encoded
	maintenance []byte // likewise
}

func readSiteData(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID]siteDataRow, error) {
	rules, err := readRules(ctx, tx, sites)
	if err != nil {
		return nil, err
	}
	out := make(map[protocol.SiteID]siteDataRow, len(rules))
	for site, list := range rules {
		out[site] = siteDataRow{SiteData: fleet.SiteData{Rules: plainRules(list)}, rules: list}
	}
	_, err = pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var file siteDataRow
		if err = row.Scan(&site, &file.Commit, &file.Problem, &file.devices, &file.Exec, &file.maintenance); err == nil && len(file.devices) > 0 {
			err = protocol.Unmarshal(file.devices, &file.Devices)
		}
		if err == nil && len(file.maintenance) > 0 {
			file.Maintenance = new(protocol.Maintenance)
			err = protocol.Unmarshal(file.maintenance, file.Maintenance)
		}
		file.Rules, file.rules = out[site].Rules, out[site].rules
		out[site] = file
		return none, err
	}, `select site, commit, problem, devices, exec, maintenance from site_files where site = any($1)`, pgdb.Texts(sites))
	return out, err
}

// encodeDevices encodes the accounts of a site; no accounts are nothing.
func encodeDevices(list []protocol.DeviceAccount) []byte {
	if len(list) == 0 {
		return []byte{}
	}
	return protocol.Marshal(list)
}

// encodeMaintenance encodes the maintenance windows of a site; none are nothing.
func encodeMaintenance(m *protocol.Maintenance) []byte {
	if m == nil {
		return []byte{}
	}
	return protocol.Marshal(m)
}

// A dataDiff is what SaveDesired has to write of a site.yaml.
type dataDiff struct {
	site    protocol.SiteID
	desired fleet.SiteData
	rules   []ruleRow
	devices []byte
	windows []byte
	file    bool // the row of the file differs
	rows    bool // the rows of the rules differ
	changed bool // what is sent to the site differs
	events  []fleet.Event
}

func compareData(site protocol.SiteID, recorded siteDataRow, want fleet.SiteData) *dataDiff {
	d := &dataDiff{site: site, desired: want, devices: encodeDevices(want.Devices), windows: encodeMaintenance(want.Maintenance)}
	accounts := !bytes.Equal(d.devices, recorded.devices)
	windows := !bytes.Equal(d.windows, recorded.maintenance)
	d.file = recorded.Commit != want.Commit || recorded.Problem != want.Problem || recorded.Exec != want.Exec || accounts || windows
	for _, r := range want.Rules {
		d.rules = append(d.rules, ruleRow{DataRule: r, encoded: protocol.Marshal(r.DataRule)})
	}
	rules := !slices.EqualFunc(d.rules, recorded.rules, func(a, b ruleRow) bool { return bytes.Equal(a.encoded, b.encoded) })
	d.changed = rules || accounts || windows
	d.rows = rules || !slices.EqualFunc(d.rules, recorded.rules, func(a, b ruleRow) bool {
		return a.Store == b.Store && a.Keep == b.Keep && a.Metric == b.Metric && slices.Equal(a.Fields, b.Fields) &&
			(a.Fields == nil) == (b.Fields == nil)
	})
	if d.rows {
		d.events = append(d.events, fleet.Event{Kind: fleet.DataRulesChanged, Site: site, Message: countRules(len(d.rules))})
	}
	if accounts {
		d.events = append(d.events, fleet.Event{Kind: fleet.DevicesChanged, Site: site, Message: fmt.Sprintf("device accounts: %d", len(want.Devices))})
	}
	if windows {
		d.events = append(d.events, fleet.Event{Kind: fleet.MaintenanceChanged, Site: site, Message: maintenanceMessage(want.Maintenance)})
	}
	if want.Problem != "" && want.Problem != recorded.Problem {
		d.events = append(d.events, fleet.Event{Kind: fleet.DataRulesInvalid, Site: site, Message: want.Problem})
	}
	return d
}

func maintenanceMessage(m *protocol.Maintenance) string {
	if m == nil {
		return "no maintenance windows: changes are carried out at any time"
	}
	return fmt.Sprintf("maintenance windows: %d, in %s", len(m.Windows), m.TimeZone)
}

func countRules(n int) string {
	switch n {
	case 0:
		return "no rules"
	case 1:
		return "1 rule"
	default:
		return fmt.Sprintf("%d rules", n)
	}
}

func (d *dataDiff) queue(b *pgx.Batch) {
	if d.file {
		if d.desired.Commit == "" && d.desired.Problem == "" {
			b.Queue(`delete from site_files where site = $1`, d.site)
		} else {
			b.Queue(`insert into site_files (site, commit, problem, devices, exec, maintenance) values ($1, $2, $3, $4, $5, $6)
				on conflict (site) do update set commit = $2, problem = $3, devices = $4, exec = $5, maintenance = $6`, d.site, d.desired.Commit, d.desired.Problem, d.devices, d.desired.Exec, d.windows)
		}
	}
	if !d.rows {
		return
	}
	b.Queue(`delete from data_rules where site = $1`, d.site)
	for i, r := range d.rules {
		b.Queue(`insert into data_rules (site, position, name, rule, store, keep_millis, metric, fields)
			values ($1, $2, $3, $4, $5, $6, $7, $8)`,
			d.site, i, r.Name, r.encoded, r.Store, r.Keep.Milliseconds(), r.Metric, r.Fields)
	}
}
