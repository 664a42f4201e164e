// Package auditcmd has the commands about the audit.
package auditcmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	"github.com/colonyfleet/colony/co/audit"
)

// mostEntries is how many entries a page of the API has at most.
const mostEntries = 1000

// Command returns "colony audit".
func Command(env *command.Env) *cobra.Command {
	var f filter
	cmd := &cobra.Command{
		Use: "audit", Short: "Show the operations of the CO's API, newest last", Args: cobra.NoArgs,
		Long: `Show operations with their principal, address and outcome: operations that change something, and
requests that were refused. An operation that changed the deployments repo names its commits, which name
the operation in turn (Colony-Audit). It needs the role admin where the CO wants tokens.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.show(cmd.Context(), env) },
	}
	cmd.Flags().StringVar(&f.principal, "principal", "", "only of this one, as colony token list names it")
	cmd.Flags().StringVar(&f.target, "target", "", "only where the path begins so, such as /api/v1/deployments/plant/")
	cmd.Flags().BoolVar(&f.refused, "refused", false, "only what was refused")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only of so long ago until now, such as 24h; 0: all")
	cmd.Flags().IntVar(&f.limit, "limit", 50, "how many at most")
	cmd.AddCommand(verify(env))
	return cmd
}

type filter struct {
	principal, target string
	refused           bool
	since             time.Duration
	limit             int
}

func (f filter) show(ctx context.Context, env *command.Env) error {
	if f.limit < 1 || f.limit > mostEntries {
		return command.Usage(fmt.Errorf("--limit %d: want 1 to %d", f.limit, mostEntries))
	}
	if f.since < 0 {
		return command.Usage(fmt.Errorf("--since %s: want a time that has passed, such as 24h", f.since))
	}
	query := url.Values{"limit": {strconv.Itoa(f.limit)}}
	if f.principal != "" {
		query.Set("principal", f.principal)
	}
	if f.target != "" {
		query.Set("target", f.target)
	}
	if f.refused {
		query.Set("kind", string(audit.Refused))
	}
	if f.since > 0 {
		query.Set("since", time.Now().Add(-f.since).UTC().Format(time.RFC3339))
	}
	var page auditapi.Entries
	if err := env.Call(ctx, http.MethodGet, "/audit?"+query.Encode(), nil, &page); err != nil {
		return err
	}
	if done, err := env.Machine(page.Items); done {
		return err
	}
	rows := make([][]string, len(page.Items))
	for i, e := range page.Items {
		rows[len(rows)-1-i] = []string{e.At.Local().Format(time.DateTime), who(e), e.Remote, e.Operation, e.Target, result(e)}
	}
	return env.Table("TIME WHO FROM OPERATION TARGET RESULT", rows)
}

func who(e audit.Entry) string {
	switch {
	case e.Principal != "":
		return e.Principal
	case e.Kind == audit.Local:
		return "the CO's machine"
	}
	return "-"
}

// result says in a few words what became of an operation.
func result(e audit.Entry) string {
	text := "no answer yet"
	switch {
	case e.Kind == audit.Refused:
		text = fmt.Sprintf("refused (%d)", e.Status)
	case e.Kind == audit.Local || e.Kind == audit.Pushed || e.Status != 0 && e.Status < http.StatusBadRequest:
		text = "done"
	case e.Status != 0:
		text = fmt.Sprintf("failed (%d)", e.Status)
	case e.DoneAt != nil:
		text = "not known"
	}
	for _, c := range e.Commits {
		text += ", commit " + c[:min(len(c), 12)]
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// errWrong is the error of a record that is not what was written.
var errWrong = errors.New("the audit is not what was written")

func verify(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Verify that the audit is what was written", Args: cobra.NoArgs,
		Long: `Verify that no row of the audit was changed, removed or reordered after it was written: each row carries
the hash of all before it, and the CO keeps signed checkpoints of that chain in a file outside of its database.
A row that was written within the last second may not be in the chain yet; what was cut off after the last
checkpoint, which is at most a minute old, cannot be noticed, nor that a user that may write to the database adds
rows. Each replica of a CO compares with the checkpoints that it has written itself.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all auditapi.Verification
			for next := ""; ; {
				var out auditapi.Verification
				if err := env.Call(cmd.Context(), http.MethodGet, "/audit/verification?"+url.Values{"cursor": {next}}.Encode(), nil, &out); err != nil {
					return err
				}
				out.Rows, out.More = out.Rows+all.Rows, out.More+all.More
				out.Findings = append(all.Findings, out.Findings...)
				all, next = out, out.Next
				if next == "" {
					break
				}
			}
			if done, err := env.Machine(all); done && err != nil {
				return err
			} else if !done {
				say(env, all)
			}
			if len(all.Findings)+all.BadCheckpoints > 0 {
				return errWrong
			}
			return nil
		},
	}
}

func say(env *command.Env, v auditapi.Verification) {
	for _, f := range v.Findings {
		where := fmt.Sprintf("position %d", f.Position)
		if f.ID != "" {
			where += ", row " + f.ID
		}
		env.Printf("%s: %s", where, f.Problem)
	}
	if v.More > 0 {
		env.Printf("and %d more", v.More)
	}
	if v.BadCheckpoints > 0 {
		env.Printf("%d lines of the file of checkpoints are none, or another key signed them", v.BadCheckpoints)
	}
	if v.Checkpoints == 0 && v.Rows > 0 {
		env.Printf("this CO has no checkpoint yet to compare with: a chain that was written anew is not noticed")
	}
	env.Printf("%d rows, up to position %d with hash %s; %d signed checkpoints", v.Rows, v.Position, v.Hash, v.Checkpoints)
}
