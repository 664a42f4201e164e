package login

import (
	"bufio"
	"cmp"
	"context"
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
	"github.com/colonyfleet/colony/cli/signin"
	"github.com/colonyfleet/colony/co/access"
)

// maxToken bounds what is read as a token.
const maxToken = 16 << 10

// flags say how a person logs in.
type flags struct {
	name, file      string
	device, browser bool
}

// Command returns "colony login".
func Command(env *command.Env) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "login", Short: "Sign in to a CO, or keep a token for it", Args: cobra.NoArgs,
		Long: `Sign in to the CO at --url, and keep what comes of it as a context, in colony/contexts.yaml of
the user's directory of configurations, which only the user may read, with the certificates of
--ca. Commands use the current context from then on, where neither --url nor COLONY_URL names
another CO.

Where the CO has an OpenID provider, the command shows an address to open in a browser, on any
machine (--device), or on this one (--browser), and keeps what the provider gives. It is renewed
while commands are used, as long as the provider allows; colony logout ends it.

Otherwise a token is kept: it is read from standard input, where that is a file or another
command, or from --token-file. One comes from colony token create, or on the CO's machine from
colony co token. Programs can do without a context: they set COLONY_URL and COLONY_TOKEN.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			session, err := f.prove(cmd, env)
			if err != nil {
				return err
			}
			return f.keep(cmd.Context(), env, session)
		},
	}
	cmd.Flags().StringVar(&f.name, "context", "", "name of the context (default: host and port of the address)")
	cmd.Flags().StringVar(&f.file, "token-file", "", "file with the token (default: standard input)")
	cmd.Flags().BoolVar(&f.device, "device", false, "sign in with the OpenID provider by a code that is confirmed in any browser (the default where the provider has such codes)")
	cmd.Flags().BoolVar(&f.browser, "browser", false, "sign in with the OpenID provider in a browser of this machine")
	cmd.MarkFlagsMutuallyExclusive("token-file", "device", "browser")
	return cmd
}

// prove has env show the token of the person that logs in, and returns the session that renews it; nil: there
// is none.
func (f *flags) prove(cmd *cobra.Command, env *command.Env) (*signin.Session, error) {
	in := cmd.InOrStdin()
	switch {
	case f.device:
		return person(cmd.Context(), env, signin.Device)
	case f.browser:
		return person(cmd.Context(), env, signin.Browser)
	case f.file != "":
		file, err := os.Open(f.file)
		if err != nil {
			return nil, command.Usage(err)
		}
		defer file.Close()
		in = file
	case typed(in):
		return person(cmd.Context(), env, signin.Any)
	}
	line, err := bufio.NewReader(io.LimitReader(in, maxToken)).ReadString('\n')
	text := strings.TrimSpace(line)
	if text == "" {
		return nil, command.Usage(fmt.Errorf("no token: write it to standard input, or name its file with --token-file; --device signs in with the CO's OpenID provider (%w)", err))
	}
	env.Token, env.Renew = text, nil
	return nil, nil
}

// typed reports whether an input is a terminal, or nothing at all, from which no token comes.
func typed(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// keep asks the CO whose token env shows, and keeps it as a context.
func (f *flags) keep(ctx context.Context, env *command.Env, session *signin.Session) error {
	var p access.Principal
	if err := env.Call(ctx, http.MethodGet, "/principal", nil, &p); err != nil {
		return err
	}
	name := cmp.Or(f.name, hostOf(env.URL))
	err := update(func(all *Contexts) error {
		all.Current, all.Contexts[name] = name, Context{URL: env.URL, Token: env.Token, CA: env.CA, Session: session}
		return nil
	})
	if err != nil {
		return err
	}
	if done, err := env.Machine(p); done {
		return err
	}
	until := p.Expires.Format(time.RFC3339)
	if session != nil && session.Refresh != "" {
		until += ", renewed by commands that run"
	}
	env.Printf("logged in to %s as %s (%s) until %s; context %s", env.URL, p.Name, p.Role, until, name)
	return nil
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
		Long: `Forget a context and its token. A sign-in with an OpenID provider is ended there, too. A token
counts until it ends: colony token revoke ends one of Colony's own before.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := forget(cmd.Context(), env, args[0], func(all *Contexts, _ Context) {
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
