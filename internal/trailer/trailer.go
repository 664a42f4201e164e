// Package trailer adds trailers to the messages of commits (git-interpret-trailers).
package trailer

import (
	"regexp"
	"strings"
)

// trailers are lines of trailers, and of continuations of one.
var trailers = regexp.MustCompile(`^([A-Za-z0-9-]+: .*(\n[ \t]+\S.*)*(\n|$))+$`)

// Add adds a trailer to a message: to the trailers that it ends with, where it does, as git reads those of the last
// paragraph alone. The first paragraph is never taken for trailers.
func Add(message, key, value string) string {
	message = strings.TrimRight(message, "\n")
	between := "\n\n"
	if at := strings.LastIndex(message, "\n\n"); at >= 0 && trailers.MatchString(message[at+2:]) {
		between = "\n"
	}
	return message + between + key + ": " + value
}
