package commands

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// Terms are the flags of a restriction.
type Terms struct {
	reason string
	lasts  time.Duration
	force  bool
}

// Args returns the arguments of a kind; nil where it has none.
func (t *Terms) Args(kind wire.Kind) (args *wire.Restriction, err error) {
	if kind == wire.Uncordon || kind == wire.Release {
		return nil, nil
	}
	if err := restriction.CheckTerms(t.reason, t.lasts); err != nil {
		return nil, command.Usage(err)
	}
	return &wire.Restriction{Reason: t.reason, ForMillis: uint64(t.lasts.Milliseconds()), Force: t.force}, nil
}

// restricting are the kinds of commands that change what restricts a node, with what people read about them.
var restricting = []struct {
	kind        wire.Kind
	short, long string
}{
	{wire.Cordon, "Place nothing new on a node; what runs there stays", "A cordon ends by colony node uncordon, or after the time of --for."},
	{wire.Uncordon, "End a cordon or a drain of a node", "What a drain has moved away stays where it is."},
	{wire.Drain, "Place nothing new on a node, and move away what can move", `A replica of a deployment for a number of nodes moves where another node can take it: it is healthy there before it is
removed here. What has volumes or devices stays, unless --force is given: then volumes stay behind on the node. What stays, and
why, is in colony node show. A drain ends by colony node uncordon, or after the time of --for.`},
	{wire.Hold, "Keep a node as it is: nothing is installed, updated, moved or removed", `Restarts after a crash go on, revocations arrive, and so does what was assigned to the node before. What waits is in
colony node show. A hold ends by colony node release, or after the time of --for.`},
	{wire.Release, "End a hold of a node", "What has waited follows at once."},
}

// Restrictions returns a command for each way to change what restricts a node. use names the node in its usage, run does it.
func Restrictions(use string, run func(cmd *cobra.Command, kind wire.Kind, node string, t *Terms) error) (all []*cobra.Command) {
	for _, r := range restricting {
		var t Terms
		cmd := &cobra.Command{
			Use: string(r.kind) + " " + use, Short: r.short, Long: r.short + ".\n\n" + r.long, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, r.kind, args[0], &t) },
		}
		if r.kind != wire.Uncordon && r.kind != wire.Release {
			cmd.Flags().StringVar(&t.reason, "reason", "", "why, for those who find the node restricted (required)")
			cmd.Flags().DurationVar(&t.lasts, "for", 0, "for how long, such as 2h (default until a person ends it)")
			_ = cmd.MarkFlagRequired("reason")
		}
		if r.kind == wire.Drain {
			cmd.Flags().BoolVar(&t.force, "force", false, "move also what has volumes or devices: volumes stay behind on the node")
		}
		all = append(all, cmd)
	}
	return all
}

// NodeRestrictions returns "colony node cordon" and its like: commands that a site carries out for its nodes.
func NodeRestrictions(env *command.Env) []*cobra.Command {
	asked := map[wire.Kind]*asking{}
	all := Restrictions("SITE/NODE", func(cmd *cobra.Command, kind wire.Kind, name string, t *Terms) error {
		site, node, err := command.Pair(name, "SITE/NODE")
		if err != nil {
			return err
		}
		args, err := t.Args(kind)
		if err != nil {
			return err
		}
		o := asked[kind]
		o.nodes = []string{node}
		if args == nil {
			return o.ask(cmd.Context(), env, kind, nil, site)
		}
		return o.ask(cmd.Context(), env, kind, args, site)
	})
	for i, r := range restricting {
		o := &asking{}
		asked[r.kind] = o
		o.waits(all[i])
	}
	return all
}
