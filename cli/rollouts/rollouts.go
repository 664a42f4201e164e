// Package rollouts has the commands about rollouts: how the revisions of fleet deployments spread over the sites.
package rollouts

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api/form"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
)

func fleetPath(name string) string { return "/fleet-deployments/" + url.PathEscape(name) }

// Command returns "colony rollout".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollout", Aliases: []string{"rollouts"}, Short: "Show and steer how the revisions of fleet deployments spread",
		Long: `Each change of a fleet deployment (colony fleet) is a revision, and spreads by a
rollout: in waves, each of which must work before the next one begins. The first
failures pause it, so that sites of later waves never see what does not work.`,
	}
	cmd.AddCommand(list(env), show(env), sites(env), wait(env),
		act(env, rollout.Pause, "Admit no further site until the rollout is resumed", "is paused"),
		act(env, rollout.Resume, "Go on with a rollout that is paused; sites that failed so far are accepted", "goes on"),
		act(env, rollout.Promote, "Let the current wave, which works, be followed by the next", "may go on after this wave"),
		act(env, rollout.Abort, "End a rollout: no further site gets the revision", "is aborted"))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	var fleet string
	cmd := &cobra.Command{
		Use: "list", Short: "List rollouts, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := pages[rollout.Rollout](cmd.Context(), env, "/rollouts", "fleet", fleet)
			if err != nil {
				return err
			}
			if done, err := env.Machine(form.NotNil(all)); done {
				return err
			}
			var rows [][]string
			for _, r := range all {
				rows = append(rows, []string{string(r.Fleet), strconv.FormatInt(r.Revision, 10), version(r.App, r.Version), string(r.State), output.At(&r.Created), fmt.Sprintf("%.12s", r.Commit), r.Reason})
			}
			return env.Table("FLEET REVISION APP STATE CREATED COMMIT REASON", rows)
		},
	}
	cmd.Flags().StringVar(&fleet, "fleet", "", "only of this fleet deployment")
	return cmd
}

// pages returns all pages of a list, filtered by a value unless that is empty.
func pages[T any](ctx context.Context, env *command.Env, path, filter, value string) (all []T, err error) {
	query := url.Values{"limit": {"1000"}}
	if value != "" {
		query.Set(filter, value)
	}
	for {
		var answer form.List[T]
		if err := env.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &answer); err != nil {
			return nil, err
		}
		all = append(all, answer.Items...)
		if answer.Next == "" {
			return all, nil
		}
		query.Set("cursor", answer.Next)
	}
}

func version(app, v string) string {
	if app == "" {
		return ""
	}
	return app + " " + v
}

func show(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show FLEET", Short: "Show the rollout of a fleet deployment: its waves, and what it waits for", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r rollout.Rollout
			if err := env.Call(cmd.Context(), http.MethodGet, fleetPath(args[0])+"/rollout", nil, &r); err != nil {
				return err
			}
			if done, err := env.Machine(r); done {
				return err
			}
			if err := env.Fields("Fleet", string(r.Fleet), "Revision", strconv.FormatInt(r.Revision, 10), "App", version(r.App, r.Version), "Commit", r.Commit,
				"State", string(r.State), "Reason", r.Reason, "Problem", r.Problem, "By", r.By, "Created", output.At(&r.Created), "Changed", output.At(&r.Changed)); err != nil {
				return err
			}
			env.Printf("")
			var rows [][]string
			for i, c := range r.Waves {
				mark := ""
				if i == r.Wave && r.State.Open() {
					mark = "now"
				}
				rows = append(rows, []string{strconv.Itoa(i + 1), mark, strconv.Itoa(c.Sites()), strconv.Itoa(c.Waiting), strconv.Itoa(c.Moving), strconv.Itoa(c.Held), strconv.Itoa(c.Away), strconv.Itoa(c.Healthy), strconv.Itoa(c.Failed), strconv.Itoa(c.Conflict)})
			}
			return env.Table("WAVE NOW SITES WAITING MOVING HELD AWAY HEALTHY FAILED CONFLICT", rows)
		},
	}
}

func sites(env *command.Env) *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use: "sites FLEET", Short: "List the sites of a rollout, with where each stands", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := pages[rollout.Member](cmd.Context(), env, fleetPath(args[0])+"/rollout/sites", "state", state)
			if err != nil {
				return err
			}
			if done, err := env.Machine(form.NotNil(all)); done {
				return err
			}
			var rows [][]string
			for _, m := range all {
				rows = append(rows, []string{string(m.Site), strconv.Itoa(m.Wave + 1), string(m.State), strconv.FormatInt(m.Revision, 10), output.At(m.Admitted), m.Reason})
			}
			return env.Table("SITE WAVE STATE REVISION ADMITTED REASON", rows)
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only in this state: waiting, moving, away, healthy, failed, conflict or left")
	return cmd
}

func act(env *command.Env, action rollout.Action, short, outcome string) *cobra.Command {
	body := api.Act{}
	wave := 0
	cmd := &cobra.Command{
		Use: string(action) + " FLEET", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if u, err := user.Current(); err == nil {
				body.By = u.Username
			}
			if wave > 0 {
				body.Wave = new(wave - 1)
			}
			var r rollout.Rollout
			if err := env.Call(cmd.Context(), http.MethodPost, fleetPath(args[0])+"/rollout/"+string(action), body, &r); err != nil {
				return err
			}
			if done, err := env.Machine(r); done {
				return err
			}
			env.Printf("%s %s", r.Name(), outcome)
			return nil
		},
	}
	cmd.Flags().Int64Var(&body.Revision, "revision", 0, "only where the rollout is that of this revision")
	if action == rollout.Promote {
		cmd.Flags().IntVar(&wave, "wave", 0, "only where this is the current wave, as colony rollout show counts them")
	}
	if action == rollout.Abort {
		cmd.Long = `End a rollout: no further site gets the revision, and those that have it stay with it.
With --rollback a commit returns all sites to the last complete revision; where a site
ran that one, it does so at once.`
		cmd.Flags().BoolVar(&body.Rollback, "rollback", false, "return all sites to the last complete revision")
	}
	return cmd
}
