package login

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/access"
)

// maxToken bounds what is read as a token.
const maxToken = 16 << 10

// Command returns "colony login".
func Command(env *command.Env) *cobra.Command {
	var name, file string
	cmd := &cobra.Command{
		Use: "login", Short: "Keep the token for a CO that wants one", Args: cobra.NoArgs,
		Long: `Ask the CO at --url whose token this is, and keep both as a context, in colony/contexts.yaml of
the user's directory of configurations, which only the user may read, with the certificates
of --ca. The token is read from standard input, or from --token-file. Commands use the current context from then on, where
neither --url nor COLONY_URL names another CO.

A token comes from colony token create, or on the CO's machine from colony co token. Programs
can do without a context: they set COLONY_URL and COLONY_TOKEN.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in := cmd.InOrStdin()
			if file != "" {
				f, err := os.Open(file)
				if err != nil {
					return command.Usage(err)
				}
				defer f.Close()
				in = f
			}
			line, err := bufio.NewReader(io.LimitReader(in, maxToken)).ReadString('\n')
			if text := strings.TrimSpace(line); text != "" {
				env.Token = text
			} else {
				return command.Usage(fmt.Errorf("no token: write it to standard input, or name its file with --token-file (%w)", err))
			}
			var p access.Principal
			if err := env.Call(cmd.Context(), http.MethodGet, "/principal", nil, &p); err != nil {
				return err
			}
			if name == "" {
				name = hostOf(env.URL)
			}
			err = update(func(all *Contexts) error {
				all.Current, all.Contexts[name] = name, Context{URL: env.URL, Token: env.Token, CA: env.CA}
				return nil
			})
			if err != nil {
				return err
			}
			if done, err := env.Machine(p); done {
				return err
			}
			env.Printf("logged in to %s as %s (%s) until %s; context %s", env.URL, p.Name, p.Role, p.Expires.Format(time.RFC3339), name)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "context", "", "name of the context (default: host and port of the address)")
	cmd.Flags().StringVar(&file, "token-file", "", "file with the token (default: standard input)")
	return cmd
}

func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return address
}

// Contextual returns "colony context".
func Contextual(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "context", Aliases: []string{"contexts"}, Short: "Show and choose the COs that commands talk to"}
	cmd.AddCommand(list(env), use(env), remove(env))
	return cmd
}

func list(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := load()
			if err != nil {
				return err
			}
			type shown struct {
				Name    string `json:"name"`
				URL     string `json:"url"`
				Current bool   `json:"current"`
			}
			items, rows := []shown{}, [][]string{}
			for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
				c := all.Contexts[name]
				items = append(items, shown{name, c.URL, name == all.Current})
				mark := ""
				if name == all.Current {
					mark = "current"
				}
				rows = append(rows, []string{name, c.URL, mark})
			}
			if done, err := env.Machine(items); done {
				return err
			}
			return env.Table("NAME URL CURRENT", rows)
		},
	}
}

// change changes the contexts, one of which has the name.
func change(name string, do func(*Contexts)) error {
	return update(func(all *Contexts) error {
		if _, ok := all.Contexts[name]; !ok {
			return command.Usage(fmt.Errorf("no context %q: colony context list shows them", name))
		}
		do(all)
		return nil
	})
}

func use(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Have commands talk to the CO of a context", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			err := change(args[0], func(all *Contexts) { all.Current = args[0] })
			if err == nil {
				env.Printf("%s is the current context", args[0])
			}
			return err
		},
	}
}

func remove(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Forget a context and its token", Args: cobra.ExactArgs(1),
		Long: `Forget a context and its token. The token counts until it ends: colony token revoke ends it before.`,
		RunE: func(_ *cobra.Command, args []string) error {
			err := change(args[0], func(all *Contexts) {
				delete(all.Contexts, args[0])
				if all.Current == args[0] {
					all.Current = ""
				}
			})
			if err == nil {
				env.Printf("%s: removed", args[0])
			}
			return err
		},
	}
}
