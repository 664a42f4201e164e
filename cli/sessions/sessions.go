package sessions

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
)

// Command returns "colony session".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "session", Aliases: []string{"sessions"}, Short: "List, watch and end sessions with programs in containers, and play what they showed",
		Long: `A session is a program in a container that a person uses (colony exec). What it
shows is recorded; what is typed is not, but a terminal shows most of it.`,
	}
	cmd.AddCommand(list(env), show(env), end(env), play(env), join(env), recording(env))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	var site string
	var open bool
	cmd := &cobra.Command{
		Use: "list", Short: "List sessions, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if site != "" {
				query.Set("site", site)
			}
			if open {
				query.Set("open", "true")
			}
			sessions, err := client.List[fleet.Session](cmd.Context(), env.Client(), "/sessions", query)
			if err != nil {
				return err
			}
			if done, err := env.Machine(sessions); done {
				return err
			}
			var rows [][]string
			for i := range sessions {
				s := &sessions[i]
				rows = append(rows, []string{string(s.ID), where(s), strings.Join(s.Arguments, " "), s.Principal, output.At(&s.OpenedAt), output.At(s.EndedAt), outcome(s)})
			}
			return env.Table("ID CONTAINER PROGRAM BY OPENED ENDED REASON", rows)
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "only of this site")
	cmd.Flags().BoolVar(&open, "open", false, "only those that are open")
	return cmd
}

// where names the container of a session.
func where(s *fleet.Session) string {
	name := fmt.Sprintf("%s/%s/%s", s.Site, s.Node, s.Deployment)
	if s.Container != "" {
		name += "/" + s.Container
	}
	return name
}

// outcome says how a session ended.
func outcome(s *fleet.Session) string {
	if s.ExitCode != nil {
		return fmt.Sprintf("%s %d", s.Reason, *s.ExitCode)
	}
	return string(s.Reason)
}

func path(id string) string { return "/sessions/" + url.PathEscape(id) }

func show(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION", Short: "Show a session", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var s fleet.Session
			if err := env.Call(cmd.Context(), http.MethodGet, path(args[0]), nil, &s); err != nil {
				return err
			}
			if done, err := env.Machine(s); done {
				return err
			}
			return env.Fields("Session", string(s.ID), "Container", where(&s), "Component", s.Component, "Program", strings.Join(s.Arguments, " "), "Terminal", strconv.FormatBool(s.Terminal), "By", s.Principal,
				"Opened", output.At(&s.OpenedAt), "Began", output.At(s.BeganAt), "Ended", output.At(s.EndedAt), "Reason", outcome(&s), "Message", s.Message, "Ended by", s.StoppedBy,
				"Recording", output.Size(uint64(max(s.Recorded, 0))), "Digest", string(s.Digest))
		},
	}
}

func end(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "end SESSION", Short: "End a session: its program is hung up, and killed if it goes on", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Call(cmd.Context(), http.MethodDelete, path(args[0]), nil, nil); err != nil {
				return err
			}
			for {
				var s fleet.Session
				if err := env.Call(cmd.Context(), http.MethodGet, path(args[0]), nil, &s); err != nil {
					return err
				}
				if s.EndedAt != nil {
					env.Printf("session %s ended (%s)", s.ID, s.Reason)
					return nil
				}
				if err := retry.Sleep(cmd.Context(), time.Second); err != nil {
					return err
				}
			}
		},
	}
}

func recording(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "recording SESSION", Short: "Write the recording of a session, as asciicast v2", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Client().Download(cmd.Context(), path(args[0])+"/recording", func(r io.Reader) error {
				_, err := io.Copy(env.Out, r)
				return err
			})
		},
	}
}

func join(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "join SESSION", Short: "Watch an open session until it ends, or you press Ctrl-C", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return command.UntilInterrupted(env.Client().Download(cmd.Context(), path(args[0])+"/recording?follow=true", func(r io.Reader) error {
				return frames(r, func(_ time.Duration, text string) error {
					_, err := io.WriteString(env.Out, text)
					return err
				})
			}))
		},
	}
}

func play(env *command.Env) *cobra.Command {
	var speed float64
	var idle time.Duration
	cmd := &cobra.Command{
		Use: "play SESSION", Short: "Show what a session showed, in its time", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if speed <= 0 {
				return command.Usage(fmt.Errorf("--speed %v: want more than 0", speed))
			}
			return command.UntilInterrupted(env.Client().Download(cmd.Context(), path(args[0])+"/recording", func(r io.Reader) error {
				return frames(r, paced(cmd.Context(), env.Out, speed, idle))
			}))
		},
	}
	cmd.Flags().Float64Var(&speed, "speed", 1, "how many times faster than it was")
	cmd.Flags().DurationVar(&idle, "idle", 2*time.Second, "the longest time in which nothing is shown")
	return cmd
}

// paced writes what was shown after the time in which it was.
func paced(ctx context.Context, out io.Writer, speed float64, idle time.Duration) func(time.Duration, string) error {
	var last time.Duration
	return func(after time.Duration, text string) error {
		wait := min(time.Duration(float64(after-last)/speed), idle)
		last = after
		if err := retry.Sleep(ctx, max(wait, time.Nanosecond)); err != nil {
			return err
		}
		_, err := io.WriteString(out, text)
		return err
	}
}

// mostLine bounds a line of a recording.
const mostLine = 1 << 20

// frames calls each with what a recording shows.
func frames(r io.Reader, each func(after time.Duration, text string) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mostLine)
	for first := true; lines.Scan(); first = false {
		if first {
			continue
		}
		var e []json.RawMessage
		var after float64
		var kind, text string
		err := json.Unmarshal(lines.Bytes(), &e)
		if err == nil && len(e) != 3 {
			err = fmt.Errorf("%d parts", len(e))
		}
		for i, to := range []any{&after, &kind, &text} {
			if err == nil {
				err = json.Unmarshal(e[i], to)
			}
		}
		if err != nil {
			return fmt.Errorf("a line of the recording: %w", err)
		}
		if kind != "o" {
			continue
		}
		if err := each(time.Duration(after*float64(time.Second)), text); err != nil {
			return err
		}
	}
	return lines.Err()
}

// OfSite returns "colony site exec".
func OfSite(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exec", Short: "Say, or change by a commit, whether programs may be run in containers of a site",
		Long: `Without a word in the site's file no program is run in its containers by colony exec,
whatever the role of the person is. The file is in the deployments repo: exec below spec.`,
	}
	change := func(word, short string, allowed bool) *cobra.Command {
		return &cobra.Command{
			Use: word + " SITE", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				if err := env.Call(cmd.Context(), http.MethodPut, "/sites/"+url.PathEscape(args[0])+"/exec", map[string]bool{"allowed": allowed}, nil); err != nil {
					return err
				}
				env.Printf("programs in containers of site %s: %s", args[0], words[allowed])
				return nil
			},
		}
	}
	cmd.AddCommand(change("allow", "Allow that programs are run in containers of a site", true), change("refuse", "Refuse it", false), &cobra.Command{
		Use: "show SITE", Short: "Say whether programs may be run in containers of a site", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var e sitedata.Exec
			if err := env.Call(cmd.Context(), http.MethodGet, "/sites/"+url.PathEscape(args[0])+"/exec", nil, &e); err != nil {
				return err
			}
			if done, err := env.Machine(e); done {
				return err
			}
			return env.Fields("Programs in containers", words[e.Allowed], "Problem", e.Problem)
		},
	})
	return cmd
}

var words = map[bool]string{true: "allowed", false: "refused"}
