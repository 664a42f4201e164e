package cli

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
)

const (
	// completeWait is how long a shell waits for the CO.
	completeWait = 2 * time.Second
	// completeMost bounds what is offered.
	completeMost = "100"
)

// offers lists the CO's values for an argument, by the name that help gives it; typed is the part
// that is typed already.
var offers = map[string]func(a *app, ctx context.Context, typed string) ([]string, error){
	"SITE": func(a *app, ctx context.Context, typed string) ([]string, error) {
		return offered(ctx, a, "/sites", typed, func(v fleet.Site) []string { return []string{string(v.ID)} })
	},
	"SITE/NODE": func(a *app, ctx context.Context, typed string) ([]string, error) {
		return offered(ctx, a, "/nodes", typed, func(v fleet.Node) []string { return []string{string(v.Site) + "/" + string(v.ID)} })
	},
	"SITE/DEPLOYMENT": func(a *app, ctx context.Context, typed string) ([]string, error) {
		return offered(ctx, a, "/deployments", typed, func(v fleet.Deployment) []string { return []string{string(v.Site) + "/" + string(v.Name)} })
	},
	"APP@VERSION": func(a *app, ctx context.Context, _ string) ([]string, error) {
		return offered(ctx, a, "/apps", "", func(v fleet.App) (ids []string) {
			for _, version := range v.Versions {
				ids = append(ids, v.ID+"@"+version)
			}
			return ids
		})
	},
	"FLEET": func(a *app, ctx context.Context, _ string) ([]string, error) {
		return offered(ctx, a, "/fleet-deployments", "", func(v rollouts.FleetSummary) []string { return []string{string(v.Name)} })
	},
	"PROPOSAL": func(a *app, ctx context.Context, _ string) ([]string, error) {
		return offered(ctx, a, "/proposals", "", func(v proposal.Proposal) []string { return []string{v.ID} })
	},
	"REPOSITORY:TAG": func(a *app, ctx context.Context, _ string) ([]string, error) {
		return offered(ctx, a, "/images", "", func(v images.Image) []string {
			if v.Tag == "" {
				return nil
			}
			return []string{v.Repository + ":" + v.Tag}
		})
	},
}

// offered reads the first page of a list, of what has typed in its id, and returns the ids.
func offered[T any](ctx context.Context, a *app, path, typed string, ids func(T) []string) (out []string, err error) {
	query := url.Values{"limit": {completeMost}}
	if typed != "" {
		query.Set("q", typed)
	}
	var page form.List[T]
	if err := a.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
		return nil, err
	}
	for _, v := range page.Items {
		out = append(out, ids(v)...)
	}
	return out, nil
}

// complete has the shell offer what the CO has, for the first argument of each command whose
// help names it so, and for the flag --site.
func (a *app) complete(cmd *cobra.Command) {
	if fields := strings.Fields(cmd.Use); len(fields) > 1 && cmd.ValidArgsFunction == nil {
		kind, _, _ := strings.Cut(strings.NewReplacer("[/NODE]", "", "[", "", "]", "").Replace(fields[1]), "|")
		if offer := offers[kind]; offer != nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return a.offer(cmd, offer, typed)
			}
		}
	}
	if cmd.LocalFlags().Lookup("site") != nil {
		_ = cmd.RegisterFlagCompletionFunc("site", func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return a.offer(cmd, offers["SITE"], typed)
		})
	}
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
}

// offer asks the CO; where it does not answer, nothing is offered.
func (a *app) offer(cmd *cobra.Command, list func(*app, context.Context, string) ([]string, error), typed string) (found []string, d cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWait)
	defer cancel()
	var all []string
	err := a.resolve(cmd)
	if err == nil {
		all, err = list(a, ctx, typed)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	for _, id := range all {
		if strings.HasPrefix(id, typed) {
			found = append(found, id)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
