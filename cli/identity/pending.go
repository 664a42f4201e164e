package identity

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// NodePending returns "colony node pending".
func NodePending(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "pending [SITE]", Short: "List the nodes without a join token that wait to be approved", Args: cobra.MaximumNArgs(1),
		Long: `List the nodes that have no join token and wait at the LOs of their sites until their keys
are approved, as those have reported within the last three days. Name, serial number and address are what
the machine says: compare the key with what colony doctor en says on the gateway.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var site protocol.SiteID
			if len(args) == 1 {
				var err error
				if site, err = protocol.ParseSiteID(args[0]); err != nil {
					return command.Usage(err)
				}
			}
			list, err := waiting(cmd, env, fleet.PendingFilter{Site: site})
			if err != nil {
				return err
			}
			if done, err := env.Machine(list); done {
				return err
			}
			var rows [][]string
			for _, p := range list.Items {
				note := ""
				if p.Taken {
					note = "another key has the name"
				}
				rows = append(rows, []string{string(p.Site), string(p.Node), p.Key[:keyDigits], p.Device, p.Remote, p.First.Local().Format(time.DateTime), note})
			}
			if err := env.Table("SITE NODE KEY SERIAL FROM SINCE NOTE", rows); err != nil {
				return err
			}
			if more := list.Total - len(list.Items); more > 0 {
				env.Printf("and %d more", more)
			}
			return nil
		},
	}
}

// NodeApprove returns "colony node approve".
func NodeApprove(env *command.Env) *cobra.Command {
	var replace bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "approve SITE/NODE KEY", Short: "Let a node enrol without a join token, by its key", Args: cobra.ExactArgs(2),
		Long: `Let a node enrol by its key, which has no join token and waits at the LO of its site. KEY
is the SHA-256 of its public key in hex; the first 16 digits are enough for a node that waits, see
colony node pending. With all 64 digits a node is approved before it comes.

No other key enrols by the approval. Where another gateway is enrolled by the name of the
node, it is refused unless it was approved with --replace: then that gateway is revoked.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, env, "approve", args, map[string]any{"replace": replace, "seconds": int(ttl / time.Second)})
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "the node may take the place of one that is enrolled by its name")
	cmd.Flags().DurationVar(&ttl, "ttl", 7*24*time.Hour, "how long the approval holds")
	return cmd
}

// NodeReject returns "colony node reject".
func NodeReject(env *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "reject SITE/NODE KEY", Short: "Refuse a node without a join token, by its key", Args: cobra.ExactArgs(2),
		Long: `Refuse a node that has no join token and waits at the LO of its site, by its key, as colony
node approve lets it enrol. It gives its place there to others.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, env, "reject", args, map[string]any{"seconds": int(ttl / time.Second)})
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 7*24*time.Hour, "how long the rejection holds")
	return cmd
}

// keyDigits are shown of a key, and the least that name one: it is not feasible to find another key that
// begins with them.
const keyDigits = 16

// waiting asks for the nodes that wait.
func waiting(cmd *cobra.Command, env *command.Env, f fleet.PendingFilter) (list identityapi.Page[fleet.PendingNode], err error) {
	query := url.Values{"limit": {"500"}}
	if f.Site != "" {
		query.Set("site", string(f.Site))
	}
	if f.Key != "" {
		query.Set("key", f.Key)
	}
	err = env.Call(cmd.Context(), http.MethodGet, "/pending-nodes?"+query.Encode(), nil, &list)
	return list, err
}

// decide approves or rejects the key of a node.
func decide(cmd *cobra.Command, env *command.Env, verb string, args []string, body map[string]any) error {
	path, err := command.PairPath("/nodes", args[0], "SITE/NODE")
	if err != nil {
		return err
	}
	if body["key"], err = wholeKey(cmd, env, args[0], strings.ToLower(args[1])); err != nil {
		return err
	}
	var out fleet.Decided
	if err := env.Call(cmd.Context(), http.MethodPost, path+"/"+verb, body, &out); err != nil {
		return err
	}
	if done, err := env.Machine(out); done {
		return err
	}
	what := "rejected: it is refused"
	if out.Approved {
		what = "approved: it may enrol"
	}
	env.Printf("the key %s of %s/%s is %s until %s", out.Key[:keyDigits], out.Site, out.Node, what, out.Until.Format(time.RFC3339))
	return nil
}

// wholeKey returns the key of a node that begins with what a person wrote.
func wholeKey(cmd *cobra.Command, env *command.Env, node, begins string) (string, error) {
	if len(begins) < keyDigits || len(begins) > 64 || strings.Trim(begins, "0123456789abcdef") != "" {
		return "", command.Usage(fmt.Errorf("key %.80q: want 16 to 64 hex digits, as colony node pending shows", begins))
	}
	if len(begins) == 64 {
		return begins, nil
	}
	site, _, _ := strings.Cut(node, "/")
	list, err := waiting(cmd, env, fleet.PendingFilter{Site: protocol.SiteID(site), Key: begins})
	if err != nil {
		return "", err
	}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Key, begins) && node == string(p.Site)+"/"+string(p.Node) {
			return p.Key, nil
		}
	}
	return "", fmt.Errorf("no node %s with a key %s waits: colony node pending lists those that do; all 64 digits of a key approve it before it comes", node, begins)
}
