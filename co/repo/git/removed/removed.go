// Package removed reads from a log of git which commits removed files. It is pure.
package removed

import "strings"

// A Removal is the commit that removed a file.
type Removal struct {
	Commit string
	// Trailers are the trailers of its message (git-interpret-trailers), as lines
	// "Key: value".
	Trailers []string
	// Blob is the id of the content that the file had.
	Blob string
}

// Parse reads a log, the newest commit first, with what each commit added and removed in the raw format, as Removals of package git asks for it. It
// returns the last removal of each path that was not added after that.
func Parse(log string) map[string]Removal {
	removals, seen := map[string]Removal{}, map[string]bool{}
	var current Removal
	status, blob := "", ""
	for item := range strings.SplitSeq(log, "\x00") {
		item = strings.TrimPrefix(item, "\n")
		switch head, ok := strings.CutPrefix(item, "\x01"); {
		case ok:
			commit, trailers, _ := strings.Cut(head, "\x1f")
			current, status = Removal{Commit: commit, Trailers: Lines(trailers)}, ""
		case item == "":
		case status == "":
			// ":" and the mode before, the mode after, the id before, the id after and the status
			if f := strings.Fields(item); len(f) == 5 {
				status, blob = f[4], f[2]
			}
		default:
			if status == "D" && !seen[item] {
				removals[item] = Removal{Commit: current.Commit, Trailers: current.Trailers, Blob: blob}
			}
			seen[item], status = true, ""
		}
	}
	return removals
}

// Lines returns the lines of a text that are not empty.
func Lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}
