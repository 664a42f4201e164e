package servicecheck

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var (
	profileHead = regexp.MustCompile(`^\s*profile\s+("[^"]+"|[^\s{]+)([^{]*(?:\{[^{}]*\}[^{]*)*)\{\s*(?:#.*)?$`)
	profileMode = regexp.MustCompile(`\bflags\s*=\s*\([^)]*\)`)
	include     = regexp.MustCompile(`^\s*#?include\s+(?:if\s+exists\s+)?(\S)`)
	quoted      = regexp.MustCompile(`"[^"]*"`)
)

// AppArmor reads a profile of AppArmor, and returns it under a name that its content makes, as
// every profile of the node has one name: none of the node's own is replaced. Without the path
// of a program in its head it is attached to none of the node's programs. An error says what
// keeps it from being one profile.
func AppArmor(b []byte) (name, text string, err error) {
	const want = "want one profile, which begins with a line such as: profile meter flags=(attach_disconnected) {"
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	depth, head := 0, -1
	for i, line := range lines {
		if m := include.FindStringSubmatch(line); m != nil {
			if m[1] != "<" {
				return "", "", fmt.Errorf("line %d: a profile includes what the node has, as in include <abstractions/base>: copy the rest into it", i+1)
			}
			continue
		}
		bare := quoted.ReplaceAllString(line, "")
		if at := strings.IndexByte(bare, '#'); at >= 0 {
			bare = bare[:at]
		}
		before := depth
		if depth += strings.Count(bare, "{") - strings.Count(bare, "}"); depth < 0 {
			return "", "", fmt.Errorf("line %d: a brace is closed that is not open", i+1)
		}
		if before > 0 || depth == 0 {
			continue
		}
		if head >= 0 || !profileHead.MatchString(line) {
			return "", "", fmt.Errorf("line %d: %s", i+1, want)
		}
		head = i
	}
	switch {
	case head < 0:
		return "", "", errors.New(want)
	case depth > 0:
		return "", "", errors.New("a brace is not closed")
	}
	flags := profileMode.FindString(lines[head])
	sum := sha256.Sum256(b)
	name = "colony-" + hex.EncodeToString(sum[:8])
	lines[head] = strings.Join(strings.Fields("profile "+name+" "+flags+" {"), " ")
	return name, strings.Join(lines, "\n") + "\n", nil
}
