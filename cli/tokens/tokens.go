// Package tokens has the commands about the tokens of people and programs.
package tokens

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/tokens"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/protocol"
)

const (
	defaultLife = 30 * 24 * time.Hour
	// databaseWait is how long a command on the CO's machine waits for the database.
	databaseWait = 15 * time.Second
)

// Command returns "colony token".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Aliases: []string{"tokens"}, Short: "Make, list and revoke the tokens of people and programs",
		Long: `A CO with access.required wants a token with each request. A token has a name, which each change
that is made with it carries, a role (read-only, operator or admin), and the sites for which the role
holds.`,
	}
	cmd.AddCommand(create(env), list(env), revoke(env))
	return cmd
}

// flags say what a token is to be.
type flags struct {
	role  string
	sites []string
	life  time.Duration
}

func (f *flags) add(cmd *cobra.Command, role string) *cobra.Command {
	cmd.Flags().StringVar(&f.role, "role", role, "what it allows: read-only, operator, admin, or a role of the CO's configuration (access.roles)")
	cmd.Flags().StringSliceVar(&f.sites, "site", nil, "the site that it holds for, or how names of sites begin with a * after it, as 'plant-*', or @ and the name of a group of sites; several are separated by commas (default all)")
	cmd.Flags().DurationVar(&f.life, "ttl", defaultLife, "how long it holds")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{string(access.ReadOnly), string(access.Operator), string(access.Admin)}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// show prints the text of a token alone on the output.
func show(env *command.Env, t tokens.Made) error {
	if done, err := env.Machine(t); done {
		return err
	}
	env.Printf("%s", t.Text)
	fmt.Fprintf(env.Err, "%s, until %s\n", t.Token, t.Expires.Format(time.RFC3339))
	return nil
}

func create(env *command.Env) *cobra.Command {
	var f flags
	return f.add(&cobra.Command{
		Use: "create NAME", Short: "Make a token", Args: cobra.ExactArgs(1),
		Long: `Make a token for a person or a program. The token is printed here and kept nowhere.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.life < access.MinLife || f.life > access.MaxLife {
				return command.Usage(fmt.Errorf("--ttl %s: want %s to %s", f.life, access.MinLife, access.MaxLife))
			}
			var out tokens.Made
			body := map[string]any{"name": args[0], "role": f.role, "seconds": int64(f.life / time.Second)}
			if cmd.Flags().Changed("site") { // an empty list is refused, and so is none
				body["sites"] = append([]string{}, f.sites...)
			}
			if err := env.Call(cmd.Context(), http.MethodPost, "/tokens", body, &out); err != nil {
				return err
			}
			return show(env, out)
		},
	}, string(access.ReadOnly))
}

func list(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tokens, also those that ended within a month", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := client.List[access.Token](cmd.Context(), env.Client(), "/tokens", nil)
			if err != nil {
				return err
			}
			if done, err := env.Machine(all); done {
				return err
			}
			var rows [][]string
			for _, t := range all {
				state := "until " + t.Expires.Format(time.RFC3339)
				if t.RevokedAt != nil {
					state = "revoked " + output.Ago(t.RevokedAt)
				} else if !t.Holds(time.Now()) {
					state = "ended " + output.Ago(&t.Expires)
				}
				rows = append(rows, []string{t.ID, t.Name, string(t.Role), cmp.Or(strings.Join(t.Sites, ","), "all"), output.Age(&t.CreatedAt), t.CreatedBy, output.Age(t.UsedAt), state})
			}
			return env.Table("ID NAME ROLE SITES AGE MADE-BY USED STATE", rows)
		},
	}
}

func revoke(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token", Args: cobra.ExactArgs(1),
		Long: `Revoke a token: it does not count any more, and what it has open ends, at each replica of the CO
within seconds.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Call(cmd.Context(), http.MethodDelete, "/tokens/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			env.Printf("%s: revoked", args[0])
			return nil
		},
	}
}

// Local returns "colony co token".
func Local(env *command.Env) *cobra.Command {
	var f flags
	var config string
	cmd := f.add(&cobra.Command{
		Use: "token NAME", Short: "Make a token on the CO's own machine", Args: cobra.ExactArgs(1),
		Long: `Make a token on the CO's own machine: the first one, or where everybody's has ended. It needs the
CO's configuration, its database and the key of its tokens, and not the API.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o := co.DefaultOptions()
			if err := configfile.Load(config, &o); err != nil {
				return command.Usage(err)
			}
			o.Logger = slog.New(slog.DiscardHandler)
			ctx, cancel := context.WithTimeout(cmd.Context(), databaseWait)
			defer cancel()
			t, text, err := co.NewAccessToken(ctx, o, access.Request{Name: args[0], Role: f.role, Sites: f.sites, Life: f.life})
			if protocol.KindOf(err) == protocol.Invalid {
				return command.Usage(err)
			}
			if err != nil {
				return err
			}
			return show(env, tokens.Made{Token: t, Text: text})
		},
	}, string(access.Admin))
	cmd.Flags().StringVar(&config, "config", "", "configuration file of the CO (required)")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}
