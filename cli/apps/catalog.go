package apps

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// Command returns "colony app".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "app", Short: "Make, push, import and show applications"}
	cmd.AddCommand(byKind(initialise(env)), Lint(env), byKind(push(env)))
	cmd.AddCommand(stages(env)...)
	cmd.AddCommand(importing(env), remove(env), &cobra.Command{
		Use: "list", Short: "List the applications", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			apps, err := client.List[fleet.App](cmd.Context(), env.Client(), "/apps", nil)
			if err != nil {
				return err
			}
			if done, err := env.Machine(apps); done {
				return err
			}
			var rows [][]string
			for _, app := range apps {
				rows = append(rows, []string{app.ID, app.Name, app.Latest, staged(app), app.Description})
			}
			return env.Table("APP NAME LATEST VERSIONS DESCRIPTION", rows)
		},
	}, &cobra.Command{
		Use: "show APP[@VERSION]", Short: "Show one version of an application: profiles, parameters, and where it is deployed", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, version, _ := strings.Cut(args[0], "@")
			if version == "" {
				var app fleet.App
				if err := env.Call(cmd.Context(), http.MethodGet, "/apps/"+url.PathEscape(id), nil, &app); err != nil {
					return err
				}
				version = app.Latest
			}
			var v fleet.AppVersion
			if err := env.Call(cmd.Context(), http.MethodGet, versionPath(id, version), nil, &v); err != nil {
				return err
			}
			if done, err := env.Machine(v); done {
				return err
			}
			if err := showVersion(env, v); err != nil {
				return err
			}
			return showUsers(cmd.Context(), env, v)
		},
	})
	return cmd
}

// byKind gives the errors of a command that asks no API the exit codes of one that does.
func byKind(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		status := map[protocol.Kind]int{
			protocol.Invalid: http.StatusUnprocessableEntity, protocol.NotFound: http.StatusNotFound,
			protocol.Conflict: http.StatusConflict, protocol.Unavailable: http.StatusServiceUnavailable,
		}[protocol.KindOf(err)]
		if err == nil || status == 0 {
			return err
		}
		return &client.Problem{Status: status, Detail: err.Error()}
	}
	return cmd
}

func showVersion(env *command.Env, v fleet.AppVersion) error {
	if err := env.Fields("App", v.AppID, "Version", v.Version, "Name", v.Name, "Description", v.Description,
		"Source", v.Source, "Digest", string(v.Digest), "Imported", output.Age(&v.ImportedAt)+" ago", "Stage", stageOf(v)); err != nil {
		return err
	}
	fmt.Fprintln(env.Out)
	var rows [][]string
	for _, p := range v.Profiles {
		for _, c := range p.Components {
			rows = append(rows, []string{p.ID, p.Type, c.Name, c.Repository + ":" + c.Revision})
		}
	}
	if err := env.Table("PROFILE TYPE COMPONENT SOURCE", rows); err != nil {
		return err
	}
	fmt.Fprintln(env.Out)
	rows = nil
	for _, p := range v.Parameters {
		value := ""
		if p.Default != nil {
			value = fmt.Sprint(p.Default)
		}
		rows = append(rows, []string{p.Name, value, map[bool]string{true: "yes"}[p.Immutable], p.Description})
	}
	return env.Table("PARAMETER DEFAULT IMMUTABLE DESCRIPTION", rows)
}

// shownUsers is how many deployments of a version are shown.
const shownUsers = 50

// showUsers lists the deployments that are to run a version, and what they run.
func showUsers(ctx context.Context, env *command.Env, v fleet.AppVersion) error {
	var page struct {
		Items []fleet.Deployment `json:"items"`
		Next  string             `json:"next"`
	}
	query := url.Values{"app": {v.AppID}, "version": {v.Version}, "limit": {strconv.Itoa(shownUsers)}}
	if err := env.Call(ctx, http.MethodGet, "/deployments?"+query.Encode(), nil, &page); err != nil {
		return err
	}
	if len(page.Items) == 0 {
		return nil
	}
	fmt.Fprintln(env.Out)
	rows := make([][]string, 0, len(page.Items))
	for _, d := range page.Items {
		rows = append(rows, []string{string(d.Site) + "/" + string(d.Name), string(d.State), fmt.Sprintf("%d of %d", d.Installed, d.DesiredNodes), output.Age(d.Since)})
	}
	if err := env.Table("DEPLOYMENT STATE NODES SINCE", rows); err != nil {
		return err
	}
	if page.Next != "" {
		env.Printf("and more: colony deployment list --app %s --version %s", v.AppID, v.Version)
	}
	return nil
}

func remove(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "remove APP@VERSION", Short: "Remove a version of an application from the catalog", Args: cobra.ExactArgs(1),
		Long: `Remove a version of an application from the catalog, and the application with its last
version. A version that a deployment is to run, or that a node runs, is refused; the
refusal names the deployments. The registry keeps its images and archives, until they are
removed with colony image remove. A later import brings the version back, if its bytes are
the same: a version stays immutable.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, version, err := named(args[0])
			if err != nil {
				return err
			}
			if err := env.Call(cmd.Context(), http.MethodDelete, versionPath(id, version), nil, nil); err != nil {
				return err
			}
			if done, err := env.Machine(map[string]string{"app": id, "version": version}); done {
				return err
			}
			_, err = fmt.Fprintf(env.Out, "%s: removed from the catalog\n", args[0])
			return err
		},
	}
}

// importTimes is how much longer than another request an import may take: the CO fetches
// repositories and archives for it.
const importTimes = 30

func importing(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "import DIRECTORY|GIT-URL[#REF]|oci://REFERENCE",
		Short: "Import the application packages of a directory, a git repository or an OCI artifact",
		Long: `Import every package (a folder with a margo.yaml) that is found. Each is checked
against the Margo rules; what is wrong is shown with its path and line, and does
not keep the others from being imported. A version that was imported is
immutable: the same bytes again change nothing, other bytes are refused.

A directory is read by the CO: it must be on the CO's machine, below one of the
import roots of its configuration. Git repositories and registries other than the
CO's own must be named there, too.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			source := args[0]
			if fi, err := os.Stat(source); err == nil && (fi.IsDir() || fi.Mode().IsRegular()) {
				if source, err = filepath.Abs(source); err != nil {
					return err
				}
			}
			var answer api.ImportAnswer
			c := env.Client()
			c.Timeout *= importTimes
			if err := c.Call(cmd.Context(), http.MethodPost, "/apps", map[string]string{"source": source}, &answer); err != nil {
				return err
			}
			if done, err := env.Machine(answer.Results); done {
				return errors.Join(err, importErr(answer))
			}
			var rows [][]string
			for _, r := range answer.Results {
				rows = append(rows, []string{r.Path, r.App, r.Version, r.Outcome})
			}
			if err := env.Table("PACKAGE APP VERSION RESULT", rows); err != nil {
				return err
			}
			for _, r := range answer.Results {
				for _, w := range r.Warnings {
					fmt.Fprintf(env.Err, "warning: %s: %s\n", r.Path, w)
				}
			}
			return importErr(answer)
		},
	}
}

// importErr joins the problems of the packages that were not imported.
func importErr(r api.ImportAnswer) error {
	var all []error
	for _, p := range r.Results {
		if len(p.Problems) == 0 {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s: not imported", p.Path)
		for _, q := range p.Problems {
			b.WriteString("\n  ")
			if q.Line > 0 {
				fmt.Fprintf(&b, "line %d: ", q.Line)
			}
			b.WriteString(q.Path + ": " + q.Message)
		}
		all = append(all, errors.New(b.String()))
	}
	if len(all) == 0 {
		return nil
	}
	return command.Usage(errors.Join(all...))
}
