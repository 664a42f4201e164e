// Package trust decides which parts of a NodeDesired a node obeys: those that follow from what the CO signed for
// the site and the node. The LO only forwards statements and chooses within them. An attacker in its place can
// withhold statements, but cannot make the node run, or remove, what the CO did not sign. docs/security.md lists
// what is checked and what the LO may choose. What the LO chooses it signs with the key of its certificate, where
// it has one.
//
// A node remembers for each deployment the greatest position that it followed, its floor: what was signed before
// that does not count again, but for the return to a version that the node itself had running. The node keeps and
// restarts what it has adopted, even if keys and floors change later.
//
// A node without the root key trusts the LO in all of this, except for the floors: an old tombstone or purge
// removes nothing. It runs what is assigned, however old it is.
//
// The package is pure: records and state come in, what is obeyed and the new state go out.
package trust

import (
	"crypto"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign"
)

const (
	// maxFloors bounds the deployments that a node remembers. Past it the lowest floors go, first those of deployments of which the node has neither a
	// record nor a volume.
	maxFloors = 4096
	// maxStrangers bounds the records of deployments that a node never held and whose assignments
	// are refused. Past it a refusal is counted and logged, and makes no record.
	maxStrangers = 64
	// maxEarlier is how many versions that it had running a node remembers of a deployment.
	maxEarlier = 4
)

// A Node is the one that a NodeDesired is for.
type Node struct {
	Site protocol.SiteID
	Node protocol.NodeID
	// Labels are those that selectors match.
	Labels map[string]string
	// LO returns the key of the site's LO, which its certificates prove, its own first, in DER. Nil: the node
	// has no certificates to check them by, and what the LO signs is not looked at.
	LO func(certificates [][]byte) (crypto.PublicKey, error)
}

// A State is what must survive a restart.
type State struct {
	KeySet []byte `cbor:"1,keyasint,omitempty"` // the latest that was followed, encoded; absent: none
	// Floors are sorted by deployment.
	Floors []Floor `cbor:"2,keyasint,omitempty"`
	// Site is the site whose positions the floors have. Absent: the node's.
	Site protocol.SiteID `cbor:"3,keyasint,omitempty"`
	// LOSigns says that the node has followed what the LO of the site had signed: what comes without
	// a signature of the LO does not count any more.
	LOSigns bool `cbor:"4,keyasint,omitempty"`
}

// A Refused is a part of a NodeDesired that is not obeyed.
type Refused struct {
	// What is assignment, removal, purge or key set.
	What       string
	Deployment protocol.DeploymentName
	// Err is a sign.Refusal.
	Err error
}

// String says what is refused and why.
func (r Refused) String() string {
	if r.Deployment == "" {
		return fmt.Sprintf("%s: %v", r.What, r.Err)
	}
	return fmt.Sprintf("%s of %s: %v", r.What, r.Deployment, r.Err)
}

// A Verdict is what a node makes of a NodeDesired.
type Verdict struct {
	// Obeyed is the NodeDesired without what is refused. Of what it has, the site's positions and
	// the policy are those that the CO signed.
	Obeyed *protocol.NodeDesired
	// Failed are assignments in Obeyed that are refused: the node reports that the version failed.
	// An assignment that is refused of a version that the node runs is not in Obeyed, nor is one
	// of a deployment that the node does not hold where too many such are on record.
	Failed map[protocol.DeploymentName]plan.Failure
	// Refused are all parts that are refused.
	Refused []Refused
	// State is what must be on disk before Obeyed is acted on.
	State State
}

// A Checker checks the desired state of one node. It is for one goroutine at a time.
type Checker struct {
	node   Node
	trust  sign.Trust
	floors map[protocol.DeploymentName]Floor
	// retained are the deployments whose volumes outlived them.
	retained map[protocol.DeploymentName]bool
	// loSigns is that of the State.
	loSigns bool
	// stored says that there was a State. unverified says that there is no root key; keySet is then what the State had.
	stored     bool
	unverified bool
	keySet     []byte
}

// New returns the Checker of a node that believes the root key, with what it stored. Without a root key it takes the LO's word: what is
// followed then keeps volumes and containers once there is a key, and holds up no assignment.
func New(node Node, root ed25519.PublicKey, s State) (*Checker, error) {
	c := &Checker{node: node, floors: map[protocol.DeploymentName]Floor{}, retained: map[protocol.DeploymentName]bool{}, stored: s.Site != "", unverified: root == nil, keySet: s.KeySet}
	if !c.unverified {
		var err error
		if c.trust, err = sign.NewTrust(root); err != nil {
			return nil, err
		}
		if next, err := c.trust.Follow(s.KeySet); err == nil { // else the root key was replaced: the next key set counts
			c.trust = next
		}
	}
	if s.Site != "" && s.Site != node.Site {
		return c, nil // the positions of another site say nothing about those of this one
	}
	c.loSigns = s.LOSigns
	for _, f := range s.Floors {
		c.floors[f.Deployment] = f
	}
	return c, nil
}

// Sent checks that a NodeDesired, as it was encoded, comes from the LO of the site, if the node has certificates. The
// LO's signature proves that; a state without one is accepted until the node has followed a signed one. An error is a
// sign.Refusal, and refuses the message as a whole: it is not given to Check.
func (c *Checker) Sent(d *protocol.NodeDesired, message []byte) error {
	if c.node.LO == nil {
		return nil
	}
	if len(d.Signature) == 0 {
		if c.loSigns {
			return sign.Refuse(sign.Unsigned, "the local orchestrator of the site has not signed it, and has signed an earlier one: either another sender has written it, or the local orchestrator is back at an earlier release or configuration")
		}
		return nil
	}
	key, err := c.node.LO(d.Certificates)
	if err != nil {
		return sign.Refuse(sign.UnknownKey, "what came with it does not prove the local orchestrator of the site: %v", err)
	}
	return sign.CheckNode(key, c.node.Site, message)
}

// Check decides about a NodeDesired that Sent has let pass. records are those of the node. It changes nothing;
// Adopt does, once the State of the Verdict is on disk.
func (c *Checker) Check(d *protocol.NodeDesired, records map[protocol.DeploymentName]plan.Record) Verdict {
	k := &check{Checker: c, loSigns: c.loSigns || c.node.LO != nil && len(d.Signature) > 0, records: records, floors: map[protocol.DeploymentName]Floor{}, v: Verdict{Failed: map[protocol.DeploymentName]plan.Failure{}}}
	for name, f := range c.floors {
		k.floors[name] = f
	}
	for _, rec := range records {
		if rec.Stranger() {
			k.strangers++
		}
	}
	if c.unverified {
		k.remember()
	} else {
		k.follow(d.KeySet)
	}
	obeyed := *d
	obeyed.Assignments, obeyed.Removals, obeyed.Purges = nil, nil, nil
	for _, a := range d.Assignments {
		k.assignment(&obeyed, a)
	}
	for _, r := range d.Removals {
		k.removal(&obeyed, r)
	}
	for _, p := range d.Purges {
		if err := k.purge(p); err != nil {
			k.refuse("purge", p.Deployment, err)
			continue
		}
		if k.floors[p.Deployment].last().After(p.Site) {
			continue // it was about what was there before: the deployment has had new data since
		}
		obeyed.Purges = append(obeyed.Purges, p)
	}
	k.v.Obeyed, k.v.State = &obeyed, k.state()
	return k.v
}

// Adopt takes over the State of a Verdict, which is on disk.
func (c *Checker) Adopt(s State) {
	if c.unverified {
		c.keySet = s.KeySet
	} else if next, err := c.trust.Follow(s.KeySet); err == nil {
		c.trust = next
	}
	c.loSigns = s.LOSigns
	clear(c.floors)
	for _, f := range s.Floors {
		c.floors[f.Deployment] = f
	}
}

// A check is one call of Check.
type check struct {
	*Checker
	trust   sign.Trust
	loSigns bool
	records map[protocol.DeploymentName]plan.Record
	floors  map[protocol.DeploymentName]Floor
	// strangers is how many records of strangers there are, with those that v makes.
	strangers int
	v         Verdict
}

// follow follows the key set that came with the desired state, or refuses it.
func (k *check) follow(keySet []byte) {
	var err error
	if k.trust, err = k.Checker.trust.Follow(keySet); err != nil {
		k.refuse("key set", "", err)
	}
}

// remember raises the floors to what the records follow: those of an earlier release, or whose floors are lost.
func (k *check) remember() {
	for name, rec := range k.records {
		k.raise(name, rec.Site, rec, false)
	}
}

func (k *check) refuse(what string, name protocol.DeploymentName, err error) {
	k.v.Refused = append(k.v.Refused, Refused{what, name, err})
}

// assignment adds an assignment to what is obeyed, or refuses it.
func (k *check) assignment(obeyed *protocol.NodeDesired, a protocol.Assignment) {
	rec, recorded := k.records[a.Deployment]
	held := recorded && rec.State != lifecycle.Deleting && rec.State != lifecycle.Deleted
	runs := held && (rec.Digest == a.Digest && len(rec.Spec) > 0 || gives(rec, a.Digest))
	entry, err := k.entry(a)
	switch {
	case err == nil:
		k.raise(a.Deployment, entry.Position, rec, held)
		a.Site, a.MinHealthyMillis, a.NoRollback = entry.Position, entry.Policy.MinHealthyMillis, entry.Policy.NoRollback
	case runs, held && a.Rollback && rec.Healthy == a.Digest,
		(held || !recorded) && a.Rollback && slices.Contains(k.floors[a.Deployment].Earlier, a.Digest):
		// The node has adopted this version before: the LO may choose to continue it, to try it
		// again, to keep it in place of an update that has to wait, and to return to it. The record
		// of that may be lost; what was removed since is not among the earlier ones.
		if floor := k.floors[a.Deployment].Position; a.Site.After(floor) {
			a.Site = floor
		}
		a.MinHealthyMillis, a.NoRollback = rec.MinHealthyMillis, rec.NoRollback
	default:
		k.refuse("assignment", a.Deployment, err)
		if held && rec.Digest == a.Digest && len(rec.Spec) > 0 {
			return
		}
		if !held {
			if k.strangers >= maxStrangers {
				return
			}
			k.strangers++
		}
		k.v.Failed[a.Deployment] = plan.Failure{Code: protocol.SignatureInvalid, Message: err.Error()}
	}
	obeyed.Assignments = append(obeyed.Assignments, a)
}

// gives reports whether a version is the one that an update is to replace, or is replacing: the node may keep it.
func gives(rec plan.Record, d protocol.Digest) bool {
	return rec.Active == d && len(rec.ActiveSpec) > 0 || rec.State == lifecycle.Updating && rec.Healthy == d && len(rec.FormerSpec) > 0
}

// entry returns the entry that an assignment follows from.
func (k *check) entry(a protocol.Assignment) (protocol.SiteEntry, error) {
	if k.unverified {
		return protocol.SiteEntry{Position: a.Site, Policy: protocol.Policy{MinHealthyMillis: a.MinHealthyMillis, NoRollback: a.NoRollback}}, nil
	}
	e, err := k.trust.Entry(k.node.Site, a.Signature)
	switch {
	case err != nil:
		return e, err
	case e.Deployment != a.Deployment || e.Digest != a.Digest:
		return e, sign.Refuse(sign.Mismatch, "assigned is %s of deployment %s, signed is %s of %s", a.Digest.Short(), a.Deployment, e.Digest.Short(), e.Deployment)
	case !k.matches(e.Placement):
		return e, sign.Refuse(sign.WrongNode, "deployment %s is signed for %s, this is node %s", a.Deployment, whom(e.Placement), k.node.Node)
	}
	return e, fresh(a.Deployment, e.Position, k.floors[a.Deployment].Position)
}

// fresh refuses a statement about a deployment that is older than a floor.
func fresh(name protocol.DeploymentName, at, floor protocol.Position) error {
	if floor.After(at) {
		return sign.Refuse(sign.Stale, "what the CO says of deployment %s is of %s, this node has followed %s", name, at, floor)
	}
	return nil
}

// removal adds a removal to what is obeyed, or refuses it.
func (k *check) removal(obeyed *protocol.NodeDesired, r protocol.NodeRemoval) {
	at, err := k.removed(r)
	if err == nil && !at.IsZero() {
		err = fresh(r.Deployment, at, k.floors[r.Deployment].last())
	}
	rec, held := k.records[r.Deployment]
	if (!held || rec.State == lifecycle.Deleted) && sign.ReasonOf(err) == sign.Stale {
		return // it was about what was there before, and a CO whose database was restored says it again
	}
	if err != nil {
		k.refuse("removal", r.Deployment, err)
		return
	}
	k.raise(r.Deployment, at, rec, held)
	if !r.Site.IsZero() {
		f := k.floors[r.Deployment]
		f.Earlier = nil
		k.floors[r.Deployment] = f
	}
	obeyed.Removals = append(obeyed.Removals, r)
}

// removed returns the position of the statement that a removal follows from; zero: there is none, as the LO placed the
// deployment elsewhere.
func (k *check) removed(r protocol.NodeRemoval) (protocol.Position, error) {
	if k.unverified {
		return r.Site, nil
	}
	if !r.Site.IsZero() {
		t, err := k.trust.Tombstone(k.node.Site, r.Signature)
		if err == nil && (t.Deployment != r.Deployment || t.Position != r.Site || r.Volumes && !t.Volumes) {
			err = sign.Refuse(sign.Mismatch, "asked for is the removal of %s at %s with volumes %t, signed is that of %s at %s with volumes %t",
				r.Deployment, r.Site, r.Volumes, t.Deployment, t.Position, t.Volumes)
		}
		return t.Position, err
	}
	e, err := k.trust.Entry(k.node.Site, r.Signature)
	switch {
	case err != nil:
	case e.Deployment != r.Deployment || r.Volumes:
		err = sign.Refuse(sign.Mismatch, "asked for is that %s leaves this node, with volumes %t, signed is an entry of %s", r.Deployment, r.Volumes, e.Deployment)
	case k.matches(e.Placement) && len(e.Placement.Constraints) == 0 && (e.Placement.Replicas == 0 || e.Placement.Node != ""):
		err = sign.Refuse(sign.WrongNode, "deployment %s is signed for %s, and node %s is among them: only a tombstone removes it", r.Deployment, whom(e.Placement), k.node.Node)
	}
	return e.Position, err
}

// purge returns why a purge is refused.
func (k *check) purge(p protocol.NodePurge) error {
	if k.unverified {
		return nil
	}
	s, err := k.trust.Purge(k.node.Site, p.Signature)
	switch {
	case err != nil:
		return err
	case s.Node != k.node.Node:
		return sign.Refuse(sign.WrongNode, "the purge of %s is signed for node %s, this is node %s", p.Deployment, s.Node, k.node.Node)
	case s.Deployment != p.Deployment || s.Volume != p.Volume || s.Position != p.Site:
		return sign.Refuse(sign.Mismatch, "asked for is the purge of %s/%s at %s, signed is that of %s/%s at %s", p.Deployment, p.Volume, p.Site, s.Deployment, s.Volume, s.Position)
	}
	return nil
}

// matches reports whether a placement allows the node. Device constraints are left to the LO.
func (k *check) matches(p protocol.Placement) bool {
	if p.Node != "" && p.Node != k.node.Node {
		return false
	}
	for label, want := range p.Selector {
		if got, ok := k.node.Labels[label]; !ok || got != want {
			return false
		}
	}
	return true
}

// whom words whom a placement allows.
func whom(p protocol.Placement) string {
	if p.Node != "" {
		return "node " + string(p.Node)
	}
	if len(p.Selector) == 0 {
		return "all nodes"
	}
	var labels []string
	for k, v := range p.Selector {
		labels = append(labels, k+"="+v)
	}
	slices.Sort(labels)
	return "nodes with " + strings.Join(labels, ",")
}

// raise remembers that a statement about a deployment was followed, and which version the node had
// running until then.
func (k *check) raise(name protocol.DeploymentName, at protocol.Position, rec plan.Record, held bool) {
	f := k.floors[name]
	f.Deployment = name
	if k.unverified && at.IsZero() {
		return // an LO that says no positions
	}
	floor := &f.Position
	if k.unverified {
		floor = &f.Claimed
	}
	if at.After(*floor) {
		*floor = at
	}
	if held && rec.Healthy != "" && (len(f.Earlier) == 0 || f.Earlier[0] != rec.Healthy) {
		earlier := slices.DeleteFunc(slices.Clone(f.Earlier), func(d protocol.Digest) bool { return d == rec.Healthy })
		f.Earlier = append([]protocol.Digest{rec.Healthy}, earlier...)
		f.Earlier = f.Earlier[:min(len(f.Earlier), maxEarlier)]
	}
	k.floors[name] = f
}
