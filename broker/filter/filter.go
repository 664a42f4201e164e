// Package filter is MQTT's rule of topic filters: what is one, and which other
// filters it covers. Which topic names it matches is in protocol/topic.
package filter

import "strings"

// SharePrefix begins the filter of a shared subscription, before the name of its
// group. [MQTT-4.8.2-1]
const SharePrefix = "$share/"

// Plain checks a filter, and takes the prefix of a shared subscription off; false
// if it is none. [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.8.2-1] [MQTT-4.8.2-2]
func Plain(filter string) (string, bool) {
	if strings.EqualFold(filter[:min(len(filter), len(SharePrefix))], SharePrefix) {
		rest, ok := strings.CutPrefix(filter, SharePrefix)
		group, plain, more := strings.Cut(rest, "/")
		if !ok || !more || group == "" || strings.ContainsAny(group, "+#") {
			return "", false
		}
		filter = plain
	}
	if filter == "" || strings.Contains(filter, "\x00") {
		return "", false
	}
	for level, rest, more := "", filter, true; more; {
		level, rest, more = strings.Cut(rest, "/")
		if strings.ContainsAny(level, "+#") && len(level) > 1 || level == "#" && more {
			return "", false
		}
	}
	return filter, true
}

// Shared reports whether a valid filter is that of a shared subscription.
func Shared(filter string) bool { return strings.HasPrefix(filter, SharePrefix) }

// Split takes the prefix of a shared subscription off a valid filter. group is
// empty for any other.
func Split(filter string) (group, plain string) {
	rest, ok := strings.CutPrefix(filter, SharePrefix)
	if !ok {
		return "", filter
	}
	group, plain, _ = strings.Cut(rest, "/")
	return group, plain
}

// Covers reports whether every topic that filter matches is matched by allowed too.
// A topic name is a filter too. It errs on the safe side: a/# matches a, but is not
// said to cover it. Topics that begin with $ are the caller's to refuse.
func Covers(allowed, filter string) bool {
	for {
		a, arest, amore := strings.Cut(allowed, "/")
		f, frest, fmore := strings.Cut(filter, "/")
		switch {
		case a == "#":
			return true
		case f == "#", a != "+" && a != f:
			return false
		case !amore && !fmore:
			return true
		case !fmore:
			return false // a filter without the tail; allowed asks for more levels
		case !amore:
			return false
		}
		allowed, filter = arest, frest
	}
}

// Reserved reports whether a topic is the broker's own. [MQTT-4.7.2-1] Whether a client
// may use other topics that begin with $ is for access control to say.
func Reserved(topic string) bool {
	first, _, _ := strings.Cut(topic, "/")
	return first == "$SYS" || first == "$share"
}
