package composefile

import (
	"fmt"
	"slices"
	"strings"
)

// Uses returns the variables that each text of a document names, by its path: with a $, or as
// the content of a config or secret.
func Uses(document map[string]any) map[string][]string {
	uses := map[string][]string{}
	usesBelow(uses, "", document)
	return uses
}

func usesBelow(uses map[string][]string, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			below := strings.TrimPrefix(at+"."+key, ".")
			name, ok := value.(string)
			if object := strings.HasPrefix(at, "configs.") || strings.HasPrefix(at, "secrets."); object && key == "environment" && ok {
				uses[below] = append(uses[below], name)
			}
			usesBelow(uses, below, value)
		}
	case []any:
		for i, value := range v {
			usesBelow(uses, fmt.Sprintf("%s[%d]", at, i), value)
		}
	case string:
		for _, found := range reference.FindAllString(v, -1) {
			if name := strings.TrimLeft(found, "${"); name != "" && !slices.Contains(uses[at], name) {
				uses[at] = append(uses[at], name)
			}
		}
	}
}

// Profiles returns the names of profiles that the services of a document have, sorted. One
// that a variable names is left out.
func Profiles(document map[string]any) (all []string) {
	services, _ := document["services"].(map[string]any)
	for _, v := range services {
		service, _ := v.(map[string]any)
		names, _ := service["profiles"].([]any)
		for _, name := range names {
			if text, ok := name.(string); ok && text != "" && !strings.ContainsAny(text, "$,") {
				all = append(all, text)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
