package logs

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// colours are the sequences that only change how a terminal shows text.
var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

const hex = "0123456789abcdef"

// Text makes what a container wrote safe for a terminal and for UTF-8: it removes colours, and writes each byte
// of control characters but tabs, and of what is no UTF-8, as \x1b. The carriage return of a line
// that ends with CR LF is removed. Left is how many of the bytes did not fit into MaxText, with what they become.
func Text(b []byte) (text string, left int) {
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	if plain(b) && len(b) <= MaxText {
		return string(b), 0
	}
	b = colours.ReplaceAll(b, nil)
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		grown := n
		escape := r == utf8.RuneError && n == 1 || r != '\t' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
		if escape {
			grown = 4 * n
		}
		if out.Len()+grown > MaxText {
			break
		}
		if !escape {
			out.Write(b[:n])
		} else {
			for _, c := range b[:n] {
				out.WriteString(`\x` + string(hex[c>>4]) + string(hex[c&15]))
			}
		}
		b = b[n:]
	}
	return out.String(), len(b)
}

func plain(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}
