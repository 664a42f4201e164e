// Package commands has the commands that ask nodes for something once, and those about what was asked.
package commands

import (
	"cmp"
	"context"
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
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	"github.com/colonyfleet/colony/co/fleet"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// Command returns "colony command".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "command", Aliases: []string{"commands"}, Short: "List, show and cancel what nodes were asked for",
		Long: `What an operator asks of nodes once, such as to restart a container, is a command: a node carries it out at
most once, and not after its deadline. See colony restart, colony probe, colony pull, colony node check and
colony node refresh.`,
	}
	cmd.AddCommand(list(env), show(env), results(env), cancel(env))
	return cmd
}

func path(id string) string { return "/commands/" + url.PathEscape(id) }

func list(env *command.Env) *cobra.Command {
	var site, kind, state, text string
	var since time.Duration
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List commands, the newest last", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"limit": {fmt.Sprint(limit)}}
			for name, value := range map[string]string{"site": site, "kind": kind, "state": state, "q": text} {
				if value != "" {
					query.Set(name, value)
				}
			}
			if since < 0 {
				return command.Usage(fmt.Errorf("--since %s: want a time that has passed, such as 24h", since))
			}
			if since > 0 {
				query.Set("since", time.Now().Add(-since).UTC().Format(time.RFC3339))
			}
			var page commandsapi.Commands
			if err := env.Call(cmd.Context(), http.MethodGet, "/commands?"+query.Encode(), nil, &page); err != nil {
				return err
			}
			if done, err := env.Machine(page.Items); done {
				return err
			}
			rows := make([][]string, len(page.Items))
			for i, c := range page.Items {
				rows[len(rows)-1-i] = []string{string(c.ID), output.Age(&c.CreatedAt), string(c.Kind), about(c), c.Actor, fmt.Sprint(c.SiteCount), c.State, became(&c)}
			}
			return env.Table("ID AGE KIND ABOUT WHO SITES STATE NODES", rows)
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "only those that this site was asked")
	cmd.Flags().StringVar(&kind, "kind", "", "only of this kind")
	cmd.Flags().StringVar(&state, "state", "", "only in this state: open or ended")
	cmd.Flags().StringVar(&text, "search", "", "only with this in the id, the arguments, or the name of the principal")
	cmd.Flags().DurationVar(&since, "since", 0, "only of so long ago until now, such as 24h")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most, the newest")
	var kinds []string
	for _, d := range wire.Definitions() {
		kinds = append(kinds, string(d.Kind))
	}
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{fleet.CommandStateOpen, fleet.CommandStateEnded}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// about names what a command is about.
func about(c fleet.Command) string {
	args, _ := c.Args.(map[string]any)
	var words []string
	for _, key := range []string{"deployment", "component", "container", "method", "target", "reason"} {
		if text, ok := args[key].(string); ok && text != "" {
			words = append(words, text)
		}
	}
	return strings.Join(words, " ")
}

// became says what became of a command: of its nodes, and of sites that refused it as a whole.
func became(c *fleet.Command) string {
	text := progress(c.Counts)
	if c.RefusedSites == 0 {
		return text
	}
	refused := fmt.Sprintf("refused (%s)", c.RefusedCode)
	if c.SiteCount > 1 {
		refused += fmt.Sprintf(" by %d sites", c.RefusedSites)
	}
	if text != "" {
		text += ", "
	}
	return text + refused
}

// progress counts the nodes in a few words.
func progress(n fleet.CommandCounts) string {
	var parts []string
	for _, p := range []struct {
		n    int
		word wire.State
	}{{n.Running, wire.Running}, {n.Done, wire.Done}, {n.Failed, wire.Failed}, {n.Refused, wire.Refused}, {n.Expired, wire.Expired}, {n.Unknown, wire.Unknown}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	if waiting := n.Nodes - n.Running - n.Ended(); waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", waiting))
	}
	return strings.Join(parts, ", ")
}

func show(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a command and its sites", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var c fleet.Command
			if err := env.Call(cmd.Context(), http.MethodGet, path(args[0]), nil, &c); err != nil {
				return err
			}
			if done, err := env.Machine(c); done {
				return err
			}
			if err := env.Fields("Command", string(c.ID), "Kind", string(c.Kind), "About", about(c), "Asked by", c.Actor, "Asked", output.Ago(&c.CreatedAt),
				"Deadline", c.Deadline.Local().Format(time.DateTime), "State", c.State, "Nodes", progress(c.Counts)); err != nil {
				return err
			}
			env.Printf("")
			rows := make([][]string, len(c.Sites))
			for i := range c.Sites {
				s := &c.Sites[i]
				said := s.Message
				if s.CancelledAt != nil {
					said = strings.TrimSpace("cancelled " + output.Ago(s.CancelledAt) + " " + said)
				}
				rows[i] = []string{string(s.Site), meant(s.CommandTarget), s.State, output.Age(s.ReceivedAt), progress(s.Counts), said}
			}
			return env.Table("SITE MEANT STATE RECEIVED NODES MESSAGE", rows)
		},
	}
}

// meant says in a few words which nodes are.
func meant(t fleet.CommandTarget) string {
	const most = 3
	switch {
	case t.All:
		return "all"
	case len(t.Selector) > 0:
		return output.Pairs(t.Selector)
	case len(t.Nodes) > most:
		return fmt.Sprintf("%d nodes", len(t.Nodes))
	}
	var names []string
	for _, n := range t.Nodes {
		names = append(names, string(n))
	}
	return strings.Join(names, ",")
}

func results(env *command.Env) *cobra.Command {
	var site, state string
	cmd := &cobra.Command{
		Use: "results ID", Short: "Show what became of a command on each node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"limit": {"1000"}}
			for name, value := range map[string]string{"site": site, "state": state} {
				if value != "" {
					query.Set(name, value)
				}
			}
			all, err := client.List[fleet.CommandResult](cmd.Context(), env.Client(), path(args[0])+"/results", query)
			if err != nil {
				return err
			}
			if done, err := env.Machine(all); done {
				return err
			}
			for i := range all {
				printResult(env, &all[i])
			}
			if len(all) == 0 {
				fmt.Fprintln(env.Err, "no node has reported yet: colony command show "+args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "only of this site")
	cmd.Flags().StringVar(&state, "state", "", "only in this state: running, done, failed, refused, expired or unknown")
	return cmd
}

// printResult writes a result for people: a line, and what the command gave below it.
func printResult(env *command.Env, r *fleet.CommandResult) {
	text := string(r.State)
	if r.Code != "" {
		text += " (" + string(r.Code) + ")"
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	if r.Duration > 0 {
		text += fmt.Sprintf(" (%s)", time.Duration(r.Duration)*time.Millisecond)
	}
	switch r.By {
	case fleet.ByLO:
		text += " [says the LO, as the node did not answer]"
	case fleet.ByCO:
		text += " [says the CO, as the site did not answer]"
	}
	env.Printf("%s/%s: %s", r.Site, r.Node, text)
	for line := range strings.Lines(r.Output) {
		env.Printf("  %s", strings.TrimRight(line, "\r\n"))
	}
	if r.Cut {
		env.Printf("  ... (it gave more)")
	}
}

func cancel(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Cancel a command: what has not begun does not begin", Args: cobra.ExactArgs(1),
		Long: `Cancel a command. A node that has begun goes on, and its result comes; one that has not, does not begin.
A site without a link to the CO learns of it once the link is back, if that is before the deadline.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var c fleet.Command
			if err := env.Call(cmd.Context(), http.MethodDelete, path(args[0]), nil, &c); err != nil {
				return err
			}
			if done, err := env.Machine(c); done {
				return err
			}
			env.Printf("%s: cancelled; %s", c.ID, cmp.Or(progress(c.Counts), "no node had begun"))
			return nil
		},
	}
}

// An asking is a command that is to be made, with how to wait for it.
type asking struct {
	nodes    []string
	selector map[string]string
	all      bool
	deadline time.Duration
	noWait   bool
	timeout  time.Duration
}

const (
	defaultDeadline = 10 * time.Minute
	// pollEvery is how often the CO is asked what became of a command.
	pollEvery = time.Second
	// sayAfter is after how many of these a user learns that the site has not received the command.
	sayAfter = 5
)

// waits adds the flags about waiting.
func (o *asking) waits(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().DurationVar(&o.deadline, "deadline", defaultDeadline, "for how long it may begin on a node; at most 24h")
	cmd.Flags().BoolVar(&o.noWait, "no-wait", false, "do not wait for the results: print the id of the command")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long to wait for the results")
	return cmd
}

// chooses adds the flags about nodes.
func (o *asking) chooses(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringSliceVar(&o.nodes, "node", nil, "only on this node; several are separated by commas (default each that has the deployment)")
	cmd.Flags().StringToStringVar(&o.selector, "selector", nil, "on nodes with these labels, as key=value; several are separated by commas")
	cmd.Flags().BoolVar(&o.all, "all", false, "on every node of the site")
	return o.waits(cmd)
}

// ask makes a command at a site, and waits for its outcome.
func (o *asking) ask(ctx context.Context, env *command.Env, kind wire.Kind, args any, site string) error {
	if o.deadline < time.Second || o.timeout <= 0 {
		return command.Usage(fmt.Errorf("--deadline %s, --timeout %s: want one second or more", o.deadline, o.timeout))
	}
	request := commandsapi.Request{
		Kind: string(kind), Args: args, Deadline: o.deadline.String(),
		Targets: []commandsapi.Target{{Site: site, Nodes: o.nodes, Selector: o.selector, All: o.all}},
	}
	var made fleet.Command
	if err := env.Call(ctx, http.MethodPost, "/commands", request, &made); err != nil {
		return err
	}
	if o.noWait {
		if done, err := env.Machine(made); done {
			return err
		}
		env.Printf("%s", made.ID)
		return nil
	}
	return o.wait(ctx, env, made)
}

// wait prints the results as they come, until the command has ended.
func (o *asking) wait(ctx context.Context, env *command.Env, c fleet.Command) error {
	people := env.Format == "table"
	late := time.NewTimer(o.timeout)
	defer late.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	shown, seen := map[string]bool{}, fleet.CommandCounts{Nodes: -1}
	for looks := 0; ; {
		if people && c.Counts.Ended() != seen.Ended() {
			if err := showNew(ctx, env, c, shown); err != nil {
				return o.left(env, c, err)
			}
		}
		seen = c.Counts
		if c.State == fleet.CommandStateEnded {
			break
		}
		if looks++; looks == sayAfter && people && c.Sites[0].State == fleet.CommandWaiting {
			fmt.Fprintf(env.Err, "site %s has not received the command yet; it may begin until %s\n", c.Sites[0].Site, c.Deadline.Local().Format(time.TimeOnly))
		}
		select {
		case <-ctx.Done():
			return o.left(env, c, ctx.Err())
		case <-late.C:
			return o.left(env, c, command.Fail(fmt.Errorf("command %s has not ended within %s", c.ID, o.timeout)))
		case <-ticker.C:
		}
		if err := env.Call(ctx, http.MethodGet, path(string(c.ID)), nil, &c); err != nil {
			return o.left(env, c, err)
		}
	}
	if !people {
		all, err := client.List[fleet.CommandResult](ctx, env.Client(), path(string(c.ID))+"/results", url.Values{"limit": {"1000"}})
		if err != nil {
			return err
		}
		if _, err := env.Machine(struct {
			fleet.Command
			Results []fleet.CommandResult `json:"results"`
		}{c, all}); err != nil {
			return err
		}
	}
	return outcome(c)
}

// left says beside an error how to find out the outcome of the command.
func (o *asking) left(env *command.Env, c fleet.Command, err error) error {
	fmt.Fprintf(env.Err, "the command goes on: colony command results %s shows its results, colony command cancel %s cancels it\n", c.ID, c.ID)
	return err
}

// showNew prints the ends that were not shown.
func showNew(ctx context.Context, env *command.Env, c fleet.Command, shown map[string]bool) error {
	all, err := client.List[fleet.CommandResult](ctx, env.Client(), path(string(c.ID))+"/results", url.Values{"limit": {"1000"}})
	if err != nil {
		return err
	}
	for i := range all {
		if key := string(all[i].Site) + "/" + string(all[i].Node); all[i].State.Ended() && !shown[key] {
			shown[key] = true
			printResult(env, &all[i])
		}
	}
	return nil
}

// outcome is nil where each node has done what was asked.
func outcome(c fleet.Command) error {
	for i := range c.Sites {
		if s := &c.Sites[i]; s.State == fleet.CommandRefused {
			return command.Fail(fmt.Errorf("site %s refuses the command (%s): %s", s.Site, s.Code, s.Message))
		} else if s.State == fleet.CommandExpired || s.State == fleet.CommandCancelled {
			return command.Fail(fmt.Errorf("the command is %s at site %s: %s", s.State, s.Site, cmp.Or(progress(s.Counts), "no node has reported")))
		}
	}
	if c.Counts.Done < c.Counts.Nodes || c.Counts.Nodes == 0 {
		return command.Fail(fmt.Errorf("not done on all nodes: %s", cmp.Or(progress(c.Counts), "none is meant")))
	}
	return nil
}

// subject returns a command about a deployment.
func subject(env *command.Env, kind wire.Kind, use, short, long string) *cobra.Command {
	var o asking
	var component, container string
	cmd := o.chooses(&cobra.Command{
		Use: use + " SITE/DEPLOYMENT", Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			site, name, err := command.Pair(args[0], "SITE/DEPLOYMENT")
			if err != nil {
				return err
			}
			about := map[string]string{"deployment": name, "component": component, "container": container}
			maps.DeleteFunc(about, func(_, v string) bool { return v == "" })
			return o.ask(cmd.Context(), env, kind, about, site)
		},
	})
	cmd.Flags().StringVar(&component, "component", "", "only this component")
	cmd.Flags().StringVar(&container, "container", "", "only this container of it, the service of a Compose file")
	return cmd
}

// Restart returns "colony restart".
func Restart(env *command.Env) *cobra.Command {
	return subject(env, wire.Restart, "restart", "Restart the containers of a deployment, or one of them",
		`Restart the containers of a deployment once, on each node that has it, on some, or on one. What is to run, and
in which version, stays as it is. The exit code is 0 where each node did it, and 6 otherwise.`)
}

// Probe returns "colony probe".
func Probe(env *command.Env) *cobra.Command {
	return subject(env, wire.Probe, "probe", "Run the health checks of a deployment now, and show what they answer", "")
}

// Pull returns "colony pull".
func Pull(env *command.Env) *cobra.Command {
	return subject(env, wire.Pull, "pull", "Pull the images of a deployment now, before it needs them", "")
}

// NodeCheck returns "colony node check".
func NodeCheck(env *command.Env) *cobra.Command {
	var o asking
	var count int
	methods := []string{string(wire.Resolve), string(wire.Connect), string(wire.Ping)}
	cmd := o.waits(&cobra.Command{
		Use: "check SITE/NODE dns|tcp|ping TARGET", Short: "Try to reach an address from a node", Args: cobra.ExactArgs(3),
		Long: `Try to reach an address from a node: look a name up (dns), open a connection (tcp, with HOST:PORT), or send
ICMP echoes (ping).`,
		RunE: func(cmd *cobra.Command, args []string) error {
			site, node, err := command.Pair(args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			if !slices.Contains(methods, args[1]) {
				return command.Usage(fmt.Errorf("%q: want %s", args[1], strings.Join(methods, ", ")))
			}
			if count < 1 || count > 10 {
				return command.Usage(fmt.Errorf("--count %d: want 1 to 10", count))
			}
			o.nodes = []string{node}
			return o.ask(cmd.Context(), env, wire.Check, map[string]any{"method": args[1], "target": args[2], "count": count}, site)
		},
	})
	cmd.Flags().IntVar(&count, "count", 1, "how often to try, at most 10")
	return cmd
}

// NodeRefresh returns "colony node refresh".
func NodeRefresh(env *command.Env) *cobra.Command {
	var o asking
	return o.waits(&cobra.Command{
		Use: "refresh SITE/NODE", Short: "Have a node look at its machine again, and report it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			site, node, err := command.Pair(args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			o.nodes = []string{node}
			return o.ask(cmd.Context(), env, wire.Inventory, nil, site)
		},
	})
}
