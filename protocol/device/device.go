// Package device says what is wrong with the accounts of a site's devices, and which client
// ids and topics an account has. The CO and the LO use the same code. It is pure.
package device

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// MaxDevices is how many accounts a site may have.
const MaxDevices = 1000

// The bounds of one account.
const (
	maxList  = 100 // client ids, or filters of a direction
	maxBytes = 256 // of each
	// minCost and maxCost are those of bcrypt: a gateway verifies two at a time.
	minCost, maxCost = "04", "14"
)

var (
	userName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	bcryptHash = regexp.MustCompile(`^\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}$`)
)

// A Fault is what is wrong with one account. Field is as the site's file names it, with the index in a
// list.
type Fault struct {
	Index   int // of the account in the list
	Field   string
	Message string // what is wrong, and what is wanted
}

// Error implements error.
func (f Fault) Error() string { return fmt.Sprintf("devices[%d].%s: %s", f.Index, f.Field, f.Message) }

// Validate returns every fault of the accounts of a site.
func Validate(list []protocol.DeviceAccount) (faults []Fault) {
	first := make(map[string]int)
	for i := range list {
		d := &list[i]
		bad := func(field, format string, args ...any) {
			faults = append(faults, Fault{i, field, fmt.Sprintf(format, args...)})
		}
		if !userName.MatchString(d.User) {
			bad("user", "%q: want 1 to 63 letters, digits, - and _, which no user name of Colony's own is", d.User)
		} else if at, taken := first[d.User]; taken {
			bad("user", "%q is that of account %d already", d.User, at+1)
		} else {
			first[d.User] = i
		}
		each(d.ClientIDs, func(field, s string) {
			if s == "" || len(s) > maxBytes || strings.ContainsAny(s, "@\x00") || s[0] == '$' {
				bad("clientIDs"+field, "%q: want a client id of up to %d bytes without @, not beginning with $; * stands for any characters", s, maxBytes)
			}
		}, func() { bad("clientIDs", "%d of them: an account has at most %d", len(d.ClientIDs), maxList) })
		for _, of := range []struct {
			name    string
			filters []string
		}{{"publish", d.Publish}, {"subscribe", d.Subscribe}} {
			each(of.filters, func(field, s string) {
				if !isFilter(s) {
					bad(of.name+field, "%q: want an MQTT topic filter of up to %d bytes that does not begin with $, such as line1/#", s, maxBytes)
				}
			}, func() { bad(of.name, "%d of them: an account has at most %d", len(of.filters), maxList) })
		}
		switch cost := bcryptHash.FindStringSubmatch(d.Bcrypt); {
		case (len(d.SHA256) == 0) == (d.Bcrypt == ""):
			bad("password", "want either sha256 or bcrypt")
		case len(d.SHA256) != 0 && len(d.SHA256) != sha256.Size:
			bad("password.sha256", "%d bytes: want %d, written as 64 hexadecimal digits", len(d.SHA256), sha256.Size)
		case d.Bcrypt != "" && (cost == nil || cost[1] < minCost || cost[1] > maxCost):
			bad("password.bcrypt", "want a bcrypt hash such as $2b$10$..., of a cost from %s to %s", minCost, maxCost)
		}
	}
	return faults
}

func each(list []string, check func(field, s string), tooMany func()) {
	if len(list) > maxList {
		tooMany()
		return
	}
	for i, s := range list {
		check(fmt.Sprintf("[%d]", i), s)
	}
}

// isFilter reports whether s is a topic filter of MQTT 5, section 4.7, that an account may have.
func isFilter(s string) bool {
	if s == "" || len(s) > maxBytes || s[0] == '$' || strings.ContainsRune(s, 0) {
		return false
	}
	levels := strings.Split(s, "/")
	for i, l := range levels {
		if strings.ContainsAny(l, "+#") && len(l) > 1 || l == "#" && i != len(levels)-1 {
			return false
		}
	}
	return true
}

// MayUse reports whether the account may use a client id at the broker of a site. The ids of the
// site's nodes and of Colony's own clients are reserved, even if a pattern of the account matches
// them.
func MayUse(d *protocol.DeviceAccount, site protocol.SiteID, clientID string) bool {
	if strings.Contains(clientID, "@") || strings.HasSuffix(clientID, "."+string(site)) || clientID == string(site) {
		return false
	}
	if len(d.ClientIDs) == 0 {
		return clientID == "" || clientID == d.User || strings.HasPrefix(clientID, d.User+"/")
	}
	for _, p := range d.ClientIDs {
		if matches(p, clientID) {
			return true
		}
	}
	return false
}

// Names reports whether the account names a client id itself, not by a pattern: such an id another account's patterns do
// not cover.
func Names(d *protocol.DeviceAccount, clientID string) bool {
	if len(d.ClientIDs) == 0 {
		return clientID == d.User || strings.HasPrefix(clientID, d.User+"/")
	}
	return !strings.Contains(clientID, "*") && slices.Contains(d.ClientIDs, clientID)
}

// matches reports whether s is pattern, where each * of that stands for any characters.
func matches(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	rest, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, last)
}
