package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// NodeDiagnostics returns "colony node diagnostics".
func NodeDiagnostics(env *command.Env) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "diagnostics SITE/NODE", Short: "Collect what a node knows of itself, in an archive", Args: cobra.ExactArgs(1),
		Long: `Collect what a node knows of itself: states and the last moves of its deployments,
the last 2,000 lines of each log, inventory, containers, network, disks, kernel log,
metrics, versions and the configuration of the agent. Values of parameters and of
variables of applications are not in it; what they write to their logs is. Your role
needs nodes:collect.

The archive is a compressed tar file. What could not be collected is in its file
faults.txt, with the reason.`,
		Example: `  colony node diagnostics plant/gw-1
  colony node diagnostics plant/gw-1 --out - | tar tz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return (&collection{env, args[0], "diagnostics", nil, to}).get(cmd.Context())
		},
	}
	outFlag(cmd, &to)
	return cmd
}

// NodeFiles returns "colony node files".
func NodeFiles(env *command.Env) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "files SITE/NODE PATH...", Short: "Collect files of a node, in an archive", Args: cobra.MinimumNArgs(2),
		Long: `Collect files of a node. Its agent's configuration says which may be (key files);
without a word there none may. A path is absolute; * in it stands for a name. Symbolic
links are not followed. Your role needs nodes:collect.`,
		Example: `  colony node files plant/gw-1 /var/log/syslog '/var/log/plc/*.log'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, p := range args[1:] {
				if err := wire.CheckPath(p); err != nil {
					return command.Usage(err)
				}
			}
			return (&collection{env, args[0], "files", url.Values{"path": args[1:]}, to}).get(cmd.Context())
		},
	}
	outFlag(cmd, &to)
	return cmd
}

func outFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "out", "", "write the archive to this file, or with - to the standard output; default a file here that is named after the node")
}

// A collection is what a node is asked for.
type collection struct {
	env        *command.Env
	node, what string
	query      url.Values
	to         string
}

// get writes the archive to a file, once it is there as a whole.
func (c *collection) get(ctx context.Context) error {
	path, err := command.PairPath("/nodes", c.node, "SITE/NODE")
	if err != nil {
		return err
	}
	if path += "/" + c.what; len(c.query) > 0 {
		path += "?" + c.query.Encode()
	}
	if c.to == "-" {
		return c.env.Client().Download(ctx, path, func(r io.Reader) error {
			_, err := io.Copy(c.env.Out, r)
			return broken(err)
		})
	}
	to := cmp.Or(c.to, fmt.Sprintf("%s-%s-%s.tar.gz", strings.ReplaceAll(c.node, "/", "-"), c.what, time.Now().UTC().Format("20060102T150405Z")))
	var size int64
	err = c.env.Client().Download(ctx, path, func(r io.Reader) error {
		var err error
		size, err = output.WriteFile(to, func(w io.Writer) (int64, error) {
			n, err := io.Copy(w, r)
			return n, broken(err)
		})
		return err
	})
	if err != nil {
		return err
	}
	c.env.Printf("%s: %s", to, output.Size(uint64(max(size, 0))))
	return nil
}

// broken says of an archive that did not come as a whole what to do.
func broken(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the archive did not come as a whole: %w; colony command list --kind diagnostics, or files, has the reason, and another try begins anew", err)
}
