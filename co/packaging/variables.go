package packaging

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/template"
)

// A use is one place in a text where a variable is asked for.
type use struct {
	name string
	// operator is "" for $NAME and ${NAME}, or one of :- - :? ? :+ +, as in ${NAME:-word}.
	operator string
	word     string
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)

// usesOf returns the variables of a text, in their order, as the library finds them that fills
// them in; those in the word of another one come after it. $$ is a plain dollar.
func usesOf(text string) (uses []use) {
	for {
		at := template.DefaultPattern.FindStringIndex(text)
		if at == nil {
			return uses
		}
		inner, rest := leading(text[at[0]:at[1]])
		if inner != "" { // else it is $$, or the lint says what is wrong with it
			uses = append(append(uses, inside(inner)...), usesOf(rest)...)
		}
		text = text[at[1]:]
	}
}

// leading returns what stands between the braces of the reference that a text begins with, and
// what follows it in the text; "" where the text begins with none. The library says where it ends.
func leading(text string) (inner, rest string) {
	match := template.DefaultPattern.FindString(text)
	if match == "" || !strings.HasPrefix(text, match) {
		return "", ""
	}
	var config template.Config
	template.WithPattern(template.DefaultPattern)(&config)
	template.WithSubstitutionFunction(func(string, template.Mapping) (string, bool, error) { return "", false, nil })(&config)
	if _, _, err := template.DefaultReplacementAppliedFunc(match, func(asked string) (string, bool) {
		inner = asked
		return "", true
	}, &config); err != nil || inner == "" {
		return "", ""
	}
	if match[1] == '{' {
		return inner, text[len("${}")+len(inner):]
	}
	return inner, text[len("$")+len(inner):]
}

// inside reads what stands between ${ and }.
func inside(text string) []use {
	name := nameForm.FindString(text)
	rest := text[len(name):]
	for _, operator := range []string{":-", ":?", ":+", "-", "?", "+"} {
		if word, ok := strings.CutPrefix(rest, operator); ok {
			return append([]use{{name, operator, word}}, usesOf(word)...)
		}
	}
	return []use{{name: name}}
}

// usesOfEnv returns the variables that an env file asks for; what stands in its comments and in
// single quotes it does not.
func usesOfEnv(content []byte) []use {
	uses, asked := usesOf(string(content)), map[string]bool{}
	for _, u := range append([]use{{}}, uses...) {
		for others, its := range map[string]string{"": "1", "1": ""} {
			_, _ = readEnv(content, func(name string) (string, bool) { // what is wrong with it, the lint says
				if asked[name] = true; name == u.name {
					return its, true
				}
				return others, true
			})
		}
	}
	return slices.DeleteFunc(uses, func(u use) bool { return !asked[u.name] })
}

// inherited returns those of the variables that an env file sets that it names without a value.
func inherited(content []byte, set map[string]string) (names []string) {
	valued, _ := readEnv(content, func(name string) (string, bool) {
		_, named := set[name]
		return "", !named
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, ok := valued[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// referring returns, for each variable of an env file, those that its value refers to: that it
// changes with.
func referring(content []byte) map[string][]string {
	found := map[string][]string{}
	own, _ := readEnv(content, func(string) (string, bool) { return "", false })
	for _, others := range []struct {
		value string
		own   bool // those that the file itself gives have the value of the file
	}{{"", false}, {"1", false}, {"", true}} {
		read := func(changed string, set bool) map[string]string {
			values, _ := readEnv(content, func(name string) (string, bool) {
				if name == changed {
					return "2", set
				}
				if _, gives := own[name]; gives && others.own {
					return "", false
				}
				return others.value, true
			})
			return values
		}
		before := read("", true)
		for _, u := range usesOf(string(content)) {
			after := []map[string]string{read(u.name, true)}
			if u.operator != "" && !strings.HasPrefix(u.operator, ":") { // it asks whether it is set
				after = append(after, read(u.name, false))
			}
			for _, values := range after {
				for name, value := range values {
					if name != u.name && value != before[name] && reserved[u.name] == "" && !slices.Contains(found[name], u.name) {
						found[name] = append(found[name], u.name)
					}
				}
			}
		}
	}
	return found
}

// readEnv reads an env file.
func readEnv(content []byte, lookup dotenv.LookupFn) (map[string]string, error) {
	return dotenv.ParseWithLookup(bytes.NewReader(content), lookup)
}
