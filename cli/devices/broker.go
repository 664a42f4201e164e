package devices

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
)

// atLO is where an LO serves by default.
const atLO = "http://127.0.0.1:8081"

// A brokerCall calls the interface of a broker.
type brokerCall func(cmd *cobra.Command, method string, query url.Values, out any) error

// Broker returns "colony site broker".
func Broker(env *command.Env) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use: "broker", Short: "Show the clients of a broker, and disconnect them",
		Long: `Show the clients of the broker of the site's local orchestrator, and disconnect them, on
that machine: the orchestrator answers no other client. --at names its address (the key http), or
that of the CO for the CO's own broker.`,
	}
	cmd.PersistentFlags().StringVar(&at, "at", atLO, "URL of the LO, or of the CO")
	call := func(cmd *cobra.Command, method string, query url.Values, out any) error {
		c := *env.Client()
		c.Base = at
		err := c.Call(cmd.Context(), method, "/broker/clients?"+query.Encode(), nil, out)
		return err
	}
	cmd.AddCommand(brokerClients(env, call), &cobra.Command{
		Use: "client CLIENT", Short: "Show one client", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var list admin.List
			if err := call(cmd, http.MethodGet, url.Values{"client": {args[0]}}, &list); err != nil {
				return err
			}
			one := list.Clients[0]
			if done, err := env.Machine(one); done {
				return err
			}
			return showClient(env, one)
		},
	}, brokerDisconnect(env, call))
	return cmd
}

func brokerClients(env *command.Env, call brokerCall) *cobra.Command {
	var prefix string
	var limit int
	cmd := &cobra.Command{
		Use: "clients", Short: "List the clients that have a connection or a session", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list admin.List
			query := url.Values{"limit": {strconv.Itoa(limit)}, "prefix": {prefix}}
			if err := call(cmd, http.MethodGet, query, &list); err != nil {
				return err
			}
			if done, err := env.Machine(list); done {
				return err
			}
			var rows [][]string
			for _, c := range list.Clients {
				row := []string{c.Client, c.Identity, "away", "-", "-", strconv.Itoa(c.Subscriptions), "-", "-"}
				if s := c.Session; s != nil {
					row[6], row[7] = strconv.Itoa(s.Messages), output.Size(uint64(s.Bytes))
				}
				if s := c.Connection; s != nil {
					row[2], row[3], row[4] = output.Age(&s.Since), s.MQTT, s.Remote
				}
				rows = append(rows, row)
			}
			if err := env.Table("CLIENT USER CONNECTED MQTT FROM SUBSCRIPTIONS STORED BYTES", rows); err != nil {
				return err
			}
			if list.Total > len(list.Clients) {
				fmt.Fprintf(env.Err, "%d of %d clients: --prefix or --limit shows others\n", len(list.Clients), list.Total)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose client id begins so")
	cmd.Flags().IntVar(&limit, "limit", 1000, "how many at most")
	return cmd
}

func brokerDisconnect(env *command.Env, call brokerCall) *cobra.Command {
	var session bool
	cmd := &cobra.Command{
		Use: "kick CLIENT", Short: "Disconnect a client", Args: cobra.ExactArgs(1),
		Long: `Disconnect a client; MQTT 5 clients read the reason 0x98, administrative action. It may
connect again at once: to keep it out, change or remove its account. With --session what is
stored of it is removed too: its subscriptions, and the messages that wait for it. A client that
is away has nothing else, and its client id is free then for another user.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"client": {args[0]}, "session": {strconv.FormatBool(session)}}
			if err := call(cmd, http.MethodDelete, query, nil); err != nil {
				return err
			}
			if done, err := env.Machine(map[string]any{"client": args[0], "session": session}); done {
				return err
			}
			outcome := "disconnected"
			if session {
				outcome += "; nothing is stored of it now"
			}
			fmt.Fprintf(env.Out, "%s: %s\n", args[0], outcome)
			return nil
		},
	}
	cmd.Flags().BoolVar(&session, "session", false, "remove its session too")
	return cmd
}

func showClient(env *command.Env, c admin.Client) error {
	pairs := []string{"Client", c.Client, "User", c.Identity, "Subscriptions", strconv.Itoa(c.Subscriptions)}
	if s := c.Connection; s != nil {
		pairs = append(pairs, "Connected", output.Age(&s.Since), "MQTT", s.MQTT, "Listener", s.Listener, "From", s.Remote, "Keep-alive", fmt.Sprint(s.KeepAliveSeconds, " s"),
			"Received from it", strconv.FormatInt(s.Received, 10), "Sent to it", strconv.FormatInt(s.Sent, 10), "Waiting in memory", output.Size(uint64(s.WaitingBytes)))
	}
	if s := c.Session; s != nil {
		expiry := fmt.Sprint(s.ExpirySeconds, " s")
		if s.ExpirySeconds == 1<<32-1 {
			expiry = "never"
		}
		pairs = append(pairs, "Session expires after", expiry, "Away", output.Age(s.Away), "Stored messages", strconv.Itoa(s.Messages), "Stored bytes", output.Size(uint64(s.Bytes)))
	}
	return env.Fields(pairs...)
}
