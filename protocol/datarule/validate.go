package datarule

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// The bounds of a site's rules. They keep a desired state small, the search for
// the rule of a message short, and every number within what the tiers compute with.
const (
	MaxRules       = 64                                                   // rules of a site
	MaxTopics      = 64                                                   // of one rule
	MaxTopicBytes  = 1024                                                 // of a filter or a prefix
	MaxLevels      = 64                                                   // of a filter or a prefix
	MinQueueBytes  = 64 << 10                                             // the least bound of a queue, in bytes
	MaxQueueBytes  = 1 << 40                                              // the greatest bound of a queue, in bytes
	MinBatchBytes  = 1 << 10                                              // the least bound of a batch, in bytes
	MaxBatchBytes  = 1 << 20                                              // so that a batch fits into a message in any case
	MaxBatchMillis = uint32(time.Hour / time.Millisecond)                 // the longest wait for a batch, in milliseconds: an hour
	MaxMillis      = uint64(10 * 365 * 24 * time.Hour / time.Millisecond) // the longest time in a rule, in milliseconds: ten years
	MaxFieldBytes  = 256                                                  // the longest text of a field, in bytes
)

// Validate returns every fault of a site's rules, each naming the rule and the field; the fields
// have the names of a site file. It returns nil where there is none.
//
// QoS may be 0 to 2. Between the tiers each message is carried at least once, with every QoS; with
// QoS 2 a broker delivers it to its own subscribers exactly once.
func Validate(rules []protocol.DataRule) []error {
	var c check
	if len(rules) > MaxRules {
		c.rule = "data rules"
		c.fault("", "%d of them: a site has at most %d; one rule may have many topics", len(rules), MaxRules)
		return c.faults
	}
	seen := make(map[string]int, len(rules))
	for i := range rules {
		r := &rules[i]
		c.rule = "data rule " + strconv.Quote(r.Name)
		if _, err := protocol.ParseNodeID(r.Name); err != nil {
			c.rule = "data rule " + strconv.Itoa(i+1)
			c.fault("name", "%q: want 1 to 63 of a-z, 0-9 and -, not beginning or ending with -", r.Name)
		}
		if first, ok := seen[r.Name]; ok {
			c.fault("name", "taken by rule %d of the list already; a name is for one rule", first+1)
		} else {
			seen[r.Name] = i
		}
		c.topics(r)
		c.limits(r)
		c.sample(r)
	}
	return c.faults
}

type check struct {
	rule   string
	faults []error
}

// fault records a fault of a field; the field "" is the whole rule.
func (c *check) fault(field, format string, args ...any) {
	if field != "" {
		field = ": " + field
	}
	c.faults = append(c.faults, protocol.Errorf(protocol.Invalid, c.rule+field+": "+format, args...))
}

func (c *check) topics(r *protocol.DataRule) {
	switch n := len(r.Topics); {
	case n == 0:
		c.fault("topics", "missing; want at least one topic filter, such as line1/#")
	case n > MaxTopics:
		c.fault("topics", "%d of them: a rule has at most %d", n, MaxTopics)
		return
	}
	for _, f := range r.Topics {
		if why := badFilter(f); why != "" {
			c.fault("topics", "%q: %s", f, why)
		}
	}
	if r.Local != "" {
		first, _, _ := strings.Cut(r.Local, "/")
		switch why := badPrefix(r.Local); {
		case why != "":
			c.fault("local", "%q: %s", r.Local, why)
		case topic.Reserved(r.Local):
			c.fault("local", "%q: topics under colony/ belong to Colony; want another first level, or none for %s", r.Local, topic.ForTail(topic.Data, "{site}", ""))
		case strings.HasPrefix(first, "$"):
			c.fault("local", "%q: topics under $ belong to the broker; want another first level", r.Local)
		}
	}
	if r.Remote != "" {
		if why := badPrefix(r.Remote); why != "" {
			c.fault("remote", "%q: %s", r.Remote, why)
		}
	}
}

func (c *check) limits(r *protocol.DataRule) {
	if r.QoS > 2 {
		c.fault("qos", "%d: want 0, 1 or 2", r.QoS)
	}
	if r.Priority > protocol.LowPriority {
		c.fault("priority", "%d is not known; want high, normal or low", r.Priority)
	}
	c.within("maxBytes", r.MaxBytes, MinQueueBytes, MaxQueueBytes)
	c.within("batchBytes", uint64(r.BatchBytes), MinBatchBytes, MaxBatchBytes)
	if r.BatchMillis > MaxBatchMillis {
		c.fault("batchWait", "%d ms: want at most 1 hour", r.BatchMillis)
	}
	c.duration("ttl", r.TTLMillis)
	c.duration("maxAge", r.MaxAgeMillis)
}

// within checks a number where it is set.
func (c *check) within(field string, n, least, most uint64) {
	if n != 0 && (n < least || n > most) {
		c.fault(field, "%d bytes: want %d to %d, or nothing for the default", n, least, most)
	}
}

func (c *check) duration(field string, millis uint64) {
	if millis > MaxMillis {
		c.fault(field, "%d ms: want at most 10 years", millis)
	}
}

func (c *check) sample(r *protocol.DataRule) {
	s := r.Sample
	if s == (protocol.Sample{}) {
		return
	}
	if r.Down {
		c.fault("sample", "a rule that goes down cannot sample; sample where the messages are made")
	}
	c.duration("sample.period", s.PeriodMillis)
	switch s.Mode {
	case protocol.SampleAll:
		c.fault("sample.mode", "missing; want last, change or deadband")
		return
	case protocol.SampleLast:
		if s.PeriodMillis == 0 {
			c.fault("sample.period", "missing; mode last passes the last message of each period")
		}
	case protocol.SampleChange:
	case protocol.SampleDeadband:
		if !(s.Deadband > 0) || math.IsInf(s.Deadband, 0) {
			c.fault("sample.deadband", "%v: want a number above 0", s.Deadband)
		}
		if !validPointer(s.Field) {
			c.fault("sample.field", "%q: want a JSON pointer (RFC 6901) of at most %d bytes, such as /value", s.Field, MaxFieldBytes)
		}
		return
	default:
		c.fault("sample.mode", "%q is not known; want last, change or deadband", s.Mode)
		return
	}
	if s.Deadband != 0 || s.Percent || s.Field != "" {
		c.fault("sample", "deadband, percent and field are for mode deadband, not for mode %s", s.Mode)
	}
}

// badText says what is wrong with s as an UTF-8 string of MQTT 5, section 1.5.4.
func badText(s string) string {
	switch {
	case s == "":
		return "empty"
	case len(s) > MaxTopicBytes:
		return "longer than " + strconv.Itoa(MaxTopicBytes) + " bytes"
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return "not UTF-8 text without the null character"
	case strings.Count(s, "/") >= MaxLevels:
		return "more than " + strconv.Itoa(MaxLevels) + " levels"
	default:
		return ""
	}
}

// badFilter says what is wrong with a topic filter [MQTT 5, section 4.7.1].
func badFilter(f string) string {
	if why := badText(f); why != "" {
		return why
	}
	if f[0] == '$' {
		return "begins with $; shared subscriptions and topics of the broker cannot cross the link"
	}
	for rest, more := f, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		switch {
		case level == "#" && more:
			return "# must be the last level"
		case level != "#" && level != "+" && strings.ContainsAny(level, "#+"):
			return "a wildcard must be a whole level, as in line/+/temp or line/#"
		}
	}
	return ""
}

// badPrefix says what is wrong with a prefix of topics.
func badPrefix(p string) string {
	if why := badText(p); why != "" {
		return why
	}
	switch {
	case strings.ContainsAny(p, "#+"):
		return "a prefix has no wildcards; they belong into topics"
	case !strings.HasSuffix(p, "/"):
		return "want a prefix that ends in /"
	default:
		return ""
	}
}

// validPointer reports whether s is a JSON pointer (RFC 6901, section 3).
func validPointer(s string) bool {
	if s == "" {
		return true
	}
	if s[0] != '/' || len(s) > MaxFieldBytes || !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] == '~' && (i+1 == len(s) || s[i+1] != '0' && s[i+1] != '1') {
			return false
		}
	}
	return true
}
