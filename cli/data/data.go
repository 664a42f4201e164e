// Package data has the commands about the machine data of sites, and about the rules that say
// which of it is sent and stored.
package data

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/sitedata"
)

// Command returns "colony data".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "data", Short: "Show the machine data of sites",
		Long: `Show the machine data of sites. The rules of a site say which data it sends and
which of it the CO stores: see colony site data.`,
	}
	cmd.AddCommand(tail(env), history(env))
	return cmd
}

// maxMessages is how many messages the API gives at once.
const maxMessages = 1000

// A selection is what the flags of the data commands pick.
type selection struct {
	rule, since, until string
	json               bool
}

func (q *selection) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.rule, "rule", "", "only of this data rule")
	cmd.Flags().StringVar(&q.since, "since", "", "what the CO stored since then: a time (RFC 3339), or how long ago such as 15m, 12h or 7d")
	cmd.Flags().BoolVar(&q.json, "json", false, "one JSON object for each message, as -o json")
}

// values makes the query of the API; args are the site and, where given, the filter.
func (q *selection) values(args []string) (url.Values, error) {
	v := url.Values{}
	if len(args) > 1 {
		v.Set("topic", args[1])
	}
	if q.rule != "" {
		v.Set("rule", q.rule)
	}
	for name, text := range map[string]string{"since": q.since, "until": q.until} {
		if text == "" {
			continue
		}
		t, err := moment(text, time.Now())
		if err != nil {
			return nil, command.Usage(fmt.Errorf("--%s %w", name, err))
		}
		v.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
	return v, nil
}

// moment reads a time, or how long before now it was.
func moment(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	ago := text
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			ago = strconv.FormatUint(24*n, 10) + "h"
		}
	}
	d, err := time.ParseDuration(ago)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q: want a time such as 2026-01-31T08:00:00Z, or how long ago such as 15m, 12h or 7d", text)
	}
	return now.Add(-d), nil
}

func tail(env *command.Env) *cobra.Command {
	var q selection
	cmd := &cobra.Command{
		Use: "tail SITE [FILTER]", Short: "Follow the machine data of a site as it comes", Args: cobra.RangeArgs(1, 2),
		Long: `Follow the machine data of a site as it comes. FILTER is an MQTT topic filter below
colony/v1/SITE/data/, such as line/+/temperature or line/#.

A line has the time of arrival at the site, by the site's clock, the topic and the
payload; what is no text is shown in hexadecimal. When the connection to the CO
breaks it is made again: of rules that store their messages none is left out and
none comes twice. Messages of other rules come only while the connection lasts,
and after a fault of the link to the site one may come twice.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			values, err := q.values(args)
			if err != nil {
				return err
			}
			c, path := env.Client(), "/sites/"+url.PathEscape(args[0])
			var link sitedata.Link
			if err := c.Call(cmd.Context(), http.MethodGet, path+"/link", nil, &link); err != nil {
				return err
			}
			if !link.Online {
				fmt.Fprintf(env.Err, "site %s is offline: its data comes once it is back\n", args[0])
			}
			return command.UntilInterrupted(c.Follow(cmd.Context(), path+"/data/stream?"+values.Encode(), "", func(e client.ServerEvent) (bool, error) {
				return true, tailEvent(env, e, q.json)
			}))
		},
	}
	q.flags(cmd)
	return cmd
}

func tailEvent(env *command.Env, e client.ServerEvent, asJSON bool) error {
	switch e.Kind {
	case "message":
		var m sitedata.DataMessage
		if err := json.Unmarshal([]byte(e.Data), &m); err != nil {
			return fmt.Errorf("data stream: %w", err)
		}
		printMessage(env, m, asJSON)
	case "lost":
		var lost struct {
			Messages uint64 `json:"messages"`
		}
		if err := json.Unmarshal([]byte(e.Data), &lost); err != nil {
			return fmt.Errorf("data stream: %w", err)
		}
		fmt.Fprintf(env.Err, "%d messages are missing here: they came faster than they were read, and their rules do not store them\n", lost.Messages)
	}
	return nil
}

func history(env *command.Env) *cobra.Command {
	var q selection
	var limit int
	cmd := &cobra.Command{
		Use: "history SITE [FILTER]", Short: "Show the stored machine data of a site", Args: cobra.RangeArgs(1, 2),
		Long: `Show the messages that the CO stored of a site: those of rules with store, for as
long as the rule says. FILTER is an MQTT topic filter below colony/v1/SITE/data/.
The newest are shown, oldest first; with --limit 0 all.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 || limit > maxMessages {
				return command.Usage(fmt.Errorf("--limit %d: want 0 to %d", limit, maxMessages))
			}
			values, err := q.values(args)
			if err != nil {
				return err
			}
			values.Set("newest", strconv.FormatBool(limit > 0))
			values.Set("limit", strconv.Itoa(limit))
			if limit == 0 {
				values.Set("limit", strconv.Itoa(maxMessages))
			}
			for {
				var page sitedata.Messages
				path := "/sites/" + url.PathEscape(args[0]) + "/data?" + values.Encode()
				if err := env.Call(cmd.Context(), http.MethodGet, path, nil, &page); err != nil {
					return err
				}
				for _, m := range page.Items {
					printMessage(env, m, q.json)
				}
				if page.Next == "" {
					return nil
				}
				values.Set("after", page.Next)
			}
		},
	}
	q.flags(cmd)
	cmd.Flags().StringVar(&q.until, "until", "", "what the CO stored before then, as --since")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many messages, the newest; 0 for all")
	return cmd
}

// printMessage writes one message: a line, or a JSON or YAML document.
func printMessage(env *command.Env, m sitedata.DataMessage, asJSON bool) {
	switch {
	case asJSON || env.Format == "json":
		enc := json.NewEncoder(env.Out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(m)
	case env.Format == "yaml":
		fmt.Fprintln(env.Out, "---")
		_, _ = env.Machine(m)
	default:
		fmt.Fprintln(env.Out, messageLine(m))
	}
}

// messageLine is a message in one line, which no payload can break or colour.
func messageLine(m sitedata.DataMessage) string {
	at := strings.Repeat("-", len("2006-01-02 15:04:05.000"))
	if m.Time != nil {
		at = m.Time.Local().Format("2006-01-02 15:04:05.000")
		if m.Unsynced {
			at += " (not synchronised)"
		}
	}
	payload := "0x" + hex.EncodeToString(m.PayloadBase64)
	if m.Payload != nil {
		payload = printable(*m.Payload)
	}
	flag := ""
	if m.Retain {
		flag = "  (retained)"
	}
	return at + "  " + printable(m.Topic) + "  " + payload + flag
}

// printable quotes a text that a terminal would not show as it is.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && r != '\t' }) {
		return strconv.Quote(s)
	}
	return s
}
