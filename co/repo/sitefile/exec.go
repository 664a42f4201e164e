package sitefile

import (
	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/protocol"
)

// The values of spec.exec.
const (
	execAllowed = "allowed"
	execRefused = "refused" // the default
)

// exec reads whether programs may be run in containers of the site.
func (r *reader) exec(spec object) bool {
	if spec.fields["exec"] == nil {
		return false
	}
	got, ok := r.text(spec, "exec")
	if ok && got != execAllowed && got != execRefused {
		r.problem("spec.exec", spec.fields["exec"].Line, "%q: want %s or %s", got, execAllowed, execRefused)
	}
	return got == execAllowed
}

// SetExec returns the file of a site that allows or refuses to run programs in containers; raw is empty where there is no file. Comments are kept.
func SetExec(site protocol.SiteID, raw []byte, allowed bool) ([]byte, error) {
	value := execRefused
	if allowed {
		value = execAllowed
	}
	return edit(site, raw, func(spec *yaml.Node) error {
		if n := field(spec, "exec"); n != nil {
			*n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value, LineComment: n.LineComment, HeadComment: n.HeadComment, FootComment: n.FootComment}
			return nil
		}
		spec.Style &^= yaml.FlowStyle // such as {}
		spec.Content = append(spec.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "exec"}, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value})
		return nil
	})
}
