package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol/maintenance"
)

// siteMaintenance returns "colony site maintenance".
func (a *app) siteMaintenance() *cobra.Command {
	cmd := &cobra.Command{
		Use: "maintenance", Short: "Show, or change by a commit, when what runs at a site is updated and removed",
		Long: `A site with maintenance windows carries updates and removals out in them alone. What
waits is shown at the nodes and the deployments. Installations, what has failed, restarts
and moves of nodes that are drained wait for none, nor do updates of deployments whose
policy says so (--any-time). The windows are in the site's file in the deployments repo:
maintenance below spec.`,
	}
	path := func(site string) string { return "/sites/" + url.PathEscape(site) + "/maintenance" }
	var zone string
	var windows []string
	set := &cobra.Command{
		Use: "set SITE --time-zone ZONE --window WINDOW...", Short: "Set the maintenance windows of a site", Args: cobra.ExactArgs(1),
		Example: `  colony site maintenance set plant --time-zone Europe/Berlin --window "sat,sun 22:00 4h" --window "wed 02:00 90m"
  colony site maintenance set plant --time-zone UTC --window "03:00 1h"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			m := sitefile.Maintenance{TimeZone: zone}
			for _, text := range windows {
				w, err := windowOf(text)
				if err != nil {
					return err
				}
				m.Windows = append(m.Windows, w)
			}
			if err := a.Call(cmd.Context(), http.MethodPut, path(args[0]), m, nil); err != nil {
				return err
			}
			noun := "windows"
			if len(m.Windows) == 1 {
				noun = "window"
			}
			a.Printf("site %s: %d maintenance %s", args[0], len(m.Windows), noun)
			return nil
		},
	}
	set.Flags().StringVar(&zone, "time-zone", "", "the time zone of the windows, such as Europe/Berlin (required)")
	set.Flags().StringArrayVar(&windows, "window", nil, "a time of the week, as days, start and length: \"sat,sun 22:00 4h\"; without days on each day (required)")
	for _, flag := range []string{"time-zone", "window"} {
		_ = set.MarkFlagRequired(flag)
	}
	cmd.AddCommand(set, &cobra.Command{
		Use: "clear SITE", Short: "Remove the maintenance windows of a site: what waits is carried out", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.Call(cmd.Context(), http.MethodDelete, path(args[0]), nil, nil); err != nil {
				return err
			}
			a.Printf("site %s: no maintenance windows, changes are carried out at any time", args[0])
			return nil
		},
	}, &cobra.Command{
		Use: "show SITE", Short: "Show the maintenance windows of a site", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m sitedata.SiteMaintenance
			if err := a.Call(cmd.Context(), http.MethodGet, path(args[0]), nil, &m); err != nil {
				return err
			}
			if done, err := a.Machine(m); done {
				return err
			}
			return a.showMaintenance(m)
		},
	})
	return cmd
}

func (a *app) showMaintenance(m sitedata.SiteMaintenance) error {
	if m.Maintenance == nil {
		return a.Fields("Maintenance windows", "none: changes are carried out at any time", "Problem", m.Problem)
	}
	now := map[bool]string{true: "open", false: "closed"}[m.Open]
	if m.ChangesAt != nil {
		now += " until " + output.At(m.ChangesAt) + " by the clock here"
		if zone, err := maintenance.Zone(m.Maintenance.TimeZone); err == nil {
			now += ", " + m.ChangesAt.In(zone).Format("Mon 2 Jan 15:04 MST") + " there"
		}
	}
	if err := a.Fields("Now", now, "Time zone", m.Maintenance.TimeZone, "Problem", m.Problem); err != nil {
		return err
	}
	a.Printf("")
	var rows [][]string
	for _, w := range m.Maintenance.Windows {
		days := "each day"
		if len(w.Days) > 0 {
			days = strings.Join(w.Days, ",")
		}
		rows = append(rows, []string{days, w.Start, w.Duration})
	}
	return a.Table("DAYS START DURATION", rows)
}

// windowOf reads a window such as "sat,sun 22:00 4h". What its parts may be the CO says.
func windowOf(text string) (w sitefile.Window, err error) {
	parts := strings.Fields(text)
	if len(parts) == 3 {
		w.Days, parts = strings.Split(parts[0], ","), parts[1:]
	}
	if len(parts) != 2 {
		return w, command.Usage(fmt.Errorf("--window %q: want days, start and length, as \"sat,sun 22:00 4h\", or start and length", text))
	}
	w.Start, w.Duration = parts[0], parts[1]
	return w, nil
}
