package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// siteAnswer is a site with its link, for machines.
type siteAnswer struct {
	fleet.Site
	Link sitedata.Link `json:"link"`
}

func (a *app) siteShow() *cobra.Command {
	var cached bool
	cmd := &cobra.Command{
		Use: "show SITE", Short: "Show one site, its link and its streams", Args: cobra.ExactArgs(1),
		Long: `Show one site, and the streams in both directions of its link: how many records
are queued, how old the oldest is, how many bytes are on disk, how many records were
dropped under a bound or expired, and the round-trip time and the rate of the link as
the site measured them.

A site that is online is asked for its present figures, which takes up to 5 s. The
figures of a site that is offline are those that it last reported, and REPORTED says
when. More may be queued there by now.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var s siteAnswer
			path := "/sites/" + url.PathEscape(args[0])
			if err := a.Call(cmd.Context(), http.MethodGet, path, nil, &s.Site); err != nil {
				return err
			}
			query := "/link?refresh=" + strconv.FormatBool(!cached && s.Online)
			if err := a.Call(cmd.Context(), http.MethodGet, path+query, nil, &s.Link); err != nil {
				return err
			}
			if done, err := a.Machine(s); done {
				return err
			}
			return a.showSite(s)
		},
	}
	cmd.Flags().BoolVar(&cached, "cached", false, "do not ask the site, show what it last reported")
	return cmd
}

func (a *app) showSite(s siteAnswer) error {
	err := a.Fields("Site", string(s.ID), "State", output.OnOff(s.Online), "Since", output.Age(s.OnlineSince), "Version", s.Version,
		"Nodes", verdict.CountNodes(s.Nodes, s.NodesOnline, s.NodesUnknown), "Deployments", strconv.Itoa(s.Deployments),
		"Desired generation", strconv.FormatUint(s.Generation, 10), "Adopted generation", strconv.FormatUint(s.Adopted, 10),
		"Commit", s.Commit, "Journal", fmt.Sprintf("%s at %d", s.JournalEpoch, s.JournalSeq),
		"Events lost", strconv.FormatUint(s.EventsLost, 10), "Last event", output.Age(s.LastEventAt), "Last report", output.Ago(s.ReportedAt), "Clock", clock(s.ClockUnsynced), "Problem", s.Problem)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "\nStreams of the site (%s)\n", howFresh(s.Link))
	var rows [][]string
	for _, q := range s.Link.Up {
		rows = append(rows, []string{
			streamName(q), strconv.FormatUint(q.Queued, 10), oldest(q), output.Size(q.Bytes), strconv.FormatUint(q.Dropped, 10),
			strconv.FormatUint(q.Expired, 10), rtt(q), rate(q), output.Ago(q.Reported),
		})
	}
	if err := a.Table("STREAM QUEUED OLDEST BYTES DROPPED EXPIRED RTT RATE REPORTED", rows); err != nil || len(s.Link.Down) == 0 {
		return err
	}
	fmt.Fprintln(a.Out, "\nStreams to the site, queued at the CO")
	rows = nil
	for _, q := range s.Link.Down {
		rows = append(rows, []string{
			streamName(q), strconv.FormatUint(q.Queued, 10), oldest(q), output.Size(q.Bytes), strconv.FormatUint(q.Dropped, 10),
		})
	}
	return a.Table("STREAM QUEUED OLDEST BYTES DROPPED", rows)
}

// howFresh returns of when the figures of a link are.
func howFresh(l sitedata.Link) string {
	switch {
	case !l.Online:
		return "the site is offline: as it last reported; more may be queued by now"
	case l.Refreshed == nil:
		return "as it last reported"
	case *l.Refreshed:
		return "as of now"
	default:
		return "the site did not answer for all of them within 5 s: as it last reported"
	}
}

// clock says that times of a site may be wrong; "" where they are not known to be.
func clock(unsynced bool) string {
	if !unsynced {
		return ""
	}
	return "not synchronised at its last event: times that the site gives may be wrong; see colony doctor lo there"
}

func streamName(q sitedata.Stream) string {
	switch {
	case q.Rule == "":
		return "events"
	case q.Removed:
		return protocol.DataStream(q.Rule) + " (no rule)"
	default:
		return protocol.DataStream(q.Rule)
	}
}

func oldest(q sitedata.Stream) string {
	if q.Queued == 0 || q.OldestSeconds == 0 {
		return ""
	}
	since := time.Now().Add(-time.Duration(q.OldestSeconds * float64(time.Second)))
	return output.Age(&since)
}

func rtt(q sitedata.Stream) string {
	if q.RTTSeconds == 0 {
		return ""
	}
	d := time.Duration(q.RTTSeconds * float64(time.Second))
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func rate(q sitedata.Stream) string {
	if q.BytesPerSecond == 0 {
		return ""
	}
	return strings.ReplaceAll(output.Size(q.BytesPerSecond), " ", "") + "/s"
}
