package document

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Locate returns the problems with the lines of their paths in a document. A path that
// the document does not have gets the line of the nearest value around it; problems that
// have a line keep it. Where raw cannot be read nothing is known of lines.
func Locate(raw []byte, problems Problems) Problems {
	located := slices.Clone(problems)
	top, _, err := Read(raw, func(string, int, string) bool { return true })
	if err != nil {
		return located
	}
	for i := range located {
		if located[i].Line == 0 && located[i].Path != "" {
			located[i].Line = lineOf(top, located[i].Path)
		}
	}
	return located
}

// lineOf returns the line of the value with the longest path that leads to path.
func lineOf(v Value, path string) int {
	v = v.deref()
	if v.node.Kind == yaml.SequenceNode {
		for i, item := range v.node.Content {
			at := fmt.Sprintf("%s[%d]", v.path, i)
			if rest, ok := strings.CutPrefix(path, at); ok {
				if rest == "" {
					return item.Line
				}
				return lineOf(v.at(item, at), path)
			}
		}
	}
	if v.node.Kind != yaml.MappingNode {
		return v.node.Line
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		at := join(v.path, k.Value)
		if path == at {
			return k.Line
		}
		if len(path) > len(at) && path[:len(at)] == at && (path[len(at)] == '.' || path[len(at)] == '[') {
			return max(k.Line, lineOf(v.at(v.node.Content[i+1], at), path))
		}
	}
	return v.node.Line
}
