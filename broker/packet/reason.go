package packet

import (
	"strings"
	"unicode/utf8"
)

// mostReason is how many bytes of a reason a client gets.
const mostReason = 200

// ReasonString is a text as an MQTT reason string: short, valid UTF-8, no controls. [MQTT-1.5.4-1]
func ReasonString(text string) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(s) > mostReason {
		s = strings.ToValidUTF8(s[:mostReason], "")
	}
	return s
}
