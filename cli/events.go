package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
)

// maxEvents is how many events the API gives at once.
const maxEvents = 1000

func (a *app) eventsCommand() *cobra.Command {
	var follow, results bool
	var limit int
	filter := map[string]*string{"site": new(""), "node": new(""), "deployment": new(""), "kind": new("")}
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened, newest last", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 || limit > maxEvents {
				return command.Usage(fmt.Errorf("--limit %d: want 0 to %d", limit, maxEvents))
			}
			query := url.Values{}
			for k, v := range filter {
				if *v != "" {
					query.Set(k, *v)
				}
			}
			if results {
				query.Set("results", "true")
			}
			c := a.Client()
			mark, err := lastEvent(cmd.Context(), c)
			if err != nil {
				return err
			}
			events, err := tail(cmd.Context(), c, query, limit)
			if err != nil {
				return err
			}
			for _, e := range events {
				a.printEvent(e)
			}
			if !follow {
				return nil
			}
			if len(events) > 0 {
				mark = max(mark, events[len(events)-1].ID)
			}
			return command.UntilInterrupted(c.Events(cmd.Context(), query, mark, a.printEvent))
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events as they come")
	cmd.Flags().BoolVar(&results, "results", false, "also what nodes reported of commands, one event for each node; --kind command_result shows them alone")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many past events to show")
	for k, help := range map[string]string{
		"site": "only of this site", "node": "only of this node; needs --site", "deployment": "only of this deployment; needs --site",
		"kind": "only of this kind; several are separated by commas",
	} {
		cmd.Flags().StringVar(filter[k], k, "", help)
	}
	return cmd
}

// tail returns the newest events that match, oldest first.
func tail(ctx context.Context, c *client.Client, query url.Values, limit int) ([]fleet.Event, error) {
	if limit <= 0 {
		return nil, nil
	}
	q := url.Values{"newest": {"true"}, "limit": {fmt.Sprint(limit)}}
	for k, v := range query {
		q[k] = v
	}
	var page struct {
		Items []fleet.Event `json:"items"`
	}
	err := c.Call(ctx, http.MethodGet, "/events?"+q.Encode(), nil, &page)
	return page.Items, err
}

// lastEvent returns the id of the newest event there is, 0 if none.
func lastEvent(ctx context.Context, c *client.Client) (int64, error) {
	events, err := tail(ctx, c, nil, 1)
	if err != nil || len(events) == 0 {
		return 0, err
	}
	return events[len(events)-1].ID, nil
}

// printEvent writes one event: a line, or a JSON or YAML document.
func (a *app) printEvent(e fleet.Event) bool {
	switch a.Format {
	case "json":
		_ = json.NewEncoder(a.Out).Encode(e)
	case "yaml":
		fmt.Fprintln(a.Out, "---")
		_, _ = a.Machine(e)
	default:
		fmt.Fprintln(a.Out, e.Time.Local().Format("2006-01-02"), eventLine(e)) // it may be of months ago
	}
	return true
}

// siteTimeShown is by how much the site's clock differs, or the event was late, where its
// time is shown beside that of the CO.
const siteTimeShown = time.Minute

// eventLine is an event in one line.
func eventLine(e fleet.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-18s", e.Time.Local().Format("15:04:05.000"), e.Kind)
	where := []string{}
	for _, w := range []string{string(e.Site), string(e.Node), string(e.Deployment)} {
		if w != "" {
			where = append(where, w)
		}
	}
	b.WriteString(" " + strings.Join(where, "/"))
	if e.To != "" {
		if e.From != "" && e.From != e.To {
			fmt.Fprintf(&b, "  %s → %s", e.From, e.To)
		} else {
			fmt.Fprintf(&b, "  %s", e.To)
		}
	}
	if e.Phase != "" {
		fmt.Fprintf(&b, " %s", e.Phase)
		if e.Total > 0 {
			fmt.Fprintf(&b, " %s of %s", output.Size(e.Pulled), output.Size(e.Total))
		}
	}
	if e.AppVersion != "" {
		fmt.Fprintf(&b, "  %s", e.AppVersion)
	}
	if e.Code != "" {
		fmt.Fprintf(&b, "  %s", e.Code)
	}
	if e.Message != "" {
		fmt.Fprintf(&b, "  %s", e.Message)
	}
	if t := e.SiteTime; t != nil && t.Sub(e.Time).Abs() > siteTimeShown {
		fmt.Fprintf(&b, "  (by the site's clock at %s)", output.Reported(*t, e.Unsynced))
	}
	return b.String()
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether Colony works and what it runs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s api.Status
			if err := a.Call(cmd.Context(), http.MethodGet, "/status", nil, &s); err != nil {
				return err
			}
			if done, err := a.Machine(s); done {
				return err
			}
			return a.showStatus(s)
		},
	}
}

func (a *app) showStatus(s api.Status) error {
	held := ""
	if s.Held > 0 {
		held = fmt.Sprintf("%d, by %d proposals: colony proposal list", s.Held, s.Proposals)
	}
	unenrolled := ""
	if s.Unenrolled > 0 {
		unenrolled = fmt.Sprintf("%d sites: colony site adopt", s.Unenrolled)
	}
	if err := a.Fields("Version", s.Version, "Sites", fmt.Sprintf("%d, %d online", s.Sites, s.SitesOnline), "Without certificate", unenrolled,
		"Nodes", verdict.CountNodes(s.Nodes, s.NodesOnline, s.NodesUnknown), "Apps", fmt.Sprint(s.Apps), "Deployments", output.Pairs(s.Deployments), "Removals held", held); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(s.Parts)) {
		rows = append(rows, []string{name, s.Parts[name]})
	}
	return a.Table("PART STATE", rows)
}
