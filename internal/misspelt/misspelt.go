// Package misspelt finds what a misspelt key was likely meant to be.
package misspelt

// maxEdits bounds how many letters a misspelt key has too many, too few or wrong.
const maxEdits = 2

// Nearest returns the key that a misspelt one was likely meant to be, "" where none is near.
func Nearest(key string, known []string) (found string) {
	least := maxEdits + 1
	for _, name := range known {
		if d := edits(key, name); d < least && d <= len(name)/3 {
			found, least = name, d
		}
	}
	return found
}

// edits counts the letters to add, take out or change to make one text the other
// (Levenshtein's distance).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
