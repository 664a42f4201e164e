package stream

import (
	"strconv"
	"strings"
	"time"
)

// The MQTT user properties (MQTT 5, section 3.3.2.3.7) with which machine data is
// delivered to clients, on either tier. They are part of the contract with
// subscribers, since 0.1.0.
const (
	// TimeProperty is when the message arrived at the tier that sent it, by that
	// tier's clock: RFC 3339 in UTC with milliseconds. Absent: not known.
	TimeProperty = "colony-time"
	// UnsyncedProperty says with the value true that the clock of TimeProperty was not
	// synchronised. Absent: it was, or it is not known. Since 0.3.0.
	UnsyncedProperty = "colony-time-unsynced"
	// StreamProperty is the name of the message's stream (protocol.Batch.Stream).
	// With SeqProperty it is the same each time a message is delivered, so that a
	// subscriber can recognize a repetition.
	StreamProperty = "colony-stream"
	// SeqProperty is the message's sequence in its stream, as a decimal number.
	SeqProperty = "colony-seq"
)

// reserved begins the names of user properties that only Colony sets.
const reserved = "colony-"

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// A Stamp is what Colony says about a message of machine data that it delivers.
type Stamp struct {
	Time time.Time // the zero Time leaves the property out
	// Unsynced says that the clock of Time was not synchronised.
	Unsynced bool
	Stream   string
	Seq      uint64
}

// Properties returns the user properties of a delivered message as pairs of name
// and value: those of the stamp, and after them the message's own, in their order.
// Own properties whose names only Colony may set are left out.
func (s Stamp) Properties(own []string) []string {
	out := make([]string, 0, 8+len(own))
	if !s.Time.IsZero() {
		out = append(out, TimeProperty, s.Time.UTC().Format(timeFormat))
		if s.Unsynced {
			out = append(out, UnsyncedProperty, "true")
		}
	}
	out = append(out, StreamProperty, s.Stream, SeqProperty, strconv.FormatUint(s.Seq, 10))
	for i := 0; i+1 < len(own); i += 2 {
		if !strings.HasPrefix(own[i], reserved) {
			out = append(out, own[i], own[i+1])
		}
	}
	return out
}

// MarkUnsynced returns a message's own properties with the mark that the clock of its time was not
// synchronised, or without the mark. A mark that its publisher set is dropped. So the mark is
// stored.
func MarkUnsynced(own []string, unsynced bool) []string {
	_, rest := Unsynced(own)
	if unsynced {
		rest = append(rest[:len(rest):len(rest)], UnsyncedProperty, "true")
	}
	return rest
}

// Unsynced returns whether properties have that mark, and the others.
func Unsynced(own []string) (marked bool, rest []string) {
	rest = own
	for i := 0; i+1 < len(own); i += 2 {
		if own[i] != UnsyncedProperty {
			continue
		}
		marked, rest = true, append([]string(nil), own[:i]...)
		for ; i+1 < len(own); i += 2 {
			if own[i] != UnsyncedProperty {
				rest = append(rest, own[i], own[i+1])
			}
		}
	}
	return marked, rest
}
