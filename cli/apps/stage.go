package apps

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
)

// stages returns the commands that say whether a version may be deployed.
func stages(env *command.Env) []*cobra.Command {
	return []*cobra.Command{
		stage(env, fleet.Deprecated, "deprecate", "Advise against a version of an application", `Advise against a version of an application. It can still be deployed, with a warning that
says the reason, and it is not the version that colony deploy takes by itself while another
one is active. What runs stays.`),
		stage(env, fleet.Retired, "retire", "Let a version of an application be deployed nowhere else", `Let a version of an application be deployed nowhere else. Where it is deployed it runs on,
and may change, be updated and be returned to. Elsewhere a deployment of it is refused,
whether it comes by the API, by a rollout or by a commit, and what ran there stays.`),
		stage(env, fleet.Active, "activate", "Make a deprecated or retired version of an application active", `Make a deprecated or retired version of an application active: it may be deployed, and what
was refused because it was retired is deployed now.`),
	}
}

func stage(env *command.Env, to fleet.Stage, use, short, long string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: use + " APP@VERSION", Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, version, err := named(args[0])
			if err != nil {
				return err
			}
			var v fleet.AppVersion
			if err := env.Call(cmd.Context(), http.MethodPatch, versionPath(id, version), api.StageChange{Stage: to, Reason: reason}, &v); err != nil {
				return err
			}
			if done, err := env.Machine(v); done {
				return err
			}
			_, err = fmt.Fprintf(env.Out, "%s: %s\n", args[0], v.Stage)
			return err
		},
	}
	if to != fleet.Active {
		cmd.Flags().StringVar(&reason, "reason", "", "why, and what to deploy instead; people read it where the version is deployed or refused")
	}
	return cmd
}

// named parses APP@VERSION.
func named(arg string) (id, version string, err error) {
	id, version, ok := strings.Cut(arg, "@")
	if !ok || id == "" || version == "" {
		return "", "", command.Usage(fmt.Errorf("%q: want APP@VERSION", arg))
	}
	return id, version, nil
}

// versionPath is where the API has a version.
func versionPath(id, version string) string {
	return "/apps/" + url.PathEscape(id) + "/versions/" + url.PathEscape(version)
}

// staged are the versions of an application, the newest first, each with its stage unless it is active.
func staged(app fleet.App) string {
	list := make([]string, len(app.Versions))
	for i, v := range app.Versions {
		list[i] = v
		if s := app.Stages[v]; s != "" {
			list[i] += " (" + string(s) + ")"
		}
	}
	return strings.Join(list, ",")
}

// stageOf is the stage of a version, with why and since when it has it.
func stageOf(v fleet.AppVersion) string {
	text := string(v.Stage)
	if v.StageSince != nil {
		text += ", since " + output.Age(v.StageSince)
	}
	if v.StageReason != "" {
		text += ": " + v.StageReason
	}
	return text
}
