package rollouts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
)

func plan(env *command.Env) *cobra.Command {
	var file string
	var nodes, markdown, check bool
	cmd := &cobra.Command{
		Use: "plan NAME -f FILE", Short: "Say what a fleet deployment would do at which sites and nodes, without doing it", Args: cobra.ExactArgs(1),
		Long: `Say what a fleet deployment would do at which sites and nodes, without doing it: from which
version to which, in which wave, what is removed, what would wait until a person confirms it
(colony proposal), and where a site's own deployment stays. colony fleet set --plan carries it
out if it still holds.

For a pull request --markdown writes a comment of up to 50 sites, and --check ends with exit code
6 where a person has to look: something would wait until one confirms it, a deployment of a
site's own stays in the way, or the plan has a note, as of a target that means no site.

` + fileHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := content(cmd, args[0], file)
			if err != nil {
				return err
			}
			out, err := outline(cmd.Context(), env, args[0], c)
			if err != nil {
				return err
			}
			done, err := env.Machine(out)
			switch {
			case done:
			case markdown:
				printMarkdown(env, &out)
			default:
				if err = printOutline(env, &out, nodes); err == nil {
					env.Printf("\ncarry it out: colony fleet set %s -f %s --plan %s", args[0], file, out.ID)
				}
			}
			if err == nil && check {
				return findings(&out)
			}
			return err
		},
	}
	fileFlag(cmd, &file)
	cmd.Flags().BoolVar(&markdown, "markdown", false, "write Markdown, as for a comment on a pull request")
	cmd.Flags().BoolVar(&check, "check", false, "end with exit code 6 where a person has to look at the plan")
	cmd.Flags().BoolVar(&nodes, "nodes", false, "list the nodes of each site, too")
	return cmd
}

// findings returns what of a plan a person has to look at, as an error; nil: nothing.
func findings(out *rollout.Outline) error {
	var parts []string
	for _, h := range out.Held {
		parts = append(parts, fmt.Sprintf("a change would wait until a person confirms it, at %d sites", h.Sites))
	}
	if n := out.Effects[rollout.Conflict]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d sites have a deployment of their own under this name", n))
	}
	if parts = append(parts, out.Notes...); len(parts) == 0 {
		return nil
	}
	return command.Fail(fmt.Errorf("the plan has what a person has to look at: %s", strings.Join(parts, "; ")))
}

func outline(ctx context.Context, env *command.Env, name string, c api.Content) (out rollout.Outline, err error) {
	return out, env.Call(ctx, http.MethodPost, fleetPath(name)+"/plan", c, &out)
}

// A change is one of a fleet deployment.
type change struct {
	name, etag string
	content    api.Content
	plan       string // id of the plan that has to hold; "": none
	dry        bool
}

func (c *change) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "commit nothing, and show what would be done")
	cmd.Flags().StringVar(&c.plan, "plan", "", "id of a plan (colony fleet plan): only if the change still is what it says")
}

// carryOut commits the change, or shows what it would do.
func (c *change) carryOut(ctx context.Context, env *command.Env) error {
	if c.dry && c.plan != "" {
		return command.Usage(errors.New("--dry-run commits nothing, so that no plan has to hold: leave out --plan"))
	}
	if c.dry {
		out, err := outline(ctx, env, c.name, c.content)
		if err != nil {
			return err
		}
		if done, err := env.Machine(out); done {
			return err
		}
		return printOutline(env, &out, false)
	}
	path := fleetPath(c.name)
	if c.plan != "" {
		path += "?" + url.Values{"plan": {c.plan}}.Encode()
	}
	var f api.FleetDeployment
	if err := env.Client().Write(ctx, client.Amendment{Method: http.MethodPut, Path: path, ETag: c.etag, Body: c.content}, &f); err != nil {
		return err
	}
	if done, err := env.Machine(f); done {
		return err
	}
	noteAll(env, f.Notes)
	env.Printf("fleet deployment %s: %s %s at commit %.12s; follow it with colony rollout show %s", f.Name, f.Content.Application.ID, f.Content.Application.Version, f.Commit, f.Name)
	return nil
}

// shownEffects are the effects in the sequence in which they are counted.
var shownEffects = []rollout.Effect{rollout.Place, rollout.Update, rollout.Same, rollout.Remove, rollout.Conflict, rollout.Reject}

func effects(of map[rollout.Effect]int) string {
	var parts []string
	for _, e := range shownEffects {
		if n := of[e]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", e, n))
		}
	}
	return strings.Join(parts, ", ")
}

func printOutline(env *command.Env, out *rollout.Outline, nodes bool) error {
	env.Printf("plan %s, for commit %.12s", out.ID, out.Commit)
	env.Printf("sites: %s", effects(out.Effects))
	if out.LookedAt > 0 {
		env.Printf("nodes: %s (of %d sites)", effects(out.Nodes), out.LookedAt)
	}
	for _, s := range out.Steps {
		env.Printf("version: %s at %d sites", step(s), s.Sites)
	}
	for _, h := range out.Held {
		env.Printf("waits until a person confirms it, at %d sites: the deployment %s", h.Sites, h.Cause)
	}
	noteAll(env, out.Notes)
	env.Printf("")
	if err := env.Table(waveHeader, waveRows(out)); err != nil {
		return err
	}
	env.Printf("")
	if err := printSites(env, out); err != nil || !nodes {
		return err
	}
	var rows [][]string
	for i := range out.Sites {
		for _, n := range out.Sites[i].Nodes {
			rows = append(rows, []string{string(out.Sites[i].Site), string(n.Node), string(n.Effect), n.From, n.To, n.Why})
		}
	}
	env.Printf("")
	return env.Table("SITE NODE EFFECT FROM TO WHY", rows)
}

// step says from which version to which sites go.
func step(s rollout.OutlineStep) string {
	switch {
	case s.Effect == rollout.Place:
		return s.To + " is new"
	case s.Effect == rollout.Remove:
		return s.From + " is removed"
	case s.Effect == rollout.Same:
		return s.To + " as it is"
	case s.From == s.To:
		return s.To + " with other values, or on other nodes"
	}
	return s.From + " to " + s.To
}

const waveHeader = "WAVE OF SITES BAKE APPROVAL"

func waveRows(out *rollout.Outline) (rows [][]string) {
	for i, w := range out.Waves {
		of := w.Group
		if of == "" {
			of = strconv.Itoa(w.Percent) + "%"
		}
		approval := ""
		if w.Approval {
			approval = "wanted"
		}
		rows = append(rows, []string{strconv.Itoa(i + 1), of, strconv.Itoa(w.Sites), w.Bake, approval})
	}
	return rows
}

const siteHeader = "SITE WAVE EFFECT FROM TO NODES REMARK"

func siteRow(s *rollout.OutlineSite) []string {
	wave := ""
	if s.Wave >= 0 {
		wave = strconv.Itoa(s.Wave + 1)
	}
	nodes := map[rollout.Effect]int{}
	for _, n := range s.Nodes {
		nodes[n.Effect]++
	}
	return []string{string(s.Site), wave, string(s.Effect), s.From, s.To, effects(nodes), remark(s)}
}

func printSites(env *command.Env, out *rollout.Outline) error {
	rows := make([][]string, len(out.Sites))
	for i := range out.Sites {
		rows[i] = siteRow(&out.Sites[i])
	}
	if err := env.Table(siteHeader, rows); err != nil {
		return err
	}
	if out.More > 0 {
		env.Printf("and %d more sites", out.More)
	}
	return nil
}

// remark is what is worth to know of a site.
func remark(s *rollout.OutlineSite) string {
	var parts []string
	if s.Held != "" {
		parts = append(parts, "waits until a person confirms it")
	}
	if s.Effect == rollout.Conflict {
		parts = append(parts, "its own deployment stays")
	}
	if s.Values {
		parts = append(parts, "values of its own")
	}
	return strings.Join(parts, "; ")
}
