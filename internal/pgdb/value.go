package pgdb

import (
	"encoding/json"
	"fmt"
	"strings"
)

// JSON encodes a value for a jsonb column. PostgreSQL refuses the escape of NUL, so
// it becomes the replacement character.
func JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode as JSON: %w", err)
	}
	for i := 0; i+5 < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if string(b[i:i+6]) == `\u0000` {
			copy(b[i:], `\ufffd`)
		}
		i++ // what follows a backslash is escaped
	}
	return b, nil
}

// Storable leaves out NUL, which PostgreSQL refuses in a text.
func Storable(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// Filled returns a slice that is not nil, which would be null in a column.
func Filled[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// FilledMap returns a map that is not nil, which would be null in JSON.
func FilledMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return m
}

// Texts returns a list as an argument of type text[].
func Texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}
