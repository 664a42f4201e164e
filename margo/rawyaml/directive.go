package rawyaml

import (
	"bytes"
	"regexp"
)

// versioned is the directive with a minor version of YAML 1.
var versioned = regexp.MustCompile(`^(%YAML[ \t]+1\.)[0-9]+([ \t\r\n#]|$)`)

// AnyMinor returns a document whose directive %YAML, if it has one, names version 1.1: the
// reader refuses each other one, and YAML wants a later minor version to be read (YAML 1.2.2,
// 6.8.1). Everything stays in its line. The document that is given is not changed.
func AnyMinor(raw []byte) []byte {
	rest := bytes.TrimPrefix(raw, []byte("\ufeff"))
	for len(rest) > 0 {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		begin := len(raw) - len(rest)
		switch text := bytes.TrimSpace(line); {
		case versioned.Match(rest):
			return append(bytes.Clone(raw[:begin]), versioned.ReplaceAll(rest, []byte("${1}1${2}"))...)
		case len(text) > 0 && text[0] != '#' && text[0] != '%':
			return raw // the document has begun
		}
		rest = after
	}
	return raw
}
