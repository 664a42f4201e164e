package servicecheck

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	"github.com/moby/sys/signal"
)

// Capabilities returns the names under a key in one form: upper case, without CAP_. One that
// Linux does not have would be neither given nor taken away.
func Capabilities(key string, names []string, say Say) []string {
	var all []string
	for _, name := range names {
		short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		known := slices.ContainsFunc(capability.ListKnown(), func(c capability.Cap) bool { return strings.EqualFold(c.String(), short) })
		if !known && short != "ALL" {
			say(key, "%q is no capability of Linux: want a name such as NET_RAW, or ALL", name)
		}
		all = append(all, short)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// maxSignal is the last signal of Linux, SIGRTMAX.
const maxSignal = 64

// stopSignal judges the name or number of a signal. The node would send SIGTERM in the place
// of one that it does not know.
func stopSignal(name string, say Say) {
	if name == "" {
		return
	}
	number, err := strconv.Atoi(name)
	known := err == nil && number > 0 && number <= maxSignal
	if err != nil {
		_, err = signal.ParseSignal(name)
		known = err == nil
	}
	if !known {
		say("stop_signal", "%q is no signal of Linux: want a name such as SIGINT, or a number from 1 to %d", name, maxSignal)
	}
}
