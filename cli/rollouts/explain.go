package rollouts

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/co/rollout/explain"
)

// Explain returns "colony explain".
func Explain(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "explain SITE/DEPLOYMENT", Short: "Say why a deployment is at a site, or is not, and what comes next", Args: cobra.RangeArgs(1, 2),
		Long: `Say why a deployment is at a site and in the state that it is in: which files and commits
of the deployments repo ask for it, which targets of a fleet deployment match, where the
site stands in the rollout and what that waits for, which version is desired, adopted and
running, why the site has chosen each node or has not, and what comes next. Of a site that
does not have it, it says why not. SITE and DEPLOYMENT may be two arguments.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := command.PairPath("/deployments", strings.Join(args, "/"), "SITE/DEPLOYMENT")
			if err != nil {
				return err
			}
			var e explain.Explanation
			if err := env.Call(cmd.Context(), http.MethodGet, path+"/explain", nil, &e); err != nil {
				return err
			}
			if done, err := env.Machine(e); done {
				return err
			}
			return printExplanation(env, &e)
		},
	}
}

func printExplanation(env *command.Env, e *explain.Explanation) error {
	env.Printf("%s", e.Summary)
	env.Printf("")
	fields := []string{"State", string(e.State), "Since", output.Age(e.Since), "Reason", e.Reason}
	if t := e.Target; t != nil {
		fields = append(fields, "Target", meant(t))
	}
	if v := e.Versions; v != nil {
		fields = append(fields, "Desired", v.App+" "+v.Desired, "Running", output.Pairs(v.Running), "Adopted", fmt.Sprintf("generation %d, the last change is of %d", v.Adopted, v.Generation))
	}
	if r := e.Rollout; r != nil {
		fields = append(fields, "Rollout", fmt.Sprintf("revision %d (%s) is %s, in wave %d", r.Revision, r.Version, r.State, r.Current+1), "Waits", r.Waits)
		if r.Site != "" {
			fields = append(fields, "Site", fmt.Sprintf("%s, of wave %d; it may have revision %d", r.Site, r.Wave+1, r.May), "Site since", output.Age(r.Since), "Admitted", output.At(r.Admitted), "Why", r.Why)
		}
	}
	if err := env.Fields(fields...); err != nil {
		return err
	}
	var rows [][]string
	for _, f := range e.Said {
		rows = append(rows, []string{f.Path, fmt.Sprintf("%.12s", f.Commit), f.Says})
	}
	if err := section(env, "FILE COMMIT SAYS", rows); err != nil {
		return err
	}
	rows = nil
	for _, v := range e.Values {
		rows = append(rows, []string{v.Name, fmt.Sprint(v.Value), v.From})
	}
	if err := section(env, "PARAMETER VALUE FROM", rows); err != nil {
		return err
	}
	rows = nil
	for i := range e.Nodes {
		n := &e.Nodes[i]
		rows = append(rows, []string{string(n.Node), n.Online, yes(n.Chosen), string(n.State), n.Version, n.Running, output.Age(n.Since), strings.TrimPrefix(n.Why+"; "+n.Reason, "; ")})
	}
	for i := range rows {
		rows[i][7] = strings.TrimSuffix(rows[i][7], "; ")
	}
	if err := section(env, "NODE ONLINE CHOSEN STATE VERSION RUNNING SINCE WHY", rows); err != nil {
		return err
	}
	rows = nil
	for i, s := range e.Next {
		rows = append(rows, []string{strconv.Itoa(i + 1), output.At(s.At), s.What})
	}
	return section(env, "NEXT AT WHAT", rows)
}

// section shows a table that has rows, below an empty line.
func section(env *command.Env, columns string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	env.Printf("")
	return env.Table(columns, rows)
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

// meant says whether the targets of a fleet deployment mean the site.
func meant(t *explain.ExplainedTarget) string {
	switch {
	case len(t.Except) > 0:
		return "no: " + strings.Join(t.Except, ", ")
	case !t.Meant:
		return "no entry matches"
	}
	return strings.Join(t.By, ", ")
}
