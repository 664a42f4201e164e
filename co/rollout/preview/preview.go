// Package preview says what a revision of a fleet deployment would do at which sites and nodes, before it is committed. What a site would
// have, how the nodes of a site are chosen, and which removals wait for a person is decided by the packages that decide it for real. The
// package is pure.
package preview

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// A Version is what a site has of a fleet deployment, or would have.
type Version struct {
	App string // version of the application
	// Content is the file that the fleet deployment expands to.
	Content []byte
	// Entry says which nodes it is for.
	Entry protocol.SiteEntry
	// Fault is why it cannot be expanded; "": it can.
	Fault string
}

// Facts are what is known of a site.
type Facts struct {
	Online  bool
	Running int // deployments that run there
	// Known says that Nodes and Versions were read.
	Known bool
	Nodes []placement.Node
	// Versions are those of the application that nodes run of the deployment; "": it is not known.
	Versions map[protocol.NodeID]string
}

// A Site is one that a change concerns.
type Site struct {
	ID   protocol.SiteID
	Wave int // from 0; -1: it is not meant any more
	// Own says that it has a deployment of that name of its own.
	Own bool
	// Exception says that it has values of its own.
	Exception bool
	// Before is what it may have now, nil: nothing; After is what it would have, nil: nothing.
	Before, After *Version
	Facts         Facts
}

// An Input is what Of decides upon.
type Input struct {
	Fleet  protocol.DeploymentName
	Commit string // head of the deployments repo
	// Source is the encoded files.
	Source []byte
	Waves  []rollout.OutlineWave
	// Sites are in the sequence in which they are shown.
	Sites  []Site
	Limits proposal.Limits
	Notes  []string
}

// Of returns what a change would do.
func Of(in Input) rollout.Outline {
	out := rollout.Outline{
		Commit: in.Commit, Fleet: in.Fleet, Effects: map[rollout.Effect]int{}, Nodes: map[rollout.Effect]int{},
		Waves: slices.Clone(in.Waves), Sites: []rollout.OutlineSite{}, Steps: []rollout.OutlineStep{}, Notes: slices.Clone(in.Notes),
	}
	sum := sha256.New()
	sum.Write(in.Source)
	held := in.held()
	steps, holds := map[rollout.OutlineStep]int{}, map[string]int{}
	for i := range in.Sites {
		s := &in.Sites[i]
		v := s.outline(in.Fleet, held[i])
		out.Effects[v.Effect]++
		if v.Wave >= 0 {
			out.Waves[v.Wave].Sites++
		}
		if v.Held != "" {
			holds[v.Held]++
		}
		if v.Effect != rollout.Conflict {
			steps[rollout.OutlineStep{Effect: v.Effect, From: v.From, To: v.To}]++
		}
		for _, n := range v.Nodes {
			out.Nodes[n.Effect]++
		}
		if s.Facts.Known {
			out.LookedAt++
		}
		digest(sum.Write, &v)
		v.More = max(0, len(v.Nodes)-rollout.MaxOutlineNodes)
		v.Nodes = v.Nodes[:len(v.Nodes)-v.More]
		if len(out.Sites) < rollout.MaxOutlineSites {
			out.Sites = append(out.Sites, v)
		} else {
			out.More++
		}
	}
	for step, n := range steps {
		step.Sites = n
		out.Steps = append(out.Steps, step)
	}
	slices.SortFunc(out.Steps, func(a, b rollout.OutlineStep) int {
		return cmp.Or(cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	for _, cause := range slices.Sorted(maps.Keys(holds)) {
		out.Held = append(out.Held, rollout.OutlineHold{Cause: cause, Sites: holds[cause]})
	}
	if note := in.nowhere(); note != "" {
		out.Notes = append(out.Notes, note)
	}
	out.ID = id(in.Commit, hex.EncodeToString(sum.Sum(nil)))
	return out
}

// digest adds the effect at a site to a digest. Whether it is online changes nothing of that.
func digest(write func([]byte) (int, error), v *rollout.OutlineSite) {
	of := *v
	of.Online = false
	raw, err := json.Marshal(of)
	if err != nil {
		raw = fmt.Appendf(nil, "%+v", of) // it has no value that JSON does not have
	}
	_, _ = write(append(raw, '\n'))
}

// held returns which removals would wait for a person, by the index of the site.
func (in *Input) held() map[int]proposal.Cause {
	var removals []proposal.Removal
	var of []int
	running := map[protocol.SiteID]int{}
	for i := range in.Sites {
		if s := &in.Sites[i]; s.effect() == rollout.Remove {
			removals, of = append(removals, proposal.Removal{Site: s.ID, Deployment: in.Fleet}), append(of, i)
			running[s.ID] = s.Facts.Running
		}
	}
	out := map[int]proposal.Cause{}
	for i, cause := range in.Limits.Hold(removals, running) {
		out[of[i]] = cause
	}
	return out
}

// effect compares what a site would have with what it may have now.
func (s *Site) effect() rollout.Effect {
	switch {
	case s.Own:
		return rollout.Conflict
	case s.After == nil:
		return rollout.Remove
	case s.Before == nil:
		return rollout.Place
	case s.Before.Fault == "" && bytes.Equal(s.Before.Content, s.After.Content):
		return rollout.Same
	}
	return rollout.Update
}

func (s *Site) outline(name protocol.DeploymentName, held proposal.Cause) rollout.OutlineSite {
	v := rollout.OutlineSite{Site: s.ID, Wave: s.Wave, Effect: s.effect(), Online: s.Facts.Online, Values: s.Exception, Held: string(held)}
	if v.Effect == rollout.Conflict {
		return v
	}
	if s.Before != nil {
		v.From = s.Before.App
	}
	if s.After != nil {
		v.To = s.After.App
	}
	if v.Effect == rollout.Update && s.Facts.Known && s.Before.Fault == "" &&
		!proposal.SameNodes(s.Before.Entry.Placement, s.After.Entry.Placement) && proposal.Stranded(name, s.After.Entry, s.Facts.Nodes) {
		v.Held = string(proposal.NoNode)
	}
	if s.Facts.Known && v.Held == "" {
		v.Nodes = s.nodes(name, v.Effect)
	}
	return v
}

// nodes returns what becomes of the nodes of a site, those that change first.
func (s *Site) nodes(name protocol.DeploymentName, effect rollout.Effect) (list []rollout.OutlineNode) {
	var result placement.Result
	to := ""
	if s.After != nil {
		entry := s.After.Entry
		entry.Deployment = name
		result = placement.Place(placement.Input{Desired: []protocol.SiteEntry{entry}, Nodes: s.Facts.Nodes})[name]
		to = s.After.App
	}
	why := map[protocol.NodeID]string{}
	for _, r := range result.Rejected {
		why[r.Node] = r.Why
	}
	for _, n := range s.Facts.Nodes {
		runs := slices.Contains(n.Runs, name)
		v := rollout.OutlineNode{Node: n.ID, Effect: rollout.Reject, From: s.Facts.Versions[n.ID], Why: why[n.ID]}
		switch _, chosen := slices.BinarySearch(result.Nodes, n.ID); {
		case chosen && runs && effect == rollout.Same:
			v.Effect, v.To = rollout.Same, to
		case chosen && runs:
			v.Effect, v.To = rollout.Update, to
		case chosen:
			v.Effect, v.To = rollout.Place, to
		case runs:
			v.Effect = rollout.Remove
		case effect == rollout.Remove:
			continue
		}
		list = append(list, v)
	}
	sequence := []rollout.Effect{rollout.Place, rollout.Update, rollout.Remove, rollout.Same, rollout.Reject}
	slices.SortStableFunc(list, func(a, b rollout.OutlineNode) int {
		return cmp.Compare(slices.Index(sequence, a.Effect), slices.Index(sequence, b.Effect))
	})
	return list
}

// nowhere is a note of the sites at which no node would run the deployment, though all were online; "": there is none.
func (in *Input) nowhere() string {
	const shown = 3
	var sites []string
	looked, none := 0, 0
	for i := range in.Sites {
		s := &in.Sites[i]
		if s.After == nil || s.Own || !s.Facts.Known {
			continue
		}
		looked++
		if why := s.why(in.Fleet); why != "" {
			if none++; none <= shown {
				sites = append(sites, string(s.ID)+": "+why)
			}
		}
	}
	if none == 0 {
		return ""
	}
	if none > shown {
		sites = append(sites, fmt.Sprintf("and %d more", none-shown))
	}
	return fmt.Sprintf("at %d of %d sites that were looked at no node would run it, by what is known of them now: %s", none, looked, strings.Join(sites, "; "))
}

// why is why no node of a site would run the deployment; "": one would.
func (s *Site) why(name protocol.DeploymentName) string {
	entry := s.After.Entry
	entry.Deployment = name
	return placement.Nowhere(entry, s.Facts.Nodes)
}

// Idle returns why a change is refused that would change nothing, as each site that is meant has a deployment of that name of its own; nil: it is not so.
func Idle(o *rollout.Outline) error {
	own := o.Effects[rollout.Conflict]
	for e, n := range o.Effects {
		if e != rollout.Conflict && n > 0 {
			return nil
		}
	}
	if own == 0 {
		return nil
	}
	var sites []string
	for _, s := range o.Sites[:min(len(o.Sites), 3)] {
		sites = append(sites, string(s.Site))
	}
	if own > len(sites) {
		sites = append(sites, fmt.Sprintf("and %d more", own-len(sites)))
	}
	return protocol.Errorf(protocol.Invalid, "nothing would change: each site that is meant has a deployment %s of its own, which stays (%s): choose another name, delete those, or name other sites", o.Fleet, strings.Join(sites, ", "))
}

// An id names the commit and the effects.
func id(commit, effects string) string { return fmt.Sprintf("%.12s-%.16s", commit, effects) }

// Check returns a Conflict where a plan that a person saw is not the one that there is now.
func Check(seen string, now *rollout.Outline) error {
	if seen == now.ID {
		return nil
	}
	had, _, ok := strings.Cut(seen, "-")
	commit, _, _ := strings.Cut(now.ID, "-")
	switch {
	case !ok:
		return protocol.Errorf(protocol.Invalid, "%q is no id of a plan: colony fleet plan shows it", seen)
	case had != commit:
		return protocol.Errorf(protocol.Conflict, "plan %s is for commit %s of the deployments repo, whose head is %s now: plan anew, and look at it", seen, had, commit)
	}
	return protocol.Errorf(protocol.Conflict, "plan %s does not hold any more: the file, or what it would do at sites and nodes, is another than was planned: plan anew, and look at it", seen)
}
