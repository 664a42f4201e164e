package sitefile

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A unit is a word behind a number, and what it stands for.
type unit struct {
	text string
	of   uint64
}

// durations are the units of time in milliseconds, the longest first.
var durations = [...]unit{{"w", 604_800_000}, {"d", 86_400_000}, {"h", 3_600_000}, {"m", 60_000}, {"s", 1000}, {"ms", 1}}

// sizes are the units of bytes. Those up to B are used for writing.
var sizes = [...]unit{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"B", 1},
	{"", 1},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
}

// parseDuration reads a duration such as 1h30m in milliseconds.
func parseDuration(s string) (millis uint64, ok bool) {
	if s == "" {
		return 0, false
	}
	for s != "" {
		n, text, rest, ok := cutUnit(s)
		if !ok || text == "" {
			return 0, false
		}
		v, ok := times(n, text, durations[:])
		if !ok || v > math.MaxInt64-millis {
			return 0, false
		}
		millis, s = millis+v, rest
	}
	return millis, true
}

// parseSize reads a size such as 256MiB in bytes.
func parseSize(s string) (bytes uint64, ok bool) {
	n, text, rest, ok := cutUnit(s)
	if !ok || rest != "" {
		return 0, false
	}
	return times(n, text, sizes[:])
}

// cutUnit splits a number and its unit from s.
func cutUnit(s string) (n uint64, text, rest string, ok bool) {
	digit := func(r rune) bool { return r >= '0' && r <= '9' }
	end := strings.IndexFunc(s, func(r rune) bool { return !digit(r) })
	if end < 0 {
		end = len(s)
	}
	n, err := strconv.ParseUint(s[:end], 10, 63)
	if err != nil {
		return 0, "", "", false
	}
	s = s[end:]
	if end = strings.IndexFunc(s, digit); end < 0 {
		end = len(s)
	}
	return n, strings.TrimLeft(s[:end], " "), s[end:], true
}

func times(n uint64, text string, units []unit) (uint64, bool) {
	for _, u := range units {
		if u.text == text {
			return n * u.of, n <= math.MaxInt64/u.of
		}
	}
	return 0, false
}

// formatDuration writes milliseconds as parseDuration reads them; "" is none.
func formatDuration(millis uint64) string {
	var b strings.Builder
	for _, u := range durations[1:] { // weeks are written as days
		if n := millis / u.of; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.text)
			millis -= n * u.of
		}
	}
	return b.String()
}

// formatSize writes bytes as parseSize reads them; "" is none.
func formatSize(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	for _, u := range sizes {
		if bytes%u.of == 0 {
			return strconv.FormatUint(bytes/u.of, 10) + u.text
		}
	}
	return strconv.FormatUint(bytes, 10)
}

func formatKeep(d time.Duration) string { return formatDuration(uint64(max(0, d.Milliseconds()))) }
