package removals

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// Node returns "colony node remove".
func Node(env *command.Env) *cobra.Command {
	var f flags
	return f.add(&cobra.Command{
		Use: "remove SITE/NODE", Short: "Remove a node that does not exist any more", Args: cobra.ExactArgs(1),
		Long: `Remove a node that does not exist any more: its site forgets it, and the CO with it.
Its history stays. A node that is online is refused, and so is one that runs deployments, or
on which some are placed by its name; the refusal names them. With --force it is removed all
the same: its replicas are placed on other nodes, where some match.

What a gateway runs that is removed and still exists goes on there. Its key is revoked: it
is refused when it connects again until it has another key, as "colony node revoke --help"
says. Then, and where machines have no certificates, it is a node of the site once more,
with what it holds: an event (node_returned) and "colony node show" say so.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := command.PairPath("/nodes", args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			var out api.NodeRemoval
			if printed, err := f.remove(cmd.Context(), env, path, &out, untilForgotten); printed || err != nil {
				return err
			}
			outcome := "removed once its site has the next desired state"
			if f.wait {
				outcome = "removed"
			}
			env.Printf("%s: %s", args[0], outcome)
			if len(out.Runs) > 0 {
				env.Printf("it ran %s: replicas are placed on other nodes, where some match", join(out.Runs))
			}
			if len(out.Named) > 0 {
				env.Printf("placed on it by its name: %s, which waits for a node of this name until it is changed", join(out.Named))
			}
			return nil
		},
	}, "also where deployments run there, or are placed on it by its name",
		"wait until the site has forgotten it", 5*time.Minute)
}

func join(names []protocol.DeploymentName) string {
	text := make([]string, len(names))
	for i, n := range names {
		text[i] = string(n)
	}
	return strings.Join(text, ", ")
}

// untilForgotten waits until a node is not there any more.
func untilForgotten(ctx context.Context, env *command.Env, path string, timeout time.Duration) error {
	err := until(ctx, timeout, time.Second, func(ctx context.Context) (bool, error) {
		var n fleet.Node
		err := env.Call(ctx, http.MethodGet, path, nil, &n)
		switch d := n.Decommissioning; {
		case client.IsNotFound(err):
			return true, nil
		case err != nil:
			return false, err
		case d != nil && d.Refused != "":
			return false, errors.New("the site keeps the node: " + d.Refused)
		}
		return false, nil
	})
	if errors.Is(err, errLate) {
		return fmt.Errorf("the site has not forgotten the node after %s: it does once it is online", timeout)
	}
	return err
}
