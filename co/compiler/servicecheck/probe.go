package servicecheck

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// probeTimes are the durations of x-colony-health, which mean what they mean in
// healthcheck.
func probeTimes(h *protocol.Health) map[string]*uint64 {
	return map[string]*uint64{
		"interval": &h.IntervalMillis, "timeout": &h.TimeoutMillis,
		"start_period": &h.StartPeriodMillis, "start_interval": &h.StartIntervalMillis,
	}
}

// Probe reads x-colony-health: {http: /path, port: 8080} or {port: 1883}. Values come as text
// where a parameter filled them in.
func Probe(x any) (*protocol.Health, error) {
	fields, ok := x.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("want a mapping such as {http: /health, port: 8080}")
	}
	h := new(protocol.Health)
	times := probeTimes(h)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text := fmt.Sprint(fields[key])
		switch {
		case key == "http":
			if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, " \r\n") {
				return nil, fmt.Errorf("http %q: want a path such as /health", text)
			}
			h.HTTP = text
		case key == "port":
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("port %q: want 1 to 65535", text)
			}
			h.Port = uint16(n)
		case key == "retries":
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("retries %q: want a number of 1 or more", text)
			}
			h.Retries = uint32(n)
		case times[key] != nil:
			var given types.Duration
			err := given.DecodeMapstructure(text)
			d := time.Duration(given)
			if err != nil || d < 0 {
				return nil, fmt.Errorf("%s %q: want a duration such as 10s", key, text)
			}
			if d == 0 && key != "start_period" {
				return nil, fmt.Errorf("%s 0: want more, or leave it out for the default", key)
			}
			*times[key] = Millis(d)
		default:
			return nil, fmt.Errorf("unknown key %q; known: http, port, interval, timeout, retries, start_period, start_interval", key)
		}
	}
	if h.Port == 0 {
		return nil, fmt.Errorf("port is required")
	}
	return h, nil
}

// Millis is a duration in milliseconds, rounded up: what is shorter than one must not become
// 0, which means the default. A negative one is 0.
func Millis(d time.Duration) uint64 {
	return uint64(max((d+time.Millisecond-1)/time.Millisecond, 0))
}
