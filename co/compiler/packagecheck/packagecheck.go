// Package packagecheck judges what the description of an application package says of the rest
// of it: the files of its catalog entry, and where its parameters go. It is pure.
package packagecheck

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

// MaxStart is how much of a file shows its kind, in bytes.
const MaxStart = 4 << 10

// Resources judges the files that the catalog entry names: each is in the package, and of its
// kind. That the names lead nowhere else is the parser's rule. Find returns the first MaxStart
// bytes of a file of the package. Doc is the description, for the lines.
func Resources(app *v1rc3.Application, doc []byte, find func(file string) ([]byte, error)) v1rc3.Problems {
	var problems v1rc3.Problems
	files := app.Metadata.Catalog.Application.Files()
	for _, key := range slices.Sorted(maps.Keys(files)) {
		p := v1rc3.Problem{Path: "metadata.catalog.application." + key}
		content, err := find(path.Clean(files[key]))
		if want := wrongKind(key, content); err != nil {
			if pe, ok := errors.AsType[*fs.PathError](err); ok {
				err = pe.Err // the name is in the message
			}
			p.Message = fmt.Sprintf("the package has no file %q: %v", files[key], err)
		} else if want != "" {
			p.Message = fmt.Sprintf("the content of %q is not of its kind: want %s", files[key], want)
		} else {
			continue
		}
		problems = append(problems, p)
	}
	return document.Locate(doc, problems)
}

// wrongKind says what a file of the catalog entry should hold, where its content is
// something else; the name says nothing about it. It gets the beginning of the content.
func wrongKind(key string, content []byte) string {
	if key == "icon" {
		return "" // the standard says nothing of its form
	}
	pdf := bytes.HasPrefix(content, []byte("%PDF-"))
	switch {
	case pdf && key != "descriptionFile":
		return ""
	case !pdf && isText(content):
		return ""
	case key == "descriptionFile":
		return "text (Markdown)"
	default:
		return "text or PDF"
	}
}

// isText reports whether content, which may be cut off at MaxStart, is text in UTF-8.
func isText(content []byte) bool {
	whole := len(content)
	for !utf8.Valid(content) {
		if whole < MaxStart || len(content) <= whole-utf8.UTFMax {
			return false
		}
		content = content[:len(content)-1]
	}
	return bytes.IndexByte(content, 0) < 0
}

// WantVariable says what the pointer of a parameter is for a component of Compose.
const WantVariable = "for compose it is the name of an environment variable: letters, digits and _, not beginning with a digit"

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// IsVariable reports whether a pointer is the name of an environment variable.
func IsVariable(pointer string) bool { return variable.MatchString(pointer) }

// Pointers judges where the parameters of an application go in components of Compose: each
// pointer is the name of a variable, and no two parameters that have values set one. Doc is the
// description, for the lines.
func Pointers(app *v1rc3.Application, doc []byte) v1rc3.Problems {
	var problems v1rc3.Problems
	var components []string
	for _, p := range app.Profiles {
		for _, c := range p.Components {
			if p.Type == v1rc3.Compose && !slices.Contains(components, c.Name) {
				components = append(components, c.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(app.Parameters)) {
		for i, t := range app.Parameters[name].Targets {
			ours := slices.ContainsFunc(t.Components, func(c string) bool { return slices.Contains(components, c) })
			if ours && !IsVariable(t.Pointer) {
				problems = append(problems, v1rc3.Problem{
					Path: fmt.Sprintf("parameters.%s.targets[%d].pointer", name, i), Message: fmt.Sprintf("%q: %s", t.Pointer, WantVariable),
				})
			}
		}
	}
	always := func(v v1rc3.Variable) bool { return v.Required || v.Default != nil }
	for _, c := range components {
		all := app.Variables(c)
		for i := 1; i < len(all); i++ {
			if a, b := all[i-1], all[i]; a.Name == b.Name && always(a) && always(b) {
				problems = append(problems, v1rc3.Problem{
					Path: fmt.Sprintf("parameters.%s.targets", b.Parameter), Message: fmt.Sprintf("the parameter %s sets %s of component %s, too: take the target out of one", a.Parameter, b.Name, c),
				})
			}
		}
	}
	return document.Locate(doc, problems)
}
