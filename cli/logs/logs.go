// Package logs has the command that shows the logs of containers.
package logs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/commands/logstream"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// answerWait is how long the first line may take: as long as the CO waits for nodes, and some more.
const answerWait = time.Minute

// defaultTail is how many lines of each container are shown, where neither --tail nor --since says it.
const defaultTail = 1000

// flags say what is to be shown.
type flags struct {
	node, component, container, stream, grep string
	since                                    time.Duration
	tail                                     int
	follow, previous, timestamps             bool
}

// Command returns "colony logs".
func Command(env *command.Env) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "logs SITE/DEPLOYMENT", Short: "Show or follow the logs of a deployment's containers", Args: cobra.ExactArgs(1),
		Long: `Show the logs of a deployment's containers, of each node that has it or of one, or follow them with -f until you
press Ctrl-C. Where there are several nodes or containers, each line begins with whose it is.

The lines come from the nodes as they are asked for. What does not fit through the link to the site is left out,
and a line on the standard error says how much. -o json gives an object for each line, gap and end.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			site, name, err := command.Pair(args[0], "SITE/DEPLOYMENT")
			if err != nil {
				return err
			}
			if f.tail < 0 || f.tail > wire.MaxTail {
				return command.Usage(fmt.Errorf("--tail %d: want 0 to %d", f.tail, wire.MaxTail))
			}
			if f.since < 0 {
				return command.Usage(fmt.Errorf("--since %s: want a time that has passed, such as 10m", f.since))
			}
			if f.since > 0 && !cmd.Flags().Changed("tail") {
				f.tail = 0
			}
			return f.show(cmd.Context(), env, site, name)
		},
	}
	cmd.Flags().StringVar(&f.node, "node", "", "only of this node")
	cmd.Flags().StringVar(&f.component, "component", "", "only of this component")
	cmd.Flags().StringVar(&f.container, "container", "", "only of this container, the service of a Compose file")
	cmd.Flags().StringVar(&f.stream, "stream", "", "only stdout or stderr")
	cmd.Flags().StringVar(&f.grep, "grep", "", "only lines that this regular expression (RE2) matches; the node looks for it")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only of so long ago until now, such as 10m")
	cmd.Flags().IntVar(&f.tail, "tail", defaultTail, "only the last lines of each container; 0: all. With --since all is the default")
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with new lines")
	cmd.Flags().BoolVar(&f.previous, "previous", false, "of the containers before those that run, such as one that failed")
	cmd.Flags().BoolVar(&f.timestamps, "timestamps", false, "begin each line with its time, by the clock of the node")
	_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *flags) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"node": f.node, "component": f.component, "container": f.container, "stream": f.stream, "grep": f.grep} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, on := range map[string]bool{"follow": f.follow, "previous": f.previous} {
		if on {
			q.Set(name, "true")
		}
	}
	if f.since > 0 {
		q.Set("since", f.since.String())
	}
	if f.tail > 0 {
		q.Set("tail", strconv.Itoa(f.tail))
	}
	return q
}

func (f *flags) show(ctx context.Context, env *command.Env, site, name string) error {
	path := "/deployments/" + url.PathEscape(site) + "/" + url.PathEscape(name)
	var d fleet.Deployment
	if err := env.Call(ctx, http.MethodGet, path, nil, &d); err != nil {
		return err
	}
	c := env.Client()
	c.Timeout = max(c.Timeout, answerWait)
	p := printer{env: env, times: f.timestamps, whose: logstream.Whose{Containers: f.container == "" && logstream.Several(&d)}}
	if f.follow {
		return newFollower(&p, f).follow(ctx, c, path+"/logs?")
	}
	err := c.Once(ctx, path+"/logs?"+f.query().Encode(), p.event)
	switch {
	case p.fault != nil:
		return p.fault
	case err != nil && p.open != nil && !p.complete():
		return fmt.Errorf("the connection to the CO broke before the logs ended (%w): begin again, with --since for what was missed", err)
	case err != nil && !p.complete():
		return err
	}
	return p.whole()
}

// A printer writes the events of a stream of logs.
type printer struct {
	env    *command.Env
	times  bool
	whose  logstream.Whose
	open   map[protocol.NodeID]bool // the nodes that have not ended; nil: it has not begun
	faults int
	fault  error // of an event that could not be read, or written
	// follower takes the lines and ends of streams that it opens again. Nil: there is one stream.
	follower *follower
}

// complete reports whether each node has ended.
func (p *printer) complete() bool { return p.open != nil && len(p.open) == 0 }

// whole returns an error where some logs are not.
func (p *printer) whole() error {
	if p.faults > 0 {
		return command.Fail(fmt.Errorf("the logs of %d nodes are not whole", p.faults))
	}
	return nil
}

func (p *printer) event(e client.ServerEvent) (more bool, err error) {
	more, p.fault = p.print(e)
	return more, p.fault
}

func (p *printer) print(e client.ServerEvent) (more bool, err error) {
	switch e.Kind {
	case "begin":
		var b logstream.Begin
		if err := decode(e, &b); err != nil {
			return false, err
		}
		p.open, p.whose.Nodes = map[protocol.NodeID]bool{}, p.whose.Nodes || len(b.Nodes) > 1
		for _, n := range b.Nodes {
			p.open[n] = true
		}
		if p.follower != nil {
			p.follower.begin()
		}
		return true, p.machine(e)
	case "line":
		var l logstream.Line
		if err := decode(e, &l); err != nil {
			return false, err
		}
		if p.follower == nil {
			return true, p.line(e, l)
		}
		missing, known := p.follower.line(&l)
		if known {
			return true, nil
		}
		if missing.Lines > 0 {
			if err := p.gap(missing); err != nil {
				return false, err
			}
		}
		return true, p.line(e, l)
	case "gap":
		var g logstream.Gap
		if err := decode(e, &g); err != nil {
			return false, err
		}
		if p.follower != nil {
			p.follower.gap(g)
		}
		return true, p.gap(g)
	case "end":
		var end logstream.End
		if err := decode(e, &end); err != nil {
			return false, err
		}
		return p.end(e, end)
	}
	return true, p.machine(e)
}

// end takes the end of a node.
func (p *printer) end(e client.ServerEvent, end logstream.End) (more bool, err error) {
	if p.follower != nil && p.follower.end(end, p.open[end.Node]) {
		delete(p.open, end.Node)
		return !p.complete(), nil // it is asked again
	}
	delete(p.open, end.Node)
	if end.State != string(wire.Done) {
		p.faults++
		fmt.Fprintln(p.env.Err, end)
	}
	return !p.complete(), p.machine(e)
}

// gap says what is missing.
func (p *printer) gap(g logstream.Gap) error {
	if p.people() {
		fmt.Fprintf(p.env.Err, "%s: %s\n", g.Of(), g)
		return nil
	}
	b, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encode gap: %w", err)
	}
	return p.machine(client.ServerEvent{Kind: "gap", Data: string(b)})
}

func (p *printer) people() bool { return p.env.Format == "table" }

func decode(e client.ServerEvent, into any) error {
	if err := json.Unmarshal([]byte(e.Data), into); err != nil {
		return fmt.Errorf("log stream: %w", err)
	}
	return nil
}

// machine writes an event as a document, for programs.
func (p *printer) machine(e client.ServerEvent) error {
	if p.people() {
		return nil
	}
	out := map[string]any{}
	if err := decode(e, &out); err != nil {
		return err
	}
	out["event"] = e.Kind
	if p.env.Format == "json" {
		encoder := json.NewEncoder(p.env.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(out)
	}
	if _, err := fmt.Fprintln(p.env.Out, "---"); err != nil {
		return err
	}
	_, err := p.env.Machine(out)
	return err
}

// line writes a line as the container wrote it.
func (p *printer) line(e client.ServerEvent, l logstream.Line) error {
	if !p.people() {
		return p.machine(e)
	}
	var b strings.Builder
	b.WriteString(p.whose.Prefix(l.Node, l.Component, l.Container))
	if p.times {
		at := "-"
		if l.UnixMillis != 0 {
			at = time.UnixMilli(l.UnixMillis).Local().Format("2006-01-02T15:04:05.000Z07:00")
		}
		b.WriteString(at + " ")
	}
	b.WriteString(l.Text)
	if l.CutBytes > 0 {
		fmt.Fprintf(&b, "... (%d bytes more)", l.CutBytes)
	}
	_, err := fmt.Fprintln(p.env.Out, b.String())
	return err
}
