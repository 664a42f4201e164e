package identity

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
)

// An adoption is what a site needs to get its certificates.
type adoption struct {
	Site  fleet.Site            `json:"site"`
	LO    identityapi.JoinToken `json:"lo"`
	Nodes identityapi.JoinToken `json:"nodes"`
}

// SiteAdopt returns "colony site adopt".
func SiteAdopt(env *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "adopt [SITE]", Short: "Give certificates to a site that ran without", Args: cobra.MaximumNArgs(1),
		Long: `Give certificates to a site that is known from a time when machines proved nothing. Without
SITE, list the sites whose LO has no certificate: a CO with identity in its configuration
does not let them in, and they go on alone.

With SITE, make two join tokens: one for the LO of the site, and one for as many nodes as
the site has. Write each to the file that identity.tokenFile names there, and set co.enrol,
co.mqtt and identity at the LO, then lo.enrol and lo.mqtt at the nodes (docs/identity.md has
an example). What runs goes on, and what waits to be sent is sent once the LO is in.
colony doctor lo, on the machine of the LO, says which nodes are missing.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listUnenrolled(cmd, env)
			}
			return adopt(cmd, env, url.PathEscape(args[0]), int(ttl/time.Second))
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 7*24*time.Hour, "how long the tokens hold")
	return cmd
}

func listUnenrolled(cmd *cobra.Command, env *command.Env) error {
	var list identityapi.Page[fleet.Unenrolled]
	if err := env.Call(cmd.Context(), http.MethodGet, "/unenrolled-sites?limit=500", nil, &list); err != nil {
		return err
	}
	if done, err := env.Machine(list); done {
		return err
	}
	var rows [][]string
	for _, s := range list.Items {
		until := ""
		if s.Token != nil {
			until = s.Token.Local().Format(time.DateTime)
		}
		rows = append(rows, []string{string(s.Site), strconv.Itoa(s.Nodes), until})
	}
	if err := env.Table("SITE NODES TOKEN-UNTIL", rows); err != nil {
		return err
	}
	if more := list.Total - len(list.Items); more > 0 {
		env.Printf("and %d more", more)
	}
	return nil
}

func adopt(cmd *cobra.Command, env *command.Env, site string, seconds int) error {
	var a adoption
	path := "/sites/" + site
	if err := env.Call(cmd.Context(), http.MethodGet, path, nil, &a.Site); err != nil {
		return err
	}
	body := map[string]any{"seconds": seconds}
	if err := env.Call(cmd.Context(), http.MethodPost, path+"/join-tokens", body, &a.LO); err != nil {
		return err
	}
	body["uses"] = max(a.Site.Nodes, 1)
	if err := env.Call(cmd.Context(), http.MethodPost, path+"/node-tokens", body, &a.Nodes); err != nil {
		return err
	}
	if done, err := env.Machine(a); done {
		return err
	}
	if err := env.Fields("Token of the LO", a.LO.Token, "Token of its nodes", a.Nodes.Token, "Nodes", strconv.Itoa(a.Nodes.Uses), "Until", a.Nodes.Expires.Local().Format(time.DateTime)); err != nil {
		return err
	}
	fmt.Fprintln(env.Err, "Write each token to the file that identity.tokenFile names, and restart with co.enrol, or lo.enrol; the LO first. See colony site adopt --help.")
	return nil
}
