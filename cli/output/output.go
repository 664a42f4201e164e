// Package output writes the answers of commands: as tables for people, or as JSON or YAML
// for programs. It also words times, sizes and maps.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// A View writes answers in the format that the user chose: table, json or yaml.
type View struct {
	Out    io.Writer
	Format string // table, json or yaml
}

// plain writes what a terminal would obey or not show, such as escape sequences in the name that a client gave itself, as Go
// does in a string: \n, \x1b, \u202e. It leaves the characters of except as they are.
func plain(text, except string) string {
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || strings.ContainsRune(except, r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// Table writes rows below the words of a header. It makes an empty cell of rows a dash, and writes
// what is not printable in a cell as Go does in a string, such as line ends and tabs as \n and \t.
func (v View) Table(header string, rows [][]string) error {
	w := tabwriter.NewWriter(v.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			} else {
				row[i] = plain(cell, "")
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// Machine writes value as JSON or YAML and reports true, or reports false where
// the user wants a table.
func (v View) Machine(value any) (bool, error) {
	switch v.Format {
	case "json":
		enc := json.NewEncoder(v.Out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return true, enc.Encode(value)
	case "yaml":
		// By way of JSON, so that both formats have the same field names.
		b, err := json.Marshal(value)
		if err != nil {
			return true, err
		}
		var plain any
		if err := yaml.Unmarshal(b, &plain); err != nil {
			return true, err
		}
		enc := yaml.NewEncoder(v.Out)
		enc.SetIndent(2)
		return true, enc.Encode(plain)
	}
	return false, nil
}

// Fields writes pairs of names and values below each other; those without a value are
// left out. Line ends and tabs of a value stay, and what else is not printable is as in Table.
func (v View) Fields(pairs ...string) error {
	w := tabwriter.NewWriter(v.Out, 0, 8, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", pairs[i], plain(pairs[i+1], "\n\t"))
		}
	}
	return w.Flush()
}

// Age returns how long ago t was, in its greatest unit; "" where t is unset.
func Age(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	d := time.Since(*t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// At is a time of the CO as people read it; "" where t is unset.
func At(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

// Reported is a time that another machine gave. Its clock may not have been synchronised.
func Reported(t time.Time, unsynced bool) string {
	text := t.Local().Format(time.DateTime)
	if unsynced {
		text += " (not synchronised)"
	}
	return text
}

// Ago is Age in a sentence: "3m ago", or "never".
func Ago(t *time.Time) string {
	if text := Age(t); text != "" {
		return text + " ago"
	}
	return "never"
}

// Size returns a number of bytes with a binary unit; "" for 0.
func Size(n uint64) string {
	if n == 0 {
		return ""
	}
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := uint64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// OnOff returns online or offline.
func OnOff(online bool) string {
	if online {
		return "online"
	}
	return "offline"
}

// Pairs writes a map as k=v, sorted.
func Pairs[K ~string, V any](m map[K]V) string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%v", k, m[k]))
	}
	return strings.Join(out, ",")
}
