// Package proposals has the commands about changes that wait to be confirmed.
package proposals

import (
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/proposals"
	"github.com/colonyfleet/colony/co/proposal"
)

// Command returns "colony proposal".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "proposal", Aliases: []string{"proposals"}, Short: "Show, confirm and withdraw changes that wait to be confirmed",
		Long: `A change of the deployments repo that would remove what runs, and that may not be
meant, is held: a commit that removes many deployments, a history that was replaced,
a file that is not read any more, a placement that no node matches. Everything else
of the commit proceeds. What is held stays as it was until a person confirms it here,
or by a later commit with the trailer "Colony-Confirm: ID". A commit that puts the
files back ends it.

A deployment that is deleted by its name (colony deployment delete) is never held.`,
	}
	cmd.AddCommand(list(env), show(env),
		decide(env, "confirm", "Agree to a proposal: the deployments that it holds are removed", "is confirmed: %d deployments are removed"),
		decide(env, "withdraw", "Refuse a proposal: the deployments that it holds stay, until the files are back or each is deleted by name",
			"is withdrawn: %d deployments stay as they are"))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use: "list", Short: "List the proposals that wait, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"limit": {"1000"}}
			if state != "all" {
				query.Set("state", state)
			}
			var answer form.List[proposal.Proposal]
			if err := env.Call(cmd.Context(), http.MethodGet, "/proposals?"+query.Encode(), nil, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer.Items); done {
				return err
			}
			var rows [][]string
			for _, p := range answer.Items {
				rows = append(rows, []string{
					p.ID, string(p.Kind), string(p.State), strconv.Itoa(p.Held), strconv.Itoa(p.Sites), strconv.Itoa(p.Nodes),
					fmt.Sprintf("%.12s", p.Commit), at(&p.OpenedAt), at(p.ClosedAt), p.ClosedBy,
				})
			}
			return env.Table("PROPOSAL KIND STATE HELD SITES PLACEMENTS COMMIT OPENED CLOSED BY", rows)
		},
	}
	cmd.Flags().StringVar(&state, "state", string(proposal.Open), "open, confirmed, superseded, withdrawn or all")
	return cmd
}

func at(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

func path(id string) string { return "/proposals/" + url.PathEscape(id) }

func show(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show PROPOSAL", Short: "Show what a proposal holds: deployments, and the nodes that run them", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p proposal.Proposal
			if err := env.Call(cmd.Context(), http.MethodGet, path(args[0]), nil, &p); err != nil {
				return err
			}
			if done, err := env.Machine(p); done {
				return err
			}
			if err := env.Fields("Proposal", p.ID, "Kind", string(p.Kind), "State", string(p.State), "Commit", p.Commit, "Opened", at(&p.OpenedAt),
				"Closed", at(p.ClosedAt), "By", p.ClosedBy,
				"Effects", fmt.Sprintf("%d deployments at %d sites, in %d places (a node counts for each deployment that it runs); %d wait", p.Deployments, p.Sites, p.Nodes, p.Held)); err != nil {
				return err
			}
			env.Printf("")
			var rows [][]string
			for _, e := range p.Effects {
				rows = append(rows, []string{
					string(e.Site), string(e.Deployment), strings.TrimSpace(e.App + " " + e.AppVersion), string(e.State), nodes(e), string(e.Cause),
				})
			}
			if err := env.Table("SITE DEPLOYMENT APP STATE NODES CAUSE", rows); err != nil {
				return err
			}
			if len(p.Effects) < p.Deployments {
				env.Printf("and %d more", p.Deployments-len(p.Effects))
			}
			return nil
		},
	}
}

// shownNodes bounds how many nodes of an effect are named.
const shownNodes = 5

// nodes names the nodes that run what an effect removes.
func nodes(e proposal.Effect) string {
	var names []string
	for _, n := range e.Nodes[:min(len(e.Nodes), shownNodes)] {
		names = append(names, string(n))
	}
	text := strings.Join(names, ",")
	if more := e.NodeCount - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func decide(env *command.Env, verb, short, outcome string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " PROPOSAL", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			decision := proposals.Decision{}
			if u, err := user.Current(); err == nil {
				decision.By = u.Username
			}
			var p proposal.Proposal
			if err := env.Call(cmd.Context(), http.MethodPost, path(args[0])+"/"+verb, decision, &p); err != nil {
				return err
			}
			if done, err := env.Machine(p); done {
				return err
			}
			env.Printf("proposal %s "+outcome, p.ID, p.Deployments)
			return nil
		},
	}
}

// AcceptPosition returns "colony site accept-position".
func AcceptPosition(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "accept-position SITE", Short: "Go on above the desired state that a site holds, however far ahead it is", Args: cobra.ExactArgs(1),
		Long: `A site follows only a desired state whose position (epoch and generation) is greater
than that of the one it holds. A CO that was restored goes on above its sites by itself,
up to 1,000 epochs: a position that is further ahead was not made by this CO, and an
event (desired_position_refused) asks for this command. The site then follows this CO.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var out api.AcceptedPosition
			if err := env.Call(cmd.Context(), http.MethodPost, "/sites/"+url.PathEscape(args[0])+"/accept-position", nil, &out); err != nil {
				return err
			}
			if done, err := env.Machine(out); done {
				return err
			}
			env.Printf("%s: the CO goes on at position %s", out.Site, out.Position)
			return nil
		},
	}
}
