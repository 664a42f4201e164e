package removals

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
)

// Site returns "colony site remove".
func Site(env *command.Env) *cobra.Command {
	var force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "remove SITE", Short: "Remove a site that does not exist any more", Args: cobra.ExactArgs(1),
		Long: `Remove a site that does not exist any more, with its nodes. Its history stays, and the
name can be used again. A site that is online is refused, and so is one that has
deployments or rules of machine data; the refusal names them. With --force their files are
removed from the deployments repo, by one commit, and the site with them.

What the gateways run of a site that is removed and still exists goes on there. A site
whose LO connects again is one of the fleet once more, and nothing is removed from it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/sites/" + url.PathEscape(args[0])
			target := path
			if force {
				target += "?force=true"
			}
			var out api.SiteRemoval
			if err := env.Call(cmd.Context(), http.MethodDelete, target, nil, &out); err != nil {
				return err
			}
			if wait {
				if err := untilRemoved(cmd.Context(), env, path, timeout); err != nil {
					return err
				}
			}
			if done, err := env.Machine(out); done {
				return err
			}
			env.Printf("%s: removed, with %d nodes", args[0], out.Nodes)
			if len(out.Deployments) > 0 {
				env.Printf("removed from the deployments repo, and not from the gateways: %s", join(out.Deployments))
			}
			if out.DataRules {
				env.Printf("its data rules are removed from the deployments repo")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also where it has deployments or data rules: their files are removed from the deployments repo")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is removed")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// untilRemoved waits until a site is not there any more.
func untilRemoved(ctx context.Context, env *command.Env, path string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		var s fleet.Site
		if err := env.Call(ctx, http.MethodGet, path, nil, &s); client.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the site is there after %s: an event of the site (site_kept) says why, or the deployments repo cannot be read", timeout)
		}
	}
}
