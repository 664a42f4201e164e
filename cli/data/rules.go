package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/sitedata"
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

// Rules returns "colony site data".
func Rules(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "data", Short: "Show and change the rules of a site's machine data",
		Long: `Show and change the rules of a site's machine data: what is sent, and what is
stored. They are the file sites/SITE/site.yaml of the deployments repo; each change is a commit.`,
	}
	cmd.AddCommand(&cobra.Command{
		Use: "get SITE", Short: "Show the rules of a site", Args: cobra.ExactArgs(1),
		Long: `Show the rules of a site: its file as it is, or, with -o json or -o yaml, the
rules that hold. A file that is not valid is shown with what is wrong; the last good
rules hold then.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, _, err := rulesOf(cmd.Context(), env, args[0])
			if err != nil {
				return err
			}
			if done, err := env.Machine(rules); done {
				return err
			}
			if rules.Commit == "" && rules.Problem == "" {
				fmt.Fprintf(env.Err, "site %s has no data rules; colony site data edit %s adds some\n", rules.Site, rules.Site)
				return nil
			}
			switch {
			case rules.Commit == "":
				fmt.Fprintf(env.Err, "%s; colony site data edit %s brings this back:\n", rules.Problem, rules.Site)
			case rules.Problem != "":
				fmt.Fprintf(env.Err, "this file is not valid, so the last good rules hold:\n  %s\n", strings.ReplaceAll(rules.Problem, "\n", "\n  "))
			}
			fmt.Fprint(env.Out, rules.Document)
			return nil
		},
	}, setRules(env), editRules(env), &cobra.Command{
		Use: "delete SITE", Short: "Remove all rules of a site", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Client().Write(cmd.Context(), client.Amendment{Method: http.MethodDelete, Path: rulesPath(args[0])}, nil); err != nil {
				return err
			}
			answer := map[string]any{"site": args[0], "rules": []any{}}
			if done, err := env.Machine(answer); done {
				return err
			}
			fmt.Fprintf(env.Out, "%s: data rules removed from the deployments repo\n", args[0])
			return nil
		},
	})
	return cmd
}

func rulesPath(site string) string { return "/sites/" + url.PathEscape(site) + "/data-rules" }

func rulesOf(ctx context.Context, env *command.Env, site string) (rules sitedata.DataRules, etag string, err error) {
	etag, err = env.Client().Read(ctx, rulesPath(site), &rules)
	return rules, etag, err
}

// putRules commits a site's file and prints how many rules it has.
func putRules(ctx context.Context, env *command.Env, site, etag string, document []byte) error {
	if strings.TrimSpace(string(document)) == "" {
		return command.Usage(errors.New("the file is empty: to have no rules, use colony site data delete"))
	}
	var rules sitedata.DataRules
	body := map[string]string{"document": string(document)}
	if err := env.Client().Write(ctx, client.Amendment{Method: http.MethodPut, Path: rulesPath(site), ETag: etag, Body: body}, &rules); err != nil {
		return err
	}
	if done, err := env.Machine(rules); done {
		return err
	}
	fmt.Fprintf(env.Out, "%s: %d data rules at commit %.12s\n", rules.Site, len(rules.Rules), rules.Commit)
	return nil
}

func setRules(env *command.Env) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set SITE -f FILE", Short: "Replace the rules of a site by those of a file", Args: cobra.ExactArgs(1),
		Long: `Replace the file of a site in the deployments repo, in any state. The file is
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
			return putRules(cmd.Context(), env, args[0], "", document)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML file with the rules, - for standard input")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

func editRules(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "edit SITE", Short: "Change the rules of a site in an editor", Args: cobra.ExactArgs(1),
		Long: `Open the file of a site in $VISUAL, $EDITOR or vi, and commit what was changed. Who
was faster with another change keeps it: what you wrote is then left in a file that
the error names, as it is when it has faults.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, etag, err := rulesOf(cmd.Context(), env, args[0])
			if err != nil {
				return err
			}
			before := rules.Document
			if before == "" {
				before = fmt.Sprintf(newRules, args[0], args[0])
			}
			path, after, err := edit(cmd, before)
			if err != nil {
				return err
			}
			if string(after) == before && (rules.Commit != "" || rules.Problem == "") {
				fmt.Fprintln(env.Err, "nothing was changed")
				return os.Remove(path)
			}
			if err := putRules(cmd.Context(), env, args[0], etag, after); err != nil {
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
