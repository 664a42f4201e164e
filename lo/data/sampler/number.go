package sampler

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// maxNumber is the longest text that is looked at as a number, in bytes.
const maxNumber = 64

// number returns the number at a JSON pointer (RFC 6901) in a JSON payload, or
// for the empty pointer the one that the payload is, as text with white space
// around it at most. Infinities and NaN are no numbers here.
func number(payload []byte, field string) (float64, bool) {
	if field == "" {
		return parse(string(bytes.TrimSpace(payload[:min(len(payload), maxNumber)])), len(payload))
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return 0, false
	}
	for part := range strings.SplitSeq(field[1:], "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch at := v.(type) {
		case map[string]any:
			v = at[part]
		case []any:
			i, err := strconv.ParseUint(part, 10, 31)
			if err != nil || i >= uint64(len(at)) || len(part) > 1 && part[0] == '0' {
				return 0, false
			}
			v = at[i]
		default:
			return 0, false
		}
	}
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	return parse(n.String(), len(n))
}

func parse(s string, size int) (float64, bool) {
	if size > maxNumber {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && !math.IsInf(f, 0) && !math.IsNaN(f)
}
