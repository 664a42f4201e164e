package sitefile

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/maintenance"
)

// Maintenance is when a site may be changed, as a file and the API write it.
type Maintenance struct {
	TimeZone string   `json:"timeZone" yaml:"timeZone" doc:"that of the windows, by its name in the IANA Time Zone Database, such as Europe/Berlin"`
	Windows  []Window `json:"windows" yaml:"windows" minItems:"1" maxItems:"32"` // in which the site may be changed
}

// A Window is a time of the week.
type Window struct {
	Days     []string `json:"days,omitempty" yaml:"days,omitempty,flow" enum:"mon,tue,wed,thu,fri,sat,sun" doc:"on which it begins; default each day"`
	Start    string   `json:"start" yaml:"start" example:"22:00" doc:"when it begins, by the clock of the time zone"`
	Duration string   `json:"duration" yaml:"duration" example:"4h" doc:"how long it lasts, from 5m to 7d, in whole minutes"`
}

// MaintenanceOf returns what the wire has as a file says it; nil for nil.
func MaintenanceOf(m *protocol.Maintenance) *Maintenance {
	if m == nil {
		return nil
	}
	out := &Maintenance{TimeZone: m.TimeZone}
	for _, w := range m.Windows {
		lasts := formatDuration(uint64(w.Minutes) * uint64(time.Minute/time.Millisecond))
		out.Windows = append(out.Windows, Window{maintenance.DayNames(w.Days), maintenance.ClockText(w.Start), lasts})
	}
	return out
}

// maintenance reads when a site may be changed; nil: at any time.
func (r *reader) maintenance(spec object) *protocol.Maintenance {
	o := r.child(spec, "maintenance", "timeZone", "windows")
	if !o.there {
		return nil
	}
	m := &protocol.Maintenance{}
	if r.required(o, "timeZone") {
		var ok bool
		if m.TimeZone, ok = r.text(o, "timeZone"); ok {
			if _, err := maintenance.Zone(m.TimeZone); err != nil {
				r.problem(join(o.path, "timeZone"), o.fields["timeZone"].Line, "%v", err)
			}
		}
	}
	if r.required(o, "windows") {
		list := r.list(o, "windows")
		if n := len(list); o.fields["windows"].Kind == yaml.SequenceNode && (n == 0 || n > maintenance.MaxWindows) {
			r.problem(join(o.path, "windows"), o.fields["windows"].Line, "%d windows: want 1 to %d; without any nothing would ever be updated: to update at any time, leave maintenance out", n, maintenance.MaxWindows)
		}
		for _, i := range list {
			m.Windows = append(m.Windows, r.window(r.object(i.node, i.path, "days", "start", "duration")))
		}
	}
	return m
}

func (r *reader) window(o object) (w protocol.Window) {
	days, err := maintenance.Days(r.texts(o, "days"))
	if v := o.fields["days"]; v != nil && err == nil && v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
		err = fmt.Errorf("no day: name some, or leave days out for each day")
	}
	if err != nil {
		r.problem(join(o.path, "days"), o.fields["days"].Line, "%v", err)
	}
	w.Days = days
	if r.required(o, "start") {
		if text, ok := r.text(o, "start"); ok {
			if w.Start, err = maintenance.Clock(text); err != nil {
				r.problem(join(o.path, "start"), o.fields["start"].Line, "%v", err)
			}
		}
	}
	if r.required(o, "duration") {
		const minute = uint64(time.Minute / time.Millisecond)
		before := len(r.problems)
		millis := r.duration(o, "duration")
		if n := millis / minute; len(r.problems) == before && (millis%minute != 0 || n < maintenance.MinMinutes || n > maintenance.MaxMinutes) {
			r.problem(join(o.path, "duration"), o.fields["duration"].Line, "%s: want whole minutes, from %dm to 7d", o.fields["duration"].Value, maintenance.MinMinutes)
		} else {
			w.Minutes = uint16(n)
		}
	}
	return w
}

// SetMaintenance returns the file of a site with other maintenance windows, or with none where m is nil; raw is empty where there is no
// file. Comments elsewhere are kept.
func SetMaintenance(site protocol.SiteID, raw []byte, m *Maintenance) ([]byte, error) {
	return edit(site, raw, func(spec *yaml.Node) error {
		if m == nil {
			if field(spec, "maintenance") != nil {
				remove(spec, "maintenance")
			}
			return nil
		}
		for i, w := range m.Windows {
			if w.Days != nil && len(w.Days) == 0 { // a form with nothing ticked means no day, and the file would mean each
				return protocol.Errorf(protocol.Invalid, "maintenance.windows[%d].days: no day: name some, or leave days out for each day", i)
			}
		}
		var node yaml.Node
		if err := node.Encode(m); err != nil {
			return fmt.Errorf("write maintenance windows: %w", err)
		}
		*entry(spec, "maintenance", yaml.MappingNode) = node
		return nil
	})
}
