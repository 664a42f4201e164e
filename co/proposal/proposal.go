// Package proposal decides which part of a change waits until a person confirms it, and has the
// words for it. A change of the deployments repo that may remove running work by accident is held:
// only its removals, and the rest of the commit proceeds. What is held for one reason and one
// commit is a proposal. The package is pure.
package proposal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// Trailer is the trailer of a commit message that confirms removals. Its value is the id of a proposal. In the
// commit that removes files itself, it names what the commit may remove: <site>/<deployment>, <site>/* for all
// deployments of a site, or */<deployment> for those of a fleet deployment.
const Trailer = "Colony-Confirm"

// VolumesTrailer is the trailer of a commit that removes a deployment together with its
// volumes: its value is <site>/<deployment>. Without it the volumes outlive the deployment.
const VolumesTrailer = "Colony-Remove-Volumes"

// SiteTrailer is the trailer of a commit that removes a site: its value is the site. Its files go with it, and the gateways keep what they
// run: where the site is still there, or back, the removal of its deployments is held.
const SiteTrailer = "Colony-Remove-Site"

// A Kind says what a proposal is about.
type Kind string

// Removals is the kind of a proposal to remove deployments that run.
const Removals Kind = "removals"

// A State is where a proposal, or one of its effects, stands.
type State string

// The states. Only Open is not the last one of a proposal.
const (
	// Open waits: nothing of it was done.
	Open State = "open"
	// Confirmed was agreed to, and is done.
	Confirmed State = "confirmed"
	// Superseded was made void by a later commit, as one that puts the files back.
	Superseded State = "superseded"
	// Withdrawn was refused: what runs stays, although the deployments repo does not have it.
	Withdrawn State = "withdrawn"
)

// A Cause says why a removal is held. It is a sentence about the deployment without its
// subject.
type Cause string

// The causes.
const (
	// Many is one of many removals of a commit.
	Many Cause = "is one of many deployments that the commit removes"
	// Rewritten is a file that the branch no longer has, although no commit of its history
	// removed it: the history was replaced.
	Rewritten Cause = "is not in the history of the branch any more: it was replaced by another"
	// Unreadable is a file that is no longer where the CO reads it, while the same commit
	// put one where the CO does not, or that the CO refuses, or something in its place that
	// cannot be read.
	Unreadable Cause = "cannot be read any more: the commit left a file that the CO refuses or does not read"
	// Moved is a deployment whose id is now that of one at a site that was never connected.
	Moved Cause = "was moved to a site whose LO has never connected: is the name mistyped?"
	// NoNode is a deployment whose new placement none of the site's nodes matches.
	NoNode Cause = "would run nowhere: none of the site's nodes matches its new placement"
	// SiteRemoved is a deployment whose file went with its site, which is there all the same.
	SiteRemoved Cause = "went with the removal of its site, which changes nothing at the gateways, and the site is there"
	// Unheard is one at a site of which the record was restored and that has not reported since. It is looked at once more when the site has.
	Unheard Cause = "may be of after the backup that was restored: its site has not reported since what it holds"
	// SetBack is one at a site that holds what was made of a commit which the branch does not have.
	SetBack Cause = "may be of a later commit than the deployments repo has: the branch lacks the one of which its site holds the state, and was set back"
	// Forgotten is one at a site of which neither the restored record nor its LO knows what it was sent last.
	Forgotten Cause = "may be of after the backup that was restored: the LO of its site has lost what it held"
)

// A Removal is a deployment that runs and that a change would remove.
type Removal struct {
	Site       protocol.SiteID
	Deployment protocol.DeploymentName
	// Commit is the commit that asks for it.
	Commit string
	// Cause is why it is held independently of the limits; empty: only the limits may hold it.
	Cause Cause
	// Confirmed says that the change itself names this removal.
	Confirmed bool
}

// Limits say how many removals of one commit are obeyed without being confirmed.
type Limits struct {
	// Percent is the share of the running deployments of a site, in percent, that a commit
	// may remove. 100 holds nothing for its number.
	Percent int
	// Count is how many removals, at all sites together, are never held for their number.
	Count int
	// Sites is at how many sites a commit may remove something. 0 holds nothing for their number.
	Sites int
}

// DefaultLimits hold what removes more than a tenth of a site, and more than one deployment, or something at more than ten sites.
var DefaultLimits = Limits{Percent: 10, Count: 1, Sites: 10}

// Hold returns the cause of each removal that is to be held, by its index. running is how
// many deployments run at each site. A removal that is confirmed counts for nothing.
func (l Limits) Hold(removals []Removal, running map[protocol.SiteID]int) map[int]Cause {
	type at struct {
		commit string
		site   protocol.SiteID
	}
	bySite, byCommit, sites := map[at]int{}, map[string]int{}, map[string]int{}
	for _, r := range removals {
		if !r.Confirmed {
			k := at{r.Commit, r.Site}
			if bySite[k]++; bySite[k] == 1 {
				sites[r.Commit]++
			}
			byCommit[r.Commit]++
		}
	}
	held := map[int]Cause{}
	for i, r := range removals {
		switch {
		case r.Confirmed:
		case r.Cause != "":
			held[i] = r.Cause
		case l.Sites > 0 && sites[r.Commit] > l.Sites:
			held[i] = Many
		case byCommit[r.Commit] > l.Count && bySite[at{r.Commit, r.Site}]*100 > l.Percent*running[r.Site]:
			held[i] = Many
		}
	}
	return held
}

// Confirms reports whether a commit with these trailers, as lines "Key: value", agrees to
// remove a deployment itself.
func Confirms(trailers []string, site protocol.SiteID, name protocol.DeploymentName) bool {
	return named(trailers, Trailer, site, name, true)
}

// RemovesVolumes reports whether a commit with these trailers asks to remove the volumes of
// a deployment with it.
func RemovesVolumes(trailers []string, site protocol.SiteID, name protocol.DeploymentName) bool {
	return named(trailers, VolumesTrailer, site, name, false)
}

// RemovesSite reports whether a commit with these trailers removes a site.
func RemovesSite(trailers []string, site protocol.SiteID) bool {
	return slices.ContainsFunc(trailers, func(line string) bool {
		key, value, _ := strings.Cut(line, ":")
		return strings.EqualFold(strings.TrimSpace(key), SiteTrailer) && strings.TrimSpace(value) == string(site)
	})
}

// SiteLine is the trailer of a commit that removes a site.
func SiteLine(site protocol.SiteID) string { return fmt.Sprintf("%s: %s", SiteTrailer, site) }

// named reports whether a trailer names a deployment, or all of its site where that is allowed.
func named(trailers []string, want string, site protocol.SiteID, name protocol.DeploymentName, all bool) bool {
	return slices.ContainsFunc(trailers, func(line string) bool {
		key, value, _ := strings.Cut(line, ":")
		if !strings.EqualFold(strings.TrimSpace(key), want) {
			return false
		}
		s, n, ok := strings.Cut(strings.TrimSpace(value), "/")
		return ok && (s == string(site) && (all && n == "*" || n == string(name)) || all && s == "*" && n == string(name))
	})
}

// ConfirmLine is the trailer with which a commit agrees to remove a deployment.
func ConfirmLine(site protocol.SiteID, name protocol.DeploymentName) string {
	return fmt.Sprintf("%s: %s/%s", Trailer, site, name)
}

// VolumesLine is the trailer with which a commit asks to remove the volumes of a deployment.
func VolumesLine(site protocol.SiteID, name protocol.DeploymentName) string {
	return fmt.Sprintf("%s: %s/%s", VolumesTrailer, site, name)
}

// ID returns the id of the n-th proposal of a kind that a commit made, from 0. It depends on
// nothing else, so that a confirmation in the history of the repo still means the same after
// the CO has lost its database.
func ID(kind Kind, commit string, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d", kind, commit, n))
	return hex.EncodeToString(sum[:4])
}

// A Proposal is what waits to be confirmed, or did.
type Proposal struct {
	ID     string `json:"id" doc:"8 hexadecimal digits"`
	Kind   Kind   `json:"kind" enum:"removals"`
	Commit string `json:"commit" doc:"commit of the deployments repo that asks for it"`
	State  State  `json:"state" enum:"open,confirmed,superseded,withdrawn"`
	// Held is 0 once the proposal is done.
	Held        int        `json:"held" doc:"effects that wait"`
	Sites       int        `json:"sites" doc:"sites with effects"`
	Deployments int        `json:"deployments" doc:"deployments that it concerns, at all sites"`
	Nodes       int        `json:"nodes" doc:"nodes that run them; one counts for each deployment"`
	OpenedAt    time.Time  `json:"openedAt"`           // when a commit first asked for it
	ClosedAt    *time.Time `json:"closedAt,omitempty"` // when it was confirmed, superseded or withdrawn; absent: it is open
	ClosedBy    string     `json:"closedBy,omitempty" doc:"who confirmed or withdrew it, or the commit that did; not verified"`
	Effects     []Effect   `json:"effects,omitempty" doc:"at most 1,000, by site and deployment; only where one proposal is asked for"`
}

// An Effect is what a proposal does to one deployment.
type Effect struct {
	Site       protocol.SiteID         `json:"site"`
	Deployment protocol.DeploymentName `json:"deployment"`
	App        string                  `json:"app,omitempty"`        // id of the application; absent: not known
	AppVersion string                  `json:"appVersion,omitempty"` // that runs; absent: not known
	Cause      Cause                   `json:"cause" doc:"why it is held"`
	State      State                   `json:"state" enum:"open,confirmed,superseded,withdrawn"`
	Nodes      []protocol.NodeID       `json:"nodes" doc:"those that ran it when it was held, at most 100"`
	NodeCount  int                     `json:"nodeCount"` // all that ran it when it was held
}

// MaxEffects and MaxNodes bound what is shown of a Proposal.
const (
	MaxEffects = 1000
	MaxNodes   = 100
)
