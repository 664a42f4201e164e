package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/spf13/cobra"
)

// newRules is what an editor begins with where a site has no file yet.
const newRules = `# The rules of the machine data of this site. A message is subject to the first rule
# that matches it.
apiVersion: colony/v1
kind: Site
metadata:
  id: %s
spec:
  data:
    rules:
      - name: everything
        direction: up          # to the CO; down: from there
        topics: ["#"]          # below colony/v1/%s/data/
        maxBytes: 256MiB       # above it the oldest are dropped, and counted
        store: {keep: 30d}     # in PostgreSQL; without it only on the CO's broker
`

func (a *app) siteDataSet() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set SITE -f FILE", Short: "Replace the rules of a site by those of a file", Args: cobra.ExactArgs(1),
		Long: `Replace the file of a site in the deployments repo, whatever is there. The file is
checked first; everything that is wrong is shown with its line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var document []byte
			var err error
			if file == "-" {
				document, err = io.ReadAll(cmd.InOrStdin())
			} else {
				document, err = os.ReadFile(file)
			}
			if err != nil {
				return command.Usage(fmt.Errorf("read rules: %w", err))
			}
			return a.putRules(cmd.Context(), args[0], "", document)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML file with the rules, - for standard input")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

func (a *app) siteDataEdit() *cobra.Command {
	return &cobra.Command{
		Use: "edit SITE", Short: "Change the rules of a site in an editor", Args: cobra.ExactArgs(1),
		Long: `Open the file of a site in $VISUAL, $EDITOR or vi, and commit what was changed. Who
was faster with another change keeps it: what you wrote is then left in a file that
the error names, as it is when it has faults.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, etag, err := a.rules(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			before := rules.Document
			if rules.Commit == "" {
				before = fmt.Sprintf(newRules, args[0], args[0])
			}
			path, after, err := edit(cmd, before)
			if err != nil {
				return err
			}
			if string(after) == before {
				fmt.Fprintln(a.Err, "nothing was changed")
				return os.Remove(path)
			}
			if err := a.putRules(cmd.Context(), args[0], etag, after); err != nil {
				return fmt.Errorf("%w\nwhat you wrote is in %s", err, path)
			}
			return os.Remove(path)
		},
	}
}

// edit lets the user change a text, and returns it with the file that holds it.
func edit(cmd *cobra.Command, text string) (path string, after []byte, err error) {
	f, err := os.CreateTemp("", "colony-site-*.yaml")
	if err != nil {
		return "", nil, fmt.Errorf("make a file to edit: %w", err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", nil, fmt.Errorf("write the file to edit: %w", err)
	}
	if err := runEditor(cmd.Context(), cmd, f.Name()); err != nil {
		return "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	after, err = os.ReadFile(f.Name())
	if err != nil {
		return "", nil, fmt.Errorf("read the edited file: %w", err)
	}
	return f.Name(), after, nil
}

func runEditor(ctx context.Context, cmd *cobra.Command, path string) error {
	editor := "vi"
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if v := strings.TrimSpace(os.Getenv(name)); v != "" {
			editor = v
		}
	}
	words := strings.Fields(editor) // such as code --wait
	c := exec.CommandContext(ctx, words[0], append(words[1:], path)...)
	c.Stdin, c.Stdout, c.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := c.Run(); err != nil {
		return command.Usage(fmt.Errorf("editor %s: %w; VISUAL or EDITOR names another", editor, err))
	}
	return nil
}
