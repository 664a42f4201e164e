// Package images has the commands that show and remove what the CO's own registry holds.
package images

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/registry/graph"
)

// Command returns "colony image".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Aliases: []string{"images"}, Short: "Show and remove the images of the CO's registry",
		Long: `The CO's own registry holds container images, Compose archives and application packages.
These commands show them and their users, and remove those that are not in use.`,
	}
	cmd.AddCommand(list(env), uses(env), remove(env))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list [REPOSITORY]", Short: "List the images, archives and packages of the CO's registry", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if len(args) > 0 {
				query.Set("repository", args[0])
			}
			all, err := client.List[images.Image](cmd.Context(), env.Client(), "/images", query)
			if err != nil {
				return err
			}
			if done, err := env.Machine(all); done {
				return err
			}
			var rows [][]string
			for _, i := range all {
				state := ""
				if i.RemovedAt != nil {
					state = "removed " + output.Age(i.RemovedAt) + " ago"
				}
				rows = append(rows, []string{i.Repository, i.Tag, string(i.Digest), output.Size(uint64(max(i.Bytes, 0))), i.Kind, state})
			}
			return env.Table("REPOSITORY TAG DIGEST SIZE KIND STATE", rows)
		},
	}
}

func at(path, image string) string { return path + "?image=" + url.QueryEscape(image) }

func uses(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "uses REPOSITORY:TAG|REPOSITORY@DIGEST", Short: "Show the users of an image of the CO's registry", Args: cobra.ExactArgs(1),
		Long: `Show which deployments, nodes, and versions of applications need an image, a Compose
archive or a package of the CO's registry. Where another tag names the same image, only
those count that use this tag.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer images.Uses
			if err := env.Call(cmd.Context(), http.MethodGet, at("/images/uses", args[0]), nil, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer); done {
				return err
			}
			var rows [][]string
			for _, u := range answer.Uses {
				rows = append(rows, []string{u.Kind, u.Name, u.Needs})
			}
			return env.Table("USED-BY NAME NEEDS", rows)
		},
	}
}

func remove(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "remove REPOSITORY:TAG|REPOSITORY@DIGEST", Short: "Remove an image from the CO's registry", Args: cobra.ExactArgs(1),
		Long: `Remove a tag, or a digest with all its tags, from the CO's registry: a container image, a
Compose archive or a package. What a deployment is to run, a node has, a file of the
deployments repo names, or a version in the catalog names is refused; the refusal lists
them, and colony image uses shows all.

What has no name then can be pulled by its digest for one day more, so that a deployment
that is under way gets it. Then its room is given back, unless it is in use. Nodes and
the caches of sites remove by themselves what nothing uses.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer images.Removal
			if err := env.Call(cmd.Context(), http.MethodDelete, at("/images", args[0]), nil, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer); done {
				return err
			}
			repository, _, _ := graph.Split(args[0])
			for _, tag := range answer.Tags {
				env.Printf("%s: removed", graph.Reference(repository, tag))
			}
			for _, d := range answer.Manifests {
				env.Printf("%s: removed in one day, unless something needs it then", graph.Reference(repository, string(d)))
			}
			if len(answer.Manifests) == 0 {
				env.Printf("the image stays: another tag or an index names it")
			}
			return nil
		},
	}
}
