// Package removals has the commands that remove by name what no file of the deployments repo
// names: volumes that outlived their deployments, nodes and sites.
package removals

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// Volumes returns "colony volume".
func Volumes(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Aliases: []string{"volumes"}, Short: "Show and remove volumes that outlived their deployments",
		Long: `The volumes of a deployment outlive it on the nodes that ran it: a deployment of the
same name finds them again, until the retention of the node is over (volumeRetention in
its configuration). These commands show them, and remove them before.`,
	}
	cmd.AddCommand(listVolumes(env), purgeVolumes(env))
	return cmd
}

func listVolumes(env *command.Env) *cobra.Command {
	var deployment string
	cmd := &cobra.Command{
		Use: "list SITE[/NODE]", Short: "List the volumes of a site, or of a node, that outlived their deployments", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			site, node, _ := strings.Cut(args[0], "/")
			if site == "" || strings.Contains(node, "/") {
				return command.Usage(fmt.Errorf("%q: want SITE or SITE/NODE", args[0]))
			}
			query := url.Values{}
			if node != "" {
				query.Set("node", node)
			}
			if deployment != "" {
				query.Set("deployment", deployment)
			}
			path := "/sites/" + url.PathEscape(site) + "/volumes"
			if len(query) > 0 {
				path += "?" + query.Encode()
			}
			var answer api.KeptVolumes
			if err := env.Call(cmd.Context(), http.MethodGet, path, nil, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer); done {
				return err
			}
			if err := env.Table("NODE DEPLOYMENT VOLUME SIZE KEPT-SINCE STATE", rowsOf(env, answer.Items)); err != nil {
				return err
			}
			if answer.More > 0 {
				env.Printf("and %d more, which the nodes do not name", answer.More)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&deployment, "deployment", "", "only volumes of this deployment")
	return cmd
}

func rowsOf(env *command.Env, list []fleet.KeptVolume) [][]string {
	var rows [][]string
	for _, v := range list {
		state := "kept"
		if v.Purging {
			state = "being removed"
			if v.NodeState != fleet.NodeOnline {
				state += " once the node is back"
			}
		}
		removed := ""
		if v.RemovedAt != nil {
			removed = output.Reported(*v.RemovedAt, v.Unsynced)
		}
		rows = append(rows, []string{string(v.Node), string(v.Deployment), v.Volume, output.Size(v.Bytes), removed, state})
	}
	return rows
}

// A purge is what "colony volume purge" asks for.
type purge struct {
	path, node, deployment, volume string
}

func parsePurge(node, of string, all bool) (p purge, err error) {
	path, err := command.PairPath("/nodes", node, "SITE/NODE")
	if err != nil {
		return p, err
	}
	deployment, volume, one := strings.Cut(of, "/")
	switch {
	case deployment == "" || one && volume == "":
		return p, fmt.Errorf("%q: want DEPLOYMENT/VOLUME, or DEPLOYMENT with --all", of)
	case !one && !all:
		return p, fmt.Errorf("%q names no volume: want DEPLOYMENT/VOLUME, or --all for all volumes of the deployment", of)
	case one && all:
		return p, errors.New("--all goes with DEPLOYMENT, not with one volume")
	}
	p = purge{node: node, deployment: deployment, volume: volume}
	p.path = path + "/volumes/" + url.PathEscape(deployment)
	if one {
		p.path += "?volume=" + url.QueryEscape(volume)
	}
	return p, nil
}

func purgeVolumes(env *command.Env) *cobra.Command {
	var all, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "purge SITE/NODE DEPLOYMENT[/VOLUME]", Short: "Remove volumes that outlived their deployment from a node", Args: cobra.ExactArgs(2),
		Long: `Remove one volume that outlived its deployment from a node, or with --all all that the
node has of a deployment. Nothing brings them back. A node that is away removes them
once it is back. A volume of a deployment that is deployed again before stays.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := parsePurge(args[0], args[1], all)
			if err != nil {
				return command.Usage(err)
			}
			var asked api.KeptVolumes
			if err := env.Call(cmd.Context(), http.MethodDelete, p.path, nil, &asked); err != nil {
				return err
			}
			if wait {
				if err := p.wait(cmd.Context(), env, timeout); err != nil {
					return err
				}
			}
			if done, err := env.Machine(asked); done {
				return err
			}
			outcome := "the node is asked to remove it"
			if wait {
				outcome = "removed"
			}
			for _, v := range asked.Items {
				env.Printf("%s/%s: volume %s of %s: %s", v.Site, v.Node, v.Volume, v.Deployment, outcome)
			}
			if len(asked.Items) == 0 {
				env.Printf("%s keeps more volumes than it names: it is asked to remove %s, if it has that", p.node, args[1])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all volumes of the deployment")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the node reports that they are removed")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

// inUse returns an error where the node does not keep the volumes any more because it has
// the deployment once more: the purge is void then.
func (p purge) inUse(ctx context.Context, env *command.Env, site, node string) error {
	var d fleet.Deployment
	err := env.Call(ctx, http.MethodGet, "/deployments/"+url.PathEscape(site)+"/"+url.PathEscape(p.deployment), nil, &d)
	if client.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range d.Nodes {
		if string(n.Node) == node && n.State != lifecycle.Deleted && !d.Archived {
			return fmt.Errorf("%s runs %s once more, so that the volumes are in use and stay", p.node, p.deployment)
		}
	}
	return nil
}

// wait waits until the node reports that it keeps the volumes no more, and has removed them.
func (p purge) wait(ctx context.Context, env *command.Env, timeout time.Duration) error {
	site, node, _ := strings.Cut(p.node, "/")
	query := url.Values{"node": {node}, "deployment": {p.deployment}}
	left := 0
	err := until(ctx, timeout, time.Second, func(ctx context.Context) (bool, error) {
		var answer api.KeptVolumes
		if err := env.Call(ctx, http.MethodGet, "/sites/"+url.PathEscape(site)+"/volumes?"+query.Encode(), nil, &answer); err != nil {
			return false, err
		}
		left = 0
		for _, v := range answer.Items {
			if p.volume == "" || v.Volume == p.volume {
				left++
			}
		}
		return left == 0, nil
	})
	if err == nil {
		err = p.inUse(ctx, env, site, node)
	}
	if errors.Is(err, errLate) {
		return fmt.Errorf("%s has %d of the volumes after %s: it removes them once it is online; see: colony volume list %s", p.node, left, timeout, p.node)
	}
	return err
}
