package testproc

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// CheckLog fails the test for each key that a line of a log, where that is JSON, has twice: a reader keeps one of the values. A log that
// does not exist has none.
func CheckLog(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Errorf("read log: %v", err)
	}
	reported := map[string]bool{}
	for line := range bytes.Lines(b) {
		if key := twice(line); key != "" && !reported[key] {
			reported[key] = true
			t.Errorf("%s has the key %q twice in a line: %s", path, key, bytes.TrimSpace(line))
		}
	}
}

// twice returns the first key that an object has twice on its first level; "": it has none, or the line is no object.
func twice(line []byte) string {
	if len(line) == 0 || line[0] != '{' {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return ""
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return "" // such as a line that a killed program did not end
		}
		if seen[key] {
			return key
		}
		seen[key] = true
	}
	return ""
}
