// Package identity has the commands about the identity of machines: the root of the fleet, the join
// tokens with which machines enrol, and revocation.
package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/disk"
)

// SiteAdd returns "colony site add".
func SiteAdd(env *command.Env) *cobra.Command {
	var ttl time.Duration
	var replace bool
	cmd := &cobra.Command{
		Use: "add SITE", Short: "Make the join token of a site's LO, and the site where there is none", Args: cobra.ExactArgs(1),
		Long: `Make a join token for the LO of a site, and the site where there is none of that name.
Write it to the file that identity.tokenFile names in the configuration of the LO: the LO
enrols itself with it, once. The token is printed here and kept nowhere; its owner
before the LO does can be the LO.

Where another machine is enrolled as the site's LO already, the token is refused unless it
was made with --replace: then that machine is revoked, as by colony site revoke.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"seconds": int(ttl / time.Second), "replace": replace}
			return token(cmd, env, args[0], "join-tokens", body)
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token holds")
	cmd.Flags().BoolVar(&replace, "replace", false, "the LO takes the place of one that is enrolled")
	return cmd
}

// NodeToken returns "colony node token".
func NodeToken(env *command.Env) *cobra.Command {
	var ttl time.Duration
	var uses int
	var replace bool
	cmd := &cobra.Command{
		Use: "token SITE", Short: "Make a join token of nodes of a site", Args: cobra.ExactArgs(1),
		Long: `Make a join token with which nodes enrol at the LO of a site. Write it to the file that
identity.tokenFile names in the configuration of the agent. The LO needs no CO when the node
comes; it has the token once it has been connected to the CO. The token is printed here and
kept nowhere.

Where another gateway is enrolled by the name of a node, the token is refused unless it was
made with --replace: then that gateway is revoked, as by colony node revoke.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"seconds": int(ttl / time.Second), "uses": uses, "replace": replace}
			return token(cmd, env, args[0], "node-tokens", body)
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token holds")
	cmd.Flags().IntVar(&uses, "uses", 1, "how many nodes may enrol with it")
	cmd.Flags().BoolVar(&replace, "replace", false, "a node may take the place of one that is enrolled by its name")
	return cmd
}

// SiteRevoke returns "colony site revoke".
func SiteRevoke(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "revoke SITE", Short: "Revoke the certificates of a site's LO", Args: cobra.ExactArgs(1),
		Long: `Revoke the certificates of the LO of a site, and of the authority with which it enrols
nodes: none of them counts any more. Its connection to the CO ends. Its nodes leave it as
soon as they hear of it, which they do by the LO that takes its place; that one knows them by
their keys, and gives them certificates of its own. What runs at the site goes on.

The machine needs a new key to come back: remove the directory identity of its state directory,
and give it a token of colony site add.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return revoke(cmd, env, "/sites/"+url.PathEscape(args[0])+"/revoke")
		},
	}
}

// NodeRevoke returns "colony node revoke".
func NodeRevoke(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "revoke SITE/NODE", Short: "Revoke the certificates of a node", Args: cobra.ExactArgs(1),
		Long: `Revoke the certificates of a node: none of them counts any more. Its connection to the LO of
its site ends as soon as that LO has the list of revoked keys. What runs on the node goes on.

The gateway needs a new key to come back: remove the directory identity of its state directory,
and give it a token of colony node token.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := command.PairPath("/nodes", args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			return revoke(cmd, env, path+"/revoke")
		},
	}
}

// revoke asks for a revocation and says what was revoked.
func revoke(cmd *cobra.Command, env *command.Env, path string) error {
	var out fleet.Revocation
	if err := env.Call(cmd.Context(), http.MethodPost, path, nil, &out); err != nil {
		return err
	}
	if done, err := env.Machine(out); done {
		return err
	}
	what := "the LO of site " + string(out.Site)
	if out.Node != "" {
		what = "node " + string(out.Site) + "/" + string(out.Node)
	}
	env.Printf("%s is revoked: its key is on the list of its site until %s", what, out.Until.Format(time.RFC3339))
	return nil
}

// token asks for a join token and prints it: the token alone on the output.
func token(cmd *cobra.Command, env *command.Env, site, kind string, body any) error {
	var out identityapi.JoinToken
	if err := env.Call(cmd.Context(), http.MethodPost, "/sites/"+url.PathEscape(site)+"/"+kind, body, &out); err != nil {
		return err
	}
	if done, err := env.Machine(out); done {
		return err
	}
	env.Printf("%s", out.Token)
	plural := "s"
	if out.Uses == 1 {
		plural = ""
	}
	fmt.Fprintf(env.Err, "join token of site %s, until %s, for %d machine%s\n", out.Site, out.Expires.Format(time.RFC3339), out.Uses, plural)
	return nil
}

// CA returns "colony ca".
func CA(env *command.Env) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use: "ca", Short: "Make, save and bring the root certificate of the fleet",
		Long: `Make, save and bring the root certificate of the fleet, with its key. It lies in
identity in the state directory of the CO. These commands work on the files; the CO reads
them when it starts. The owner of the key can be every machine of the fleet.`,
	}
	cmd.PersistentFlags().StringVar(&config, "config", "", "configuration file of the CO (required)")
	_ = cmd.MarkPersistentFlagRequired("config")
	files := func() (*store.Store, error) {
		o := co.DefaultOptions()
		if err := configfile.Load(config, &o); err != nil {
			return nil, command.Usage(err)
		}
		return store.Open(nil, store.Dir(o.StateDir))
	}
	cmd.AddCommand(&cobra.Command{
		Use: "init", Short: "Make the root of the fleet, where there is none", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := files()
			if err != nil {
				return err
			}
			a, made, err := s.InitRoot(time.Now())
			if err != nil {
				return err
			}
			if !made {
				return show(env, a, "the fleet has this root already")
			}
			return show(env, a, "the root of the fleet is made: save it with colony ca export")
		},
	}, &cobra.Command{
		Use: "export FILE", Short: "Save the root with its key to a file", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := files()
			if err != nil {
				return err
			}
			raw, err := s.ExportRoot()
			if errors.Is(err, fs.ErrNotExist) {
				return errors.New("there is no root to save: colony ca init makes one")
			}
			if err != nil {
				return err
			}
			if _, err := os.Lstat(args[0]); err == nil {
				return command.Usage(fmt.Errorf("%s exists: name a new file", args[0]))
			}
			return atomicfile.Write(disk.OS, args[0], raw, 0o600)
		},
	},
		bring(env, files, &cobra.Command{Use: "import FILE", Short: "Bring the root of a fleet that was saved"}, (*store.Store).ImportRoot),
		bring(env, files, &cobra.Command{
			Use: "adopt FILE", Short: "Make the root of the fleet of an authority of another PKI, such as a company's",
			Long: `Make the root of the fleet of an authority of another PKI, such as a company's: FILE has its PEM
certificate and its key (ECDSA P-256, PKCS #8). The root has the key and the name of the authority, and ends with
it; machines trust it and nothing else of that PKI. Programs that trust the PKI accept the machines' certificates
with the certificate of the authority between. That needs a path length of 1, or none.`,
		}, func(s *store.Store, raw []byte) (*identity.Authority, error) { return s.AdoptRoot(raw, time.Now()) }))
	return cmd
}

// bring is a command that stores a root of a file by take.
func bring(env *command.Env, files func() (*store.Store, error), cmd *cobra.Command, take func(*store.Store, []byte) (*identity.Authority, error)) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		s, err := files()
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(args[0])
		if err != nil {
			return command.Usage(err)
		}
		a, err := take(s, raw)
		if errors.Is(err, store.ErrHasRoot) {
			return fmt.Errorf("%w: the machines of that one would be locked out; remove the files root.key and root.crt first if that is wanted", err)
		}
		if err != nil {
			return err
		}
		return show(env, a, "the fleet has this root now")
	}
	return cmd
}

// show says which root the fleet has.
func show(env *command.Env, a *identity.Authority, what string) error {
	out := map[string]string{"fingerprint": fmt.Sprintf("%x", identity.KeySum(a.Root().PublicKey)), "until": a.Root().NotAfter.Format(time.RFC3339)}
	if done, err := env.Machine(out); done {
		return err
	}
	env.Printf("%s", what)
	return env.Fields("Fingerprint", out["fingerprint"], "Until", out["until"])
}
