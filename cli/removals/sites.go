package removals

import (
	"context"
	"errors"
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
	var f flags
	return f.add(&cobra.Command{
		Use: "remove SITE", Short: "Remove a site that does not exist any more", Args: cobra.ExactArgs(1),
		Long: `Remove a site that does not exist any more, with its nodes. Its history stays, and the
name can be used again. A site that is online is refused, and so is one that has
deployments or rules of machine data; the refusal names them. With --force their files are
removed from the deployments repo, by one commit, and the site with them.

What the gateways run of a site that is removed and still exists goes on there. The keys of
its LO and its nodes are revoked: to come back each needs another one, as "colony site revoke
--help" says. Then, and where machines have no certificates, it is a site of the fleet once
more, and nothing is removed from it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/sites/" + url.PathEscape(args[0])
			var out api.SiteRemoval
			if printed, err := f.remove(cmd.Context(), env, path, &out, untilRemoved); printed || err != nil {
				return err
			}
			outcome := "is removed once the deployments repo was read, unless an event (site_kept) says why not"
			if f.wait {
				outcome = "removed"
			}
			env.Printf("%s: %s, with %d nodes", args[0], outcome, out.Nodes)
			if len(out.Deployments) > 0 {
				env.Printf("removed from the deployments repo, and not from the gateways: %s", join(out.Deployments))
			}
			if out.DataRules {
				env.Printf("its data rules are removed from the deployments repo")
			}
			return nil
		},
	}, "also where it has deployments or data rules: their files are removed from the deployments repo",
		"wait until it is removed", time.Minute)
}

// untilRemoved waits until a site is not there any more.
func untilRemoved(ctx context.Context, env *command.Env, path string, timeout time.Duration) error {
	err := until(ctx, timeout, 200*time.Millisecond, func(ctx context.Context) (bool, error) {
		var s fleet.Site
		err := env.Call(ctx, http.MethodGet, path, nil, &s)
		if client.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if errors.Is(err, errLate) {
		return fmt.Errorf("the site is there after %s: an event of the site (site_kept) says why, or the deployments repo cannot be read", timeout)
	}
	return err
}
