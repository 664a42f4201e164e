package fleetdb

import (
	"encoding/base64"
	"strings"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

const separator = "\x1f"

// after reads a cursor of n keys. The empty cursor has empty keys, which come
// before all others.
func after(p fleet.Page, n int) ([]string, error) {
	if p.Cursor == "" {
		return make([]string, n), nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	keys := strings.Split(string(b), separator)
	if err != nil || len(keys) != n || strings.ToValidUTF8(string(b), "\x00") != string(b) || strings.Contains(string(b), "\x00") {
		return nil, protocol.Errorf(protocol.Invalid, "cursor %q is not one of this list's: take it from the page before", p.Cursor)
	}
	return keys, nil
}

// cut makes a page of items that were read with one more than its size. key
// returns the keys of an item; the last one's make the cursor of the next page.
func cut[T any](items []T, p fleet.Page, key func(T) []string) (page []T, next string) {
	n := fleet.Size(p.Limit)
	if len(items) <= n {
		return items, ""
	}
	items = items[:n]
	return items, base64.RawURLEncoding.EncodeToString([]byte(strings.Join(key(items[n-1]), separator)))
}
