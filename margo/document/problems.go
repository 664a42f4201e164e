package document

import (
	"fmt"
	"strings"
)

// A Problem is one thing that is wrong with a document.
type Problem struct {
	// Path leads to the value, such as
	// deploymentProfiles[0].components[1].properties.timeout. Empty: the whole document.
	Path string `json:"path"`
	// Line is the line in the document, from 1; 0 where there is none, as for a
	// value that came through the API.
	Line int `json:"line,omitempty"`
	// Message says what is wrong and what is wanted.
	Message string `json:"message"`
}

// String returns "line 7: path: message", without the parts that are absent.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all the problems of one document, in the order in which they were
// found. As an error they print one to a line.
type Problems []Problem

// Error returns the problems, one to a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns p as an error, or nil where there are no problems.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}
