package fleet

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Message is one stored message of a site's machine data.
type Message struct {
	Site protocol.SiteID
	Rule string
	Position
	Received time.Time  // the CO's clock
	SiteTime *time.Time // arrival at the site, by the site's clock; nil where that was no time
	// Message has a Topic below colony/v1/{site}/data/, and no expiry.
	Message protocol.DataMessage
}

// A Position is where a message is among those of its rule: greater ones came later.
type Position struct {
	Era int32 // how many epochs the stream of the rule had before
	Seq uint64
}

// Less reports whether p is before q.
func (p Position) Less(q Position) bool { return p.Era < q.Era || p.Era == q.Era && p.Seq < q.Seq }

// Positions has for each rule of a site the last message that was read. A rule that is
// not in it was not read at all.
type Positions map[string]Position

// String writes p in a form that ParsePositions reads. It holds no more than the
// characters of URLs, headers and server-sent events.
func (p Positions) String() string {
	var b strings.Builder
	for _, rule := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s.%d.%d,", rule, p[rule].Era, p[rule].Seq)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(strings.TrimSuffix(b.String(), ",")))
}

// ParsePositions reads what Positions.String wrote. The error is of kind Invalid.
func ParsePositions(s string) (Positions, error) {
	bad := protocol.Errorf(protocol.Invalid, "%q is no position among messages: take it from the answer before", s)
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, bad
	}
	p := Positions{}
	if len(b) == 0 {
		return p, nil
	}
	for part := range strings.SplitSeq(string(b), ",") {
		fields := strings.Split(part, ".")
		if len(fields) != 3 {
			return nil, bad
		}
		era, err := strconv.ParseInt(fields[1], 10, 32)
		if err != nil || era < 0 {
			return nil, bad
		}
		seq, err := strconv.ParseUint(fields[2], 10, 63)
		if _, idErr := protocol.ParseNodeID(fields[0]); err != nil || idErr != nil {
			return nil, bad
		}
		p[fields[0]] = Position{Era: int32(era), Seq: seq}
	}
	return p, nil
}

// A MessageFilter picks stored messages of one site. Empty fields pick all.
type MessageFilter struct {
	Site  protocol.SiteID
	Topic string // an MQTT topic filter, below colony/v1/{site}/data/
	Rule  string
	// After leaves out what was read before.
	After Positions
	// Since and Until bound when the CO received the messages; Until is excluded.
	Since, Until time.Time
	Limit        int // 0 means DefaultLimit
	// Newest picks the last Limit messages instead of the first; the order is the same.
	Newest bool
}

// A MessagePage is a part of the stored messages of a site. Those of a rule are in
// the order in which they arrived there; those of several rules as the CO received
// them.
type MessagePage struct {
	Messages []Message
	// Read is the After of a caller that continues.
	Read Positions
	// More is set where there is more that the filter picks already.
	More bool
}

// A MetricRule is a rule whose numbers become a metric, with how far a reader of its
// messages has come.
type MetricRule struct {
	Site   protocol.SiteID
	Rule   string
	Metric string
	Fields []string  // as in DataRule
	After  Positions // the positions that were read
}
