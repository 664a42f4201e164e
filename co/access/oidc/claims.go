package oidc

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// namePrefix tells the names of people that a provider vouches for from those of Colony's own tokens, which have no colon:
	// a person may choose the former.
	namePrefix = "oidc:"
	// mostSubject and mostName bound texts of the provider, in bytes.
	mostSubject = 255
	mostName    = 128
)

// claims are those of a token.
type claims struct{ all map[string]any }

// at returns a claim by its name, or by the names of those around it and its own with dots between them.
func (c claims) at(name string) any {
	if v, ok := c.all[name]; ok {
		return v
	}
	var v any = c.all
	for part := range strings.SplitSeq(name, ".") {
		inside, _ := v.(map[string]any)
		v = inside[part]
	}
	return v
}

// groups returns those that a claim names: a list, or one alone.
func (c claims) groups(name string) map[string]bool {
	out := map[string]bool{}
	switch v := c.at(name).(type) {
	case string:
		out[v] = true
	case []any:
		for _, each := range v {
			if group, ok := each.(string); ok {
				out[group] = true
			}
		}
	}
	return out
}

// name returns the one that a claim has, or the subject where that is none that can be shown in a line.
func (c claims) name(claim, subject string) string {
	for _, s := range []any{c.at(claim), subject} {
		text, _ := s.(string)
		bad := func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) && r != ' ' }
		if text != "" && text == strings.TrimSpace(text) && len(text) <= mostName && utf8.ValidString(text) && !strings.ContainsFunc(text, bad) {
			return text
		}
	}
	return "unnamed"
}

// time returns a claim that is a number of seconds (RFC 7519, section 2); zero where there is none.
func (c claims) time(name string) time.Time {
	if n, ok := c.at(name).(float64); ok {
		return time.Unix(int64(n), 0)
	}
	return time.Time{}
}
