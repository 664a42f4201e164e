package verdict

import (
	"fmt"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// Restricted names what restricts a node in a word or two.
func Restricted(n fleet.Node) string {
	var words []string
	for _, r := range n.Restrictions {
		words = append(words, r.Kind.Participle())
	}
	return strings.Join(words, ",")
}

// Restriction says what restricts a node, for how long, and why.
func Restriction(r *restriction.Restriction) string {
	text := r.String()
	switch {
	case r.ForMillis == 0:
		return text + "; until a person ends it"
	case r.UntilMillis > 0:
		return text + "; until " + time.UnixMilli(r.UntilMillis).Local().Format(time.DateTime)
	}
	return text + fmt.Sprintf("; for %s from %s on, by the clock of the site", time.Duration(r.ForMillis)*time.Millisecond, time.UnixMilli(r.SetMillis).Local().Format(time.DateTime))
}
