// Package local has the commands for the machine of a site's LO, which ask the LO at its Unix socket and need no CO.
package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/commands"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/lo/api/local"
	"github.com/colonyfleet/colony/lo/nodes/nodestatus"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// defaultSocket is where the package of the LO has it.
const defaultSocket = "/run/colony-lo/lo.sock"

// Command returns "colony lo node".
func Command(env *command.Env) *cobra.Command {
	o := orchestrator{env: env}
	cmd := &cobra.Command{
		Use: "node", Short: "Show, cordon, drain and hold nodes of the site at its own machine",
		Long: `Show, cordon, drain and hold nodes of a site on the machine of its local orchestrator, which works without the central
orchestrator. The local orchestrator serves it at the Unix socket that its configuration names (socket), to its own user and
group, and to root. What was done, and by which user, the central orchestrator learns once the link is there.`,
	}
	cmd.PersistentFlags().StringVar(&o.socket, "socket", defaultSocket, "path of the socket: the key socket of the configuration of the local orchestrator")
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List the nodes of the site", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var nodes []nodestatus.NodeStatus
			if err := o.call(cmd.Context(), http.MethodGet, "", nil, &nodes); err != nil {
				return err
			}
			if done, err := env.Machine(nodes); done {
				return err
			}
			return env.Table("NODE STATE SINCE RESTRICTED WAITS", rows(nodes))
		},
	})
	cmd.AddCommand(commands.Restrictions("NODE", func(cmd *cobra.Command, kind wire.Kind, node string, t *commands.Terms) error {
		args, err := t.Args(kind)
		if err != nil {
			return err
		}
		var a local.Answer
		if err := o.call(cmd.Context(), http.MethodPost, "/"+url.PathEscape(node)+"/"+string(kind), args, &a); err != nil {
			return err
		}
		if done, err := env.Machine(a); done {
			return err
		}
		env.Printf("%s: %s", node, a.Said)
		return nil
	})...)
	return cmd
}

func rows(nodes []nodestatus.NodeStatus) [][]string {
	out := make([][]string, len(nodes))
	for i, n := range nodes {
		var restricted, waits []string
		for j := range n.Restrictions {
			restricted = append(restricted, n.Restrictions[j].String())
		}
		for _, w := range n.Waits {
			waits = append(waits, string(w.Deployment)+": "+w.Why)
		}
		out[i] = []string{string(n.Node), output.OnOff(n.Online), output.Age(&n.Changed), strings.Join(restricted, "; "), strings.Join(waits, "; ")}
	}
	return out
}

// An orchestrator is the LO at a socket.
type orchestrator struct {
	env    *command.Env
	socket string
}

// call calls the LO.
func (o *orchestrator) call(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, o.env.Timeout)
	defer cancel()
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://lo"+local.NodesPath+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", o.socket)
	}}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return &client.Problem{Status: http.StatusServiceUnavailable, Detail: fmt.Sprintf(
			"the local orchestrator does not answer at the socket %s (%v): see that it runs, that its configuration names the socket, and that you may open it", o.socket, err)}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		var a local.Answer
		if err := json.NewDecoder(answer.Body).Decode(&a); err != nil || a.Error == "" {
			return fmt.Errorf("the local orchestrator answers with status %d", answer.StatusCode)
		}
		status := http.StatusInternalServerError
		switch a.Kind {
		case protocol.NotFound:
			status = http.StatusNotFound
		case protocol.Invalid:
			status = http.StatusUnprocessableEntity
		case protocol.Unavailable:
			status = http.StatusServiceUnavailable
		case protocol.Conflict, protocol.Denied, protocol.Internal:
		}
		return &client.Problem{Status: status, Detail: a.Error}
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer of the local orchestrator: %w", err)
	}
	return nil
}
