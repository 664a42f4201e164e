package apps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/lint"
)

// Lint returns "colony lint".
func Lint(env *command.Env) *cobra.Command {
	var registries []string
	cmd := &cobra.Command{
		Use:   "lint FOLDER",
		Short: "Judge applications, Compose components and deployment files without a CO",
		Long: `Judge every margo.yaml, compose.yaml and deployment.yaml below a folder as the CO
would when it imports or deploys them. Nothing is asked of a CO, a registry or the
network, so that it can run in a CI.

The Compose files of an application are looked for in its folder, as
components/<name>/compose.yaml. The values of deployments are held to the
applications in the folder; only the CO knows whether an immutable one changed,
and whether an image exists. It imports images of its own registry and of those that
import.registries of its configuration names: of others there is a warning, unless
--registry names them here, too.

Each finding is one line: file, line, path, what is wrong and what to write
instead. The exit code is 0 where there are none, or warnings only, and 2 else.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := os.Stat(args[0])
			if err != nil || !info.IsDir() {
				return command.Usage(errors.Join(fmt.Errorf("lint %s: want a folder", args[0]), err))
			}
			result, err := lint.Dir(args[0], registries...)
			if err != nil {
				return fmt.Errorf("lint %s: %w", args[0], err)
			}
			if result.Files == 0 {
				return command.Usage(fmt.Errorf("lint %s: there is no margo.yaml, compose.yaml or deployment.yaml", args[0]))
			}
			failed := error(nil)
			if result.Failed() {
				failed = command.Usage(fmt.Errorf("lint %s: not accepted", args[0]))
			}
			if done, err := env.Machine(result); done {
				return errors.Join(failed, err)
			}
			for _, f := range result.Findings {
				f.File = filepath.Join(args[0], f.File)
				fmt.Fprintln(env.Out, f)
			}
			return failed
		},
	}
	cmd.Flags().StringSliceVar(&registries, "registry", nil, "registries that the CO may read besides its own, as import.registries names them (docker.io): no warning of their images")
	return cmd
}
