// Package topictest has MQTT's rule for topics and filters in its plainest form, which tests hold
// faster ones against.
package topictest

import "strings"

// Matches reports whether a filter matches a topic (MQTT 5, section 4.7), but for topics that begin
// with $, which have a rule of their own.
func Matches(filter, topic string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(topic, "/")
	for i, w := range f {
		if w == "#" {
			return true
		}
		if i >= len(n) || w != "+" && w != n[i] {
			return false
		}
	}
	return len(f) == len(n)
}
