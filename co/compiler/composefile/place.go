package composefile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// itemsOf notes the texts in each item of every list of a document, by the path of the list.
func itemsOf(items map[string][][]string, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			itemsOf(items, strings.TrimPrefix(at+"."+key, "."), value)
		}
	case []any:
		for i, item := range v {
			items[at] = append(items[at], textsOf(item))
			itemsOf(items, fmt.Sprintf("%s[%d]", at, i), item)
		}
	}
}

// textsOf returns the text of an item, or those of a mapping.
func textsOf(item any) (texts []string) {
	mapping, ok := item.(map[string]any)
	if !ok {
		return []string{fmt.Sprint(item)}
	}
	for _, key := range slices.Sorted(maps.Keys(mapping)) {
		value := mapping[key]
		switch value.(type) {
		case map[string]any, []any:
		default:
			texts = append(texts, fmt.Sprint(value))
		}
	}
	return texts
}

// quoted finds what a message has in quotes, and first what it begins with, up to a colon.
var (
	quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	first  = regexp.MustCompile(`^(?:target )?([^" ]+?):? `)
)

// apart finds what stands between the parts of an item in its short form.
var apart = regexp.MustCompile(`[:=]`)

// itemOf returns the index of the item of a list that a message is about, by the values that it
// names; -1 where it names none, or several have them.
func itemOf(items [][]string, message string) int {
	var values []string
	for _, text := range quoted.FindAllString(message, -1) {
		if value, err := strconv.Unquote(text); err == nil {
			values = append(values, value)
		}
	}
	if m := first.FindStringSubmatch(message); m != nil {
		values = append(values, strings.TrimSuffix(m[1], ":"))
	}
	whole := func(text, value string) bool {
		return strings.Replace(text, ":", "=", 1) == strings.Replace(value, ":", "=", 1)
	}
	part := func(text, value string) bool { return slices.Contains(apart.Split(text, -1), value) }
	for _, same := range []func(text, value string) bool{whole, part} {
		for _, value := range values {
			var found []int
			for i, texts := range items {
				if slices.ContainsFunc(texts, func(text string) bool { return same(text, value) }) {
					found = append(found, i)
				}
			}
			if len(found) == 1 {
				return found[0]
			}
		}
	}
	return -1
}

// index finds the index at the end of the path of an item of a list.
var index = regexp.MustCompile(`^(.*)\[(\d+)\]$`)

// Place returns the path of a place in the files, and "line N: " for it, or for the nearest around
// it that has a line. Of a list it is the line of the item that the message is about, where that
// is known. left has, by list, the indices in the file of the items that remain where some were taken out.
func (d *Document) Place(at, message string, left map[string][]int) (path, line string) {
	if m := index.FindStringSubmatch(at); m != nil {
		if i, err := strconv.Atoi(m[2]); err == nil && i < len(left[m[1]]) {
			at = fmt.Sprintf("%s[%d]", m[1], left[m[1]][i])
		}
	}
	near := at
	if part := strings.Split(at, "."); len(part) > 1 && d.Extended[part[1]] {
		near, _, _ = strings.Cut(at, "[") // the list begins with what another service has
	} else if i := itemOf(d.items[at], message); i >= 0 {
		near = fmt.Sprintf("%s[%d]", at, i)
	}
	for near != "" {
		if line := d.Lines[near]; line != "" {
			return at, line
		}
		near = near[:max(strings.LastIndexAny(near, ".["), 0)]
	}
	return at, ""
}
