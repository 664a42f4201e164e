package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func (a *app) deploymentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "deployment", Aliases: []string{"deployments"}, Short: "Show, watch, roll back and delete deployments"}
	cmd.AddCommand(a.deploymentList(), a.deploymentShow(), a.deploymentWatch(), a.deploymentHistory(), a.deploymentRollback(), a.deploymentRetry(), a.deploymentDelete())
	return cmd
}

// deploymentPath returns the API path of the deployment that a user names as SITE/NAME.
func deploymentPath(arg string) (string, error) {
	return command.PairPath("/deployments", arg, "SITE/DEPLOYMENT")
}

func (a *app) deploymentList() *cobra.Command {
	var f *filters
	cmd := &cobra.Command{
		Use: "list", Short: "List the deployments", Args: cobra.NoArgs,
		Long: `List the deployments with what the CO knows of them. DESIRED is the version that the
deployments repo asks for and RUNNING what its nodes run. STATE is INSTALLED only
where the desired version runs on as many nodes as desired (NODES) and the site has
adopted the generation that last changed the deployment (ADOPTED: the site's, and that
one). SINCE is how long it is so. REPORTED is when the site last reported: while the site
is offline all of this is as of then. REASON names a node that is offline, and since when.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, done, err := filtered[fleet.Deployment](cmd.Context(), a, "/deployments", f)
			if done {
				return err
			}
			if done, err := a.Machine(all); done {
				return err
			}
			var rows [][]string
			for _, d := range all {
				rows = append(rows, []string{
					string(d.Site), string(d.Name), d.App, d.AppVersion, string(d.State), verdict.Nodes(d), running(d),
					adopted(d.ObservedGeneration, d.Generation), output.Age(d.Since), output.Age(d.ReportedAt), verdict.Shorten(d.Reason),
				})
			}
			return a.Table("SITE NAME APP DESIRED STATE NODES RUNNING ADOPTED SINCE REPORTED REASON", rows)
		},
	}
	f = deploymentFilters(cmd)
	return cmd
}

func (a *app) deploymentShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SITE/DEPLOYMENT", Short: "Show one deployment on each of its nodes", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			var d fleet.Deployment
			if err := a.Call(cmd.Context(), http.MethodGet, path, nil, &d); err != nil {
				return err
			}
			if done, err := a.Machine(d); done {
				return err
			}
			return a.showDeployment(d)
		},
	}
}

// adopted says which generation a site has adopted, and which it should.
func adopted(observed, desired uint64) string { return fmt.Sprintf("%d/%d", observed, desired) }

// running lists the versions that nodes run, with their number where there are several.
func running(d fleet.Deployment) string {
	if len(d.Running) == 1 {
		for version := range d.Running {
			return version
		}
	}
	return output.Pairs(d.Running)
}

// nextAttempt returns when the site tries again, by its clock; "" where it does not, and where the time has come but something is
// waited for, which the reason says.
func nextAttempt(n fleet.DeploymentNode) string {
	if n.RetryAt == nil || n.Waits != "" && n.RetryAt.Before(time.Now()) {
		return ""
	}
	return output.Reported(*n.RetryAt, false)
}

func (a *app) showDeployment(d fleet.Deployment) error {
	archived := ""
	if d.Archived {
		archived = "yes"
	}
	if err := a.Fields("Deployment", string(d.Site)+"/"+string(d.Name), "App", d.App+" "+d.AppVersion, "Profile", d.Profile,
		"State", string(d.State), "Since", output.Age(d.Since), "Reason", d.Reason, "Nodes", verdict.Nodes(d)+" run the desired version",
		"Running", running(d), "Generation", fmt.Sprintf("%d, the site has adopted %d", d.Generation, d.ObservedGeneration),
		"Site", output.OnOff(d.SiteOnline)+", last report "+output.Ago(d.ReportedAt), "Digest", d.Digest.Short(), "Commit", d.Commit, "Archived", archived, "Problem", d.Problem); err != nil {
		return err
	}
	var rows [][]string
	for _, n := range d.Nodes {
		why := strings.TrimSpace(string(n.Code) + " " + n.Message)
		if why != "" && n.Waits != "" {
			why += "; "
		}
		why += n.Waits
		rows = append(rows, []string{string(n.Node), string(n.State), string(n.Phase), n.AppVersion, n.Digest.Short(), n.RunningVersion, strconv.Itoa(int(n.Attempt)), nextAttempt(n), output.Age(&n.Since), output.Age(&n.UpdatedAt), why})
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.Out)
		if err := a.Table("NODE STATE PHASE VERSION DIGEST RUNNING ATTEMPT NEXT SINCE UPDATED REASON", rows); err != nil {
			return err
		}
	}
	rows = nil
	for _, n := range d.Nodes {
		for _, c := range n.Components {
			message := c.Message
			for _, p := range c.Ports { // which the node chose: they are shown only here
				message = strings.TrimSpace(fmt.Sprintf("%s port %d is %d of the node", message, p.Container, p.Host))
			}
			rows = append(rows, []string{string(n.Node), c.Component, c.Container, c.State, strconv.Itoa(int(c.ExitCode)), strconv.Itoa(int(c.Restarts)), message})
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.Out)
		if err := a.Table("NODE COMPONENT CONTAINER STATE EXIT RESTARTS MESSAGE", rows); err != nil {
			return err
		}
	}
	if text := verdict.Reasons(d.Rejected); text != "" {
		fmt.Fprintln(a.Out, "\nNot chosen:"+text)
	}
	return nil
}

func (a *app) deploymentWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch SITE/DEPLOYMENT", Short: "Follow a deployment live until interrupted", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			c := a.Client()
			var d fleet.Deployment
			if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &d); err != nil {
				return err
			}
			mark, err := lastEvent(cmd.Context(), c)
			if err != nil {
				return err
			}
			if a.Format == "table" {
				fmt.Fprintf(a.Out, "%s/%s: %s %s, %s\n", d.Site, d.Name, d.App, d.AppVersion, d.State)
			}
			query := url.Values{"site": {string(d.Site)}, "deployment": {string(d.Name)}}
			return command.UntilInterrupted(c.Events(cmd.Context(), query, mark, a.printEvent))
		},
	}
}

func (a *app) deploymentHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history SITE/DEPLOYMENT", Short: "Show its revisions in git and its transitions on each node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			var h api.History
			if err := a.Call(cmd.Context(), http.MethodGet, path+"/history", nil, &h); err != nil {
				return err
			}
			if done, err := a.Machine(h); done {
				return err
			}
			var rows [][]string
			for _, r := range h.Revisions {
				subject, _, _ := strings.Cut(r.Message, "\n")
				rows = append(rows, []string{fmt.Sprintf("%.12s", r.Commit), r.Time.Local().Format(time.DateTime), r.AppVersion, r.Author, subject})
			}
			if err := a.Table("COMMIT TIME VERSION AUTHOR MESSAGE", rows); err != nil {
				return err
			}
			fmt.Fprintln(a.Out)
			rows = nil
			for _, t := range h.Transitions {
				rows = append(rows, []string{t.Time.Local().Format(time.DateTime), string(t.Node), string(t.From), string(t.To), t.AppVersion, strings.TrimSpace(string(t.Code) + " " + t.Message)})
			}
			return a.Table("TIME NODE FROM TO VERSION REASON", rows)
		},
	}
}

func (a *app) deploymentRollback() *cobra.Command {
	var to string
	var wait bool
	var timeout, healthy time.Duration
	cmd := &cobra.Command{
		Use: "rollback SITE/DEPLOYMENT", Short: "Return to the newest revision before this one that did not fail on a node, or to the one that --to names", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			c := a.Client()
			mark, err := lastEvent(cmd.Context(), c)
			if err != nil {
				return err
			}
			body := map[string]string{}
			if to != "" {
				body["to"] = to
			}
			var before, d fleet.Deployment
			if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &before); err != nil {
				return err
			}
			if err := c.Call(cmd.Context(), http.MethodPost, path+"/rollback", body, &d); err != nil {
				return err
			}
			if wait {
				return a.waitInstalled(cmd.Context(), change{before: before, asked: d, mark: mark, healthy: healthy}, timeout)
			}
			if done, err := a.Machine(d); done {
				return err
			}
			fmt.Fprintf(a.Out, "%s/%s: back to %s %s, commit %.12s\n", d.Site, d.Name, d.App, d.AppVersion, d.Commit)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "commit to return to (see colony deployment history)")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it has been INSTALLED for --healthy-for")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	healthyFlag(cmd, &healthy)
	return cmd
}

func (a *app) deploymentRetry() *cobra.Command {
	return &cobra.Command{
		Use: "retry SITE/DEPLOYMENT", Short: "Try again a version that was given up", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			var d fleet.Deployment
			if err := a.Call(cmd.Context(), http.MethodPost, path+"/retry", struct{}{}, &d); err != nil {
				return err
			}
			if done, err := a.Machine(d); done {
				return err
			}
			fmt.Fprintf(a.Out, "%s/%s: %s %s is tried again, commit %.12s\n", d.Site, d.Name, d.App, d.AppVersion, d.Commit)
			return nil
		},
	}
}

func (a *app) deploymentDelete() *cobra.Command {
	var wait, volumes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "delete SITE/DEPLOYMENT", Short: "Remove a deployment from its site", Args: cobra.ExactArgs(1),
		Long: `Remove a deployment from its site. Its volumes outlive it on the nodes that ran it, and
a deployment of the same name finds them again, until the retention of the nodes is
over. With --volumes they are removed with it, and nothing brings them back.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := deploymentPath(args[0])
			if err != nil {
				return err
			}
			c := a.Client()
			mark, err := lastEvent(cmd.Context(), c)
			if err != nil {
				return err
			}
			target := path
			if volumes {
				target += "?volumes=true"
			}
			if err := c.Call(cmd.Context(), http.MethodDelete, target, nil, nil); err != nil {
				return err
			}
			if !wait {
				return a.removed(args[0], lifecycle.Deleting, "its removal is asked for: colony deployment show says what is left")
			}
			return a.waitDeleted(cmd, args[0], mark, timeout)
		},
	}
	cmd.Flags().BoolVar(&volumes, "volumes", false, "remove its volumes, too")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is removed from every node")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

func (a *app) waitDeleted(cmd *cobra.Command, arg string, mark int64, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	c := a.Client()
	path, err := deploymentPath(arg)
	if err != nil {
		return err
	}
	var reason string // as it was read last
	removed := func() bool {
		var d fleet.Deployment
		err := c.Call(ctx, http.MethodGet, path, nil, &d)
		if err == nil {
			reason = d.Reason
		}
		return client.IsNotFound(err) || err == nil && d.Archived
	}
	site, name, _ := strings.Cut(arg, "/")
	d := fleet.Deployment{Site: protocol.SiteID(site), Name: protocol.DeploymentName(name)}
	if err := a.followUntil(ctx, d, mark, removed); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return failure{fmt.Errorf("%s is not removed from every node after %s%s; see: colony deployment show %s", arg, timeout, because(reason), arg)}
		}
		return err
	}
	return a.removed(arg, lifecycle.Deleted, string(lifecycle.Deleted))
}

// removed answers a removal: the record of the deployment is no longer there to show.
func (a *app) removed(arg string, state lifecycle.State, text string) error {
	site, name, _ := strings.Cut(arg, "/")
	answer := map[string]string{"site": site, "name": name, "state": string(state)}
	if done, err := a.Machine(answer); done {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s: %s\n", arg, text)
	return err
}
