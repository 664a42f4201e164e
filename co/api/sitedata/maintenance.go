package sitedata

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol/maintenance"
)

// SiteMaintenance is when what runs at a site may be updated and removed.
type SiteMaintenance struct {
	Maintenance *sitefile.Maintenance `json:"maintenance,omitempty" doc:"absent: at any time"`
	Open        bool                  `json:"open" doc:"whether that is now, by the clock of the CO; the site goes by the time that it knows"`
	ChangesAt   *time.Time            `json:"changesAt,omitempty" doc:"when that changes; absent: never"`
	Problem     string                `json:"problem,omitempty" doc:"why the site's file is not followed: then the windows are the last good ones"`
}

type putMaintenanceInput struct {
	form.SitePath
	Body sitefile.Maintenance
}

func (a *routes) getMaintenance(ctx context.Context, in *form.SitePath) (*form.Reply[SiteMaintenance], error) {
	out, err := a.maintenance(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[SiteMaintenance]{Body: out}, nil
}

func (a *routes) maintenance(ctx context.Context, in *form.SitePath) (SiteMaintenance, error) {
	file, problem, err := a.shownFile(ctx, in)
	out := SiteMaintenance{Maintenance: sitefile.MaintenanceOf(file.Maintenance), Open: true, Problem: problem}
	if err != nil || file.Maintenance == nil {
		return out, err
	}
	schedule, err := maintenance.New(*file.Maintenance)
	if err != nil {
		return out, err
	}
	var changes time.Time
	if out.Open, changes = schedule.At(time.Now()); !changes.IsZero() {
		out.ChangesAt = new(changes.UTC())
	}
	return out, nil
}

func (a *routes) putMaintenance(ctx context.Context, in *putMaintenanceInput) (*struct{}, error) {
	return a.setMaintenance(ctx, in.SitePath, &in.Body)
}

func (a *routes) deleteMaintenance(ctx context.Context, in *form.SitePath) (*struct{}, error) {
	return a.setMaintenance(ctx, *in, nil)
}

// setMaintenance commits other windows, or none where m is nil.
func (a *routes) setMaintenance(ctx context.Context, in form.SitePath, m *sitefile.Maintenance) (*struct{}, error) {
	word := "Set"
	if m == nil {
		word = "Remove"
	}
	site, err := in.Parse()
	if err == nil {
		err = a.editFile(ctx, site, word+" the maintenance windows of "+string(site), func(was []byte) ([]byte, error) {
			if len(was) == 0 && m == nil {
				return nil, nil
			}
			content, err := sitefile.SetMaintenance(site, was, m)
			if _, bad := sitefile.Parse(site, was); len(was) > 0 && bad != nil {
				return nil, err // of the file, and not of the body
			}
			return content, problem.OfSiteFile(err, false)
		})
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}
