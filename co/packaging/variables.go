package packaging

import (
	"regexp"
	"strings"
)

// A use is one place in a text where a variable is asked for.
type use struct {
	name string
	// operator is "" for $NAME and ${NAME}, or one of :- - :? ? :+ +, as in ${NAME:-word}.
	operator string
	word     string
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)

// usesOf returns the variables of a text, in their order; those in the word of another
// one come after it. $$ is a plain dollar.
func usesOf(text string) (uses []use) {
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			return uses
		}
		switch rest := text[i+1:]; {
		case rest[0] == '$':
			text = rest[1:]
		case rest[0] == '{':
			end := closing(rest)
			if end < 0 {
				return uses // the lint says what is wrong with it
			}
			uses = append(uses, inBraces(rest[1:end])...)
			text = rest[end+1:]
		default:
			if name := nameForm.FindString(rest); name != "" {
				uses = append(uses, use{name: name})
				rest = rest[len(name):]
			}
			text = rest
		}
	}
}

// closing returns the index of the brace that closes the one at the beginning of text, or -1.
func closing(text string) int {
	depth := 0
	for i := range len(text) {
		switch {
		case text[i] == '}':
			if depth--; depth == 0 {
				return i
			}
		case text[i] == '{' && (i == 0 || text[i-1] == '$'):
			depth++
		}
	}
	return -1
}

// inBraces reads what stands between ${ and }.
func inBraces(text string) []use {
	name := nameForm.FindString(text)
	if name == "" {
		return nil
	}
	rest := text[len(name):]
	for _, operator := range []string{":-", ":?", ":+", "-", "?", "+"} {
		if word, ok := strings.CutPrefix(rest, operator); ok {
			return append([]use{{name, operator, word}}, usesOf(word)...)
		}
	}
	if rest != "" {
		return nil
	}
	return []use{{name: name}}
}
