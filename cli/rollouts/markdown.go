package rollouts

import (
	"cmp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/rollout"
)

// sitesInMarkdown bounds the sites of a plan in Markdown, so that it fits into a comment, which at the common hosts of git has at most
// 65,536 characters.
const sitesInMarkdown = 50

// printMarkdown writes a plan as a comment on a pull request. Sites at which nothing changes are left out, and those that need a look come
// first: where something would wait for a person or a deployment of the site's own stays, then where something is removed.
func printMarkdown(env *command.Env, out *rollout.Outline) {
	env.Printf("### Plan of `%s`\n\nFor commit `%.12s`, sites: %s.", out.Fleet, out.Commit, effects(out.Effects))
	if out.LookedAt > 0 {
		env.Printf("Nodes of %d sites: %s.", out.LookedAt, effects(out.Nodes))
	}
	env.Printf("")
	for _, s := range out.Steps {
		env.Printf("- %s at %d sites", cell(step(s)), s.Sites)
	}
	for _, h := range out.Held {
		env.Printf("- **waits until a person confirms it**, at %d sites: the deployment %s", h.Sites, cell(h.Cause))
	}
	for _, n := range out.Notes {
		env.Printf("- **note**: %s", cell(n))
	}
	table(env, waveHeader, waveRows(out))

	changes := slices.DeleteFunc(slices.Clone(out.Sites), func(s rollout.OutlineSite) bool { return s.Effect == rollout.Same })
	slices.SortStableFunc(changes, func(a, b rollout.OutlineSite) int { return cmp.Compare(urgency(&a), urgency(&b)) })
	shown := changes[:min(len(changes), sitesInMarkdown)]
	rows := make([][]string, len(shown))
	for i := range shown {
		rows[i] = siteRow(&shown[i])
	}
	table(env, siteHeader, rows)
	if more := out.More + len(changes) - len(shown); more > 0 {
		env.Printf("\nand %d more sites", more)
	}
}

// urgency sorts sites: what a reviewer has to see comes first.
func urgency(s *rollout.OutlineSite) int {
	switch {
	case s.Held != "" || s.Effect == rollout.Conflict:
		return 0
	case s.Effect == rollout.Remove:
		return 1
	}
	return 2
}

// table writes a table of Markdown, by the header of a table of columns. Without rows it writes nothing.
func table(env *command.Env, header string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	names := strings.Fields(header)
	env.Printf("\n| %s |\n|%s", strings.ToLower(strings.Join(names, " | ")), strings.Repeat("---|", len(names)))
	for _, r := range rows {
		cells := make([]string, len(r))
		for i := range r {
			cells[i] = cell(r[i])
		}
		env.Printf("| %s |", strings.Join(cells, " | "))
	}
}

// cell returns a text that is one cell of a table of Markdown, and nothing else there.
var cell = strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "<", "&lt;", "`", `\`+"`", "*", `\*`, "_", `\_`, "[", `\[`, "@", "@&#8203;").Replace
