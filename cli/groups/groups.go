// Package groups has the commands about groups of sites.
package groups

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/sitegroups"
)

// Command returns "colony group".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "group", Aliases: []string{"groups"}, Short: "List and change groups of sites, which tokens and roles of people name",
		Long: `A group is sites under one name: a token (colony token create --site @NAME) or the role of a group
of people (access.oidc.roles of the CO) holds for the sites that the group has now. A change
counts within seconds at each replica of the CO, and ends streams that were open with the
sites of before. It needs an administrator of the whole fleet.`,
	}
	cmd.AddCommand(list(env), set(env), remove(env))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the groups of sites", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var out sitegroups.Groups
			if err := env.Call(cmd.Context(), http.MethodGet, "/site-groups", nil, &out); err != nil {
				return err
			}
			if done, err := env.Machine(out.Items); done {
				return err
			}
			var rows [][]string
			for _, g := range out.Items {
				rows = append(rows, []string{g.Name, strings.Join(g.Sites, ",")})
			}
			return env.Table("NAME SITES", rows)
		},
	}
}

func path(name string) string { return "/site-groups/" + url.PathEscape(strings.TrimPrefix(name, "@")) }

func set(env *command.Env) *cobra.Command {
	var sites []string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Make a group of sites, or give it others", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var out access.SiteGroup
			body := map[string]any{"sites": append([]string{}, sites...)}
			if err := env.Call(cmd.Context(), http.MethodPut, path(args[0]), body, &out); err != nil {
				return err
			}
			if done, err := env.Machine(out); done {
				return err
			}
			env.Printf("group %s: %s", out.Name, strings.Join(out.Sites, ", "))
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&sites, "site", nil, "a site of the group, or how names of sites begin with a * after it, as 'plant-*'; several are separated by commas (required)")
	_ = cmd.MarkFlagRequired("site")
	return cmd
}

func remove(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a group of sites", Args: cobra.ExactArgs(1),
		Long: `Remove a group of sites. What names it holds for no site of it any more, until there is a group of
that name again.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Call(cmd.Context(), http.MethodDelete, path(args[0]), nil, nil); err != nil {
				return err
			}
			env.Printf("group %s: removed", strings.TrimPrefix(args[0], "@"))
			return nil
		},
	}
}
