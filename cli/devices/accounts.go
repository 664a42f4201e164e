// Package devices has the commands about the clients of brokers, most of which are devices:
// the accounts that sites have for them, and the connections and sessions that they have.
package devices

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/repo/sitefile"
)

// bcryptCost makes a check take about a tenth of a second on a gateway.
const bcryptCost = 10

// Accounts returns "colony site device".
func Accounts(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "device", Short: "Show and change the accounts of a site's devices",
		Long: `Show and change the accounts of clients of a site's broker that are no part of Colony,
such as a PLC or a SCADA system: which topics they may publish and subscribe to, and which
client ids they may have. They are in the file sites/SITE/site.yaml of the deployments repo;
each change is a commit. The site follows it while it runs: clients whose account was removed,
or has another password, are disconnected.`,
	}
	cmd.AddCommand(&cobra.Command{
		Use: "list SITE", Short: "List the device accounts of a site", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var list sitedata.Devices
			if err := env.Call(cmd.Context(), http.MethodGet, devicesPath(args[0]), nil, &list); err != nil {
				return err
			}
			if done, err := env.Machine(list); done {
				return err
			}
			if list.Problem != "" {
				fmt.Fprintf(env.Err, "the site's file is not valid, so the last good accounts hold:\n  %s\n", strings.ReplaceAll(list.Problem, "\n", "\n  "))
			}
			var rows [][]string
			for _, d := range list.Devices {
				kind := "generated"
				if d.Password.Bcrypt != "" {
					kind = "chosen"
				}
				rows = append(rows, []string{d.User, strings.Join(d.ClientIDs, " "), strings.Join(d.Publish, " "), strings.Join(d.Subscribe, " "), kind})
			}
			return env.Table("USER CLIENT-IDS PUBLISH SUBSCRIBE PASSWORD", rows)
		},
	}, add(env), &cobra.Command{
		Use: "remove SITE USER", Short: "Remove a device account of a site", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.Client().Write(cmd.Context(), client.Amendment{Method: http.MethodDelete, Path: devicePath(args)}, nil); err != nil {
				return err
			}
			if done, err := env.Machine(map[string]string{"site": args[0], "user": args[1]}); done {
				return err
			}
			fmt.Fprintf(env.Out, "%s: device account %s removed from the deployments repo\n", args[0], args[1])
			return nil
		},
	})
	return cmd
}

func devicesPath(site string) string { return "/sites/" + url.PathEscape(site) + "/devices" }

func devicePath(args []string) string { return devicesPath(args[0]) + "/" + url.PathEscape(args[1]) }

// A newDevice is what add prints of an account.
type newDevice struct {
	Site     string `json:"site"`
	User     string `json:"user"`
	Password string `json:"password,omitempty"` // where it was generated
}

func add(env *command.Env) *cobra.Command {
	var d sitefile.Device
	var file string
	cmd := &cobra.Command{
		Use: "add SITE USER", Short: "Add a device account to a site, or replace it", Args: cobra.ExactArgs(2),
		Long: `Add the account of a device to a site, or replace that of the same user. A password of 128
random bits is made and printed once; the repo has its SHA-256 alone. For a device whose
password cannot be set so, --password-file names a file with one that was chosen; the repo
has its bcrypt hash, and the site checks two of those at a time.`,
		Example: `  colony site device add plant1 plc-7 --client-id 'PLC7*' --publish 'line1/plc7/#' --subscribe 'line1/orders/#'
  colony site device add plant1 browser --subscribe '#'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, err := setPassword(&d.Password, file)
			if err != nil {
				return err
			}
			body := map[string]any{"password": d.Password}
			for key, list := range map[string][]string{"clientIDs": d.ClientIDs, "publish": d.Publish, "subscribe": d.Subscribe} {
				if len(list) > 0 {
					body[key] = list
				}
			}
			if err := env.Client().Write(cmd.Context(), client.Amendment{Method: http.MethodPut, Path: devicePath(args), Body: body}, nil); err != nil {
				return err
			}
			if done, err := env.Machine(newDevice{args[0], args[1], secret}); done {
				return err
			}
			fmt.Fprintf(env.Out, "%s: device account %s is in the deployments repo\n", args[0], args[1])
			if secret != "" {
				fmt.Fprintf(env.Out, "password: %s\nIt is shown this once and stored nowhere.\n", secret)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&d.ClientIDs, "client-id", nil, "a client id that it may have, * for any characters (default its user name, and what begins with that and a slash)")
	f.StringArrayVar(&d.Publish, "publish", nil, "an MQTT topic filter of what it may publish")
	f.StringArrayVar(&d.Subscribe, "subscribe", nil, "an MQTT topic filter of what it may receive")
	f.StringVar(&file, "password-file", "", "a file with a password that was chosen; without it one is made")
	return cmd
}

// setPassword hashes the password in a file, or without one makes a password, which it returns.
func setPassword(p *sitefile.Password, file string) (secret string, err error) {
	if file == "" {
		random := make([]byte, 16)
		_, _ = rand.Read(random) // never fails
		secret = base64.RawURLEncoding.EncodeToString(random)
		sum := sha256.Sum256([]byte(secret))
		p.SHA256 = hex.EncodeToString(sum[:])
		return secret, nil
	}
	chosen, err := os.ReadFile(file)
	if err != nil {
		return "", command.Usage(fmt.Errorf("read the password: %w", err))
	}
	chosen = bytes.TrimRight(chosen, "\r\n")
	if len(chosen) < 8 {
		return "", command.Usage(errors.New("the password is too short: want 8 bytes or more, or leave out --password-file"))
	}
	hash, err := bcrypt.GenerateFromPassword(chosen, bcryptCost)
	if err != nil {
		return "", command.Usage(fmt.Errorf("hash the password: %w", err))
	}
	p.Bcrypt = string(hash)
	return "", nil
}
