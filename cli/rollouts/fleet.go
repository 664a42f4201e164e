package rollouts

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
)

// Fleet returns "colony fleet".
func Fleet(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fleet", Short: "Deploy one application at many sites",
		Long: `A fleet deployment is one application for many sites: which version, at which sites,
with which values, and how a change spreads. It is the file fleet/NAME/deployment.yaml
of the deployments repo; each change is a commit, and a rollout (colony rollout).`,
	}
	cmd.AddCommand(fleetList(env), fleetShow(env), plan(env), set(env), except(env), revert(env), remove(env))
	return cmd
}

func fleetList(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the fleet deployments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.FleetSummaries
			if err := env.Call(cmd.Context(), http.MethodGet, "/fleet-deployments", nil, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer.Items); done {
				return err
			}
			var rows [][]string
			for _, f := range answer.Items {
				revision, state, reason := "", "", strings.ReplaceAll(f.Problem, "\n", "; ")
				if f.Rollout != nil {
					revision, state = strconv.FormatInt(f.Rollout.Revision, 10), string(f.Rollout.State)
					if reason == "" {
						reason = f.Rollout.Reason
					}
				}
				rows = append(rows, []string{string(f.Name), version(f.App, f.AppVersion), revision, state, reason})
			}
			return env.Table("FLEET APP REVISION STATE REASON", rows)
		},
	}
}

func fleetShow(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show FLEET", Short: "Show what a fleet deployment says", Args: cobra.ExactArgs(1),
		Long: "Show what a fleet deployment says, as YAML that colony fleet set takes, or as JSON with -o json.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var f api.FleetDeployment
			if err := env.Call(cmd.Context(), http.MethodGet, fleetPath(args[0]), nil, &f); err != nil {
				return err
			}
			if done, err := env.Machine(f); done {
				return err
			}
			file := fleetfile.File{Name: f.Name, ID: f.ID, Spec: f.Content.Spec}
			raw, err := file.Marshal()
			if err != nil {
				return err
			}
			fmt.Fprint(env.Out, string(raw))
			return nil
		},
	}
}

// content reads the content of a fleet deployment from a file, - for standard input.
func content(cmd *cobra.Command, name, file string) (c api.Content, err error) {
	parsed, err := protocol.ParseDeploymentName(name)
	if err != nil {
		return c, command.Usage(err)
	}
	var raw []byte
	if file == "-" {
		raw, err = io.ReadAll(cmd.InOrStdin())
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return c, command.Usage(fmt.Errorf("read fleet deployment: %w", err))
	}
	f, err := fleetfile.ParseDraft(parsed, raw)
	if err != nil {
		return c, command.Usage(fmt.Errorf("%s:\n%w", file, err))
	}
	c.Spec = f.Spec
	return c, nil
}

const fileHelp = `The file is that of the deployments repo, and may leave out metadata:

  apiVersion: colony/v1
  kind: FleetDeployment
  spec:
    application: {id: hello, version: 1.1.0}
    targets: {sites: ["*"]}
    parameters: {greeting: Hello}
    strategy:
      waves:
        - {percent: 1, bake: 30m}
        - {percent: 10, bake: 1h, approval: true}
        - {percent: 100}
      maxFailed: "1"`

func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", "", "YAML file of the fleet deployment, - for standard input")
	_ = cmd.MarkFlagRequired("file")
}

func noteAll(env *command.Env, notes []string) {
	for _, n := range notes {
		env.Printf("note: %s", n)
	}
}

func set(env *command.Env) *cobra.Command {
	var file string
	change := change{}
	cmd := &cobra.Command{
		Use: "set NAME -f FILE", Short: "Make a fleet deployment, or change it: a rollout begins", Args: cobra.ExactArgs(1),
		Long: `Make a fleet deployment, or change it. What is wrong, at any site, is said before anything is committed.
Values of single sites (colony fleet except) stay. With --dry-run nothing is committed, and the plan is
shown, as by colony fleet plan; with --plan the change is carried out only if it is what that plan says.

` + fileHelp,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			change.name = args[0]
			if change.content, err = content(cmd, args[0], file); err != nil {
				return err
			}
			return change.carryOut(cmd.Context(), env)
		},
	}
	fileFlag(cmd, &file)
	change.flags(cmd)
	return cmd
}

func except(env *command.Env) *cobra.Command {
	var values []string
	var none bool
	change := change{}
	cmd := &cobra.Command{
		Use: "except FLEET SITE", Short: "Set values of a fleet deployment at one site, over those of all", Args: cobra.ExactArgs(2),
		Long: `Set values of parameters at one site, over those of the fleet deployment and of groups.
Those that are not named stay; --none removes all of the site. It is a change of the
fleet deployment, and spreads as one; sites for which nothing changes restart nothing.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if none == (len(values) > 0) {
				return command.Usage(fmt.Errorf("want -p NAME=VALUE, or --none"))
			}
			var f api.FleetDeployment
			etag, err := env.Client().Read(cmd.Context(), fleetPath(args[0]), &f)
			if err != nil {
				return err
			}
			c := f.Content
			if c.Exceptions == nil {
				c.Exceptions = map[string]fleetfile.Values{}
			}
			if none {
				delete(c.Exceptions, args[1])
			}
			for _, v := range values {
				name, value, ok := strings.Cut(v, "=")
				if !ok || name == "" {
					return command.Usage(fmt.Errorf("-p %q: want NAME=VALUE", v))
				}
				if c.Exceptions[args[1]] == nil {
					c.Exceptions[args[1]] = fleetfile.Values{}
				}
				c.Exceptions[args[1]][name] = value
			}
			change.name, change.etag, change.content = args[0], etag, c
			return change.carryOut(cmd.Context(), env)
		},
	}
	cmd.Flags().StringArrayVarP(&values, "param", "p", nil, "value of a parameter, as NAME=VALUE")
	cmd.Flags().BoolVar(&none, "none", false, "remove all values of the site")
	change.flags(cmd)
	return cmd
}

func revert(env *command.Env) *cobra.Command {
	body := api.Revert{}
	cmd := &cobra.Command{
		Use: "revert FLEET", Short: "Return all sites to an earlier revision, by a commit", Args: cobra.ExactArgs(1),
		Long: `Return to the last complete revision that asks for something else, or to that of --to.
Sites that ran that revision return to it at once; others get it wave by wave.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var f api.FleetDeployment
			if err := env.Call(cmd.Context(), http.MethodPost, fleetPath(args[0])+"/revert", body, &f); err != nil {
				return err
			}
			if done, err := env.Machine(f); done {
				return err
			}
			env.Printf("fleet deployment %s returns to %s %s at commit %.12s", f.Name, f.Content.Application.ID, f.Content.Application.Version, f.Commit)
			return nil
		},
	}
	cmd.Flags().Int64Var(&body.To, "to", 0, "revision, see colony rollout list; default the last complete one that asks for something else")
	return cmd
}

func remove(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "remove FLEET", Aliases: []string{"delete"}, Short: "Remove a fleet deployment from all its sites", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Client().Write(cmd.Context(), client.Amendment{Method: http.MethodDelete, Path: fleetPath(args[0])}, nil); err != nil {
				return err
			}
			if done, err := env.Machine(map[string]string{"removed": args[0]}); done {
				return err
			}
			env.Printf("fleet deployment %s is removed from all its sites; volumes stay", args[0])
			return nil
		},
	}
}
