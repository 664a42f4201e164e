// Package explain says why a deployment is at a site, or is not, and in the state that it is in: which files say it, what its rollout
// waits for, what its nodes run, and what comes next. It decides nothing: it puts the reasons that others gave side by side. It is pure.
package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// An Explanation says why a deployment is at a site as it is.
type Explanation struct {
	Site       protocol.SiteID            `json:"site"`
	Deployment protocol.DeploymentName    `json:"deployment"`
	Summary    string                     `json:"summary" doc:"in one sentence, for people"`
	State      lifecycle.State            `json:"state,omitempty" doc:"absent: the site does not have it"`
	Since      *time.Time                 `json:"since,omitempty" doc:"since when the state is so; absent: the site does not have it"`
	Reason     string                     `json:"reason,omitempty" doc:"why the state is not INSTALLED, or may be outdated"`
	Said       []ExplainedFile            `json:"said" doc:"the files of the deployments repo that say it; empty: none does"`
	Target     *ExplainedTarget           `json:"target,omitempty" doc:"whether the fleet deployment of that name means the site; absent: there is none, or its file cannot be read"`
	Values     []fleetfile.EffectiveValue `json:"values,omitempty" doc:"of parameters, each with where it comes from; absent: none, or the token is for some sites"`
	Rollout    *ExplainedRollout          `json:"rollout,omitempty" doc:"of the fleet deployment; absent: there is none"`
	Versions   *ExplainedVersions         `json:"versions,omitempty" doc:"absent: the site does not have it"`
	Nodes      []ExplainedNode            `json:"nodes" doc:"of the site, and why each was chosen or not, by name"`
	Next       []NextStep                 `json:"next" doc:"what comes next, and what is waited for"`
}

// An ExplainedFile is one that says something of the deployment.
type ExplainedFile struct {
	Path   string `json:"path" doc:"in the deployments repo"`
	Commit string `json:"commit,omitempty" doc:"the last one that changed it"`
	Says   string `json:"says" doc:"for people"`
}

// An ExplainedTarget says whether a fleet deployment means a site.
type ExplainedTarget struct {
	Meant  bool     `json:"meant"` // whether the site is a target
	By     []string `json:"by,omitempty" doc:"the entries of the targets that match, as sites: plant-*"`
	Except []string `json:"except,omitempty" doc:"the entries that leave the site out"`
}

// An ExplainedRollout is where the site stands in the rollout of its fleet deployment.
type ExplainedRollout struct {
	Revision int64             `json:"revision"` // the latest
	Version  string            `json:"appVersion,omitempty" doc:"of the latest revision; absent: its files have a fault"`
	Commit   string            `json:"commit" doc:"of the deployments repo that made the revision"`
	State    rollout.State     `json:"state" enum:"running,paused,done,aborted,superseded,refused"`
	Waits    string            `json:"waits,omitempty" doc:"what the rollout waits for, or why it ended; absent: the token is for some sites"`
	Current  int               `json:"currentWave" doc:"from 0"`
	Site     rollout.SiteState `json:"site,omitempty" doc:"where the site stands; absent: it is not part of it"`
	Wave     int               `json:"wave" doc:"of the site, from 0"`
	May      int64             `json:"may" doc:"the revision that the site may have; 0: none"`
	Why      string            `json:"why,omitempty" doc:"why the site is in its state"`
	Since    *time.Time        `json:"since,omitempty" doc:"when the state of the site last changed; absent: it is not part of it"`
	Admitted *time.Time        `json:"admittedAt,omitempty" doc:"when the site was admitted; absent: it was not"`
}

// ExplainedVersions are those of a deployment at a site.
type ExplainedVersions struct {
	App        string          `json:"app"`              // id of the application
	Desired    string          `json:"desired"`          // version of the application
	Digest     protocol.Digest `json:"digest,omitempty"` // of what is desired; absent: it never compiled
	Generation uint64          `json:"generation" doc:"of the site's desired state that last changed the deployment"`
	Adopted    uint64          `json:"adopted" doc:"generation that the site has adopted"`
	Running    map[string]int  `json:"running" doc:"versions that nodes keep up, with the number of nodes"`
}

// An ExplainedNode is one of the site.
type ExplainedNode struct {
	Node    protocol.NodeID `json:"node"`
	Chosen  bool            `json:"chosen"` // whether the site has placed it there
	Why     string          `json:"why" doc:"why it was chosen, or was not"`
	Online  string          `json:"online" doc:"online, offline, or unknown while the site is offline"`
	State   lifecycle.State `json:"state,omitempty" doc:"absent: it has never had it"`
	Version string          `json:"version,omitempty" doc:"that the state is about"`
	Running string          `json:"running,omitempty" doc:"version that it keeps up; absent: none, or it is not known"`
	Since   *time.Time      `json:"since,omitempty" doc:"when state or version last changed; absent: it has never had it"`
	Reason  string          `json:"reason,omitempty" doc:"what the node reported of a failure, and what waits there"`
	RetryAt *time.Time      `json:"retryAt,omitempty" doc:"when the site makes the next attempt, by its clock; absent: none is planned"`
}

// A NextStep is something that comes next.
type NextStep struct {
	What string     `json:"what"` // for people
	At   *time.Time `json:"at,omitempty" doc:"when; absent: it is not known"`
}

// A Fleet is the fleet deployment of that name.
type Fleet struct {
	Commit string // the last that changed its file
	// File is nil where it cannot be read, and Fault is why.
	File  *fleetfile.File
	Fault string
	// Exception is that of the site, nil: there is none.
	Exception       *fleetfile.Exception
	ExceptionCommit string
	Groups          map[string]siteset.Set
	// Rollout is the latest, nil: none has begun; Member is where the site stands, nil: it is no part of it.
	Rollout *rollout.Rollout
	Member  *rollout.Member
}

// An Input is what Of puts together.
type Input struct {
	Site       protocol.SiteID
	Name       protocol.DeploymentName
	SiteOnline bool
	// Own is the last commit that changed the site's own file of that name; "": there is none.
	Own string
	// Fleet is nil where there is no fleet deployment of that name.
	Fleet *Fleet
	// Deployment is what is recorded of it, nil: nothing.
	Deployment *fleet.Deployment
	Nodes      []fleet.Node
	// Partial leaves out what is said of other sites.
	Partial bool
}

// Of explains a deployment.
func Of(in Input) Explanation {
	e := Explanation{Site: in.Site, Deployment: in.Name, Said: in.said(), Nodes: []ExplainedNode{}, Next: []NextStep{}}
	if d := in.Deployment; d != nil && !d.Archived {
		e.State, e.Since, e.Reason = d.State, d.Since, d.Reason
		e.Versions = &ExplainedVersions{App: d.App, Desired: d.AppVersion, Digest: d.Digest, Generation: d.Generation, Adopted: d.ObservedGeneration, Running: d.Running}
		e.Nodes = in.nodes()
	}
	if f := in.Fleet; f != nil {
		if f.File != nil {
			e.Target = &ExplainedTarget{}
			e.Target.By, e.Target.Except = f.File.Match(in.Site, f.Groups)
			e.Target.Meant = len(e.Target.By) > 0 && len(e.Target.Except) == 0
			if e.Target.Meant && in.Own == "" && !in.Partial {
				e.Values = f.File.Effective(rollout.Site{ID: in.Site, Groups: in.groups()}, f.Exception)
			}
		}
		if f.Rollout != nil {
			e.Rollout = in.spread()
		}
	}
	e.Next = append(e.Next, in.ofFleet(e.Target)...)
	e.Next = append(e.Next, in.ofSite()...)
	e.Summary = in.summary(&e)
	if len(e.Next) == 0 {
		e.Next = append(e.Next, NextStep{What: "nothing: it stays as it is until a file of the deployments repo changes"})
	}
	return e
}

// groups are those of the site that count for its values: those that it was admitted with.
func (in *Input) groups() (list []string) {
	if m := in.Fleet.Member; m != nil && m.Revision > 0 {
		return m.Groups
	}
	for _, name := range slices.Sorted(maps.Keys(in.Fleet.Groups)) {
		if in.Fleet.Groups[name].Has(in.Site) {
			list = append(list, name)
		}
	}
	return list
}

func (in *Input) said() []ExplainedFile {
	said := []ExplainedFile{}
	if in.Own != "" {
		said = append(said, ExplainedFile{intent.Path(in.Site, in.Name), in.Own, "a deployment of the site's own"})
	}
	f := in.Fleet
	if f == nil {
		return said
	}
	says := "a fleet deployment that cannot be read: " + f.Fault
	if f.File != nil {
		says = fmt.Sprintf("a fleet deployment of %s %s", f.File.Application.ID, f.File.Application.Version)
	}
	said = append(said, ExplainedFile{fleetfile.Path(in.Name), f.Commit, says})
	if f.Exception != nil {
		said = append(said, ExplainedFile{fleetfile.ExceptionPath(in.Name, in.Site), f.ExceptionCommit, "values of the site's own: " + strings.Join(slices.Sorted(maps.Keys(f.Exception.Parameters)), ", ")})
	}
	return said
}

func (in *Input) spread() *ExplainedRollout {
	r, m := in.Fleet.Rollout, in.Fleet.Member
	s := &ExplainedRollout{Revision: r.Revision, Version: r.Version, Commit: r.Commit, State: r.State, Waits: r.Reason, Current: r.Wave}
	if in.Partial {
		s.Waits = ""
	}
	if m != nil {
		s.Site, s.Wave, s.May, s.Why, s.Since, s.Admitted = m.State, m.Wave, m.Revision, m.Reason, &m.Changed, m.Admitted
	}
	return s
}

// nodes says of each node of the site why it was chosen, or was not.
func (in *Input) nodes() []ExplainedNode {
	found := map[protocol.NodeID]*ExplainedNode{}
	node := func(id protocol.NodeID) *ExplainedNode {
		if found[id] == nil {
			found[id] = &ExplainedNode{Node: id, Online: "unknown"}
		}
		return found[id]
	}
	for i := range in.Nodes {
		node(in.Nodes[i].ID).Online = in.Nodes[i].State
	}
	for _, id := range slices.Sorted(maps.Keys(in.Deployment.Rejected)) {
		node(protocol.NodeID(id)).Why = in.Deployment.Rejected[id]
	}
	for i := range in.Deployment.Nodes {
		d := &in.Deployment.Nodes[i]
		n := node(d.Node)
		n.State, n.Version, n.Running, n.Since, n.RetryAt, n.Reason = d.State, d.AppVersion, d.RunningVersion, &d.Since, d.RetryAt, d.Fault()
		if d.Waits != "" {
			n.Reason = strings.TrimPrefix(n.Reason+"; "+d.Waits, "; ")
		}
		n.Chosen = n.Why == "" && d.State != lifecycle.Deleted && d.State != lifecycle.Deleting
	}
	list := []ExplainedNode{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		n := found[id]
		if n.Why == "" {
			n.Why = in.why(n)
		}
		list = append(list, *n)
	}
	return list
}

// why is why a node was chosen, or that its reason is not known.
func (in *Input) why(n *ExplainedNode) string {
	d := in.Deployment
	switch {
	case n.Chosen && in.Own == "" && in.Fleet != nil && in.Fleet.File != nil && len(in.Fleet.File.Nodes) > 0:
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(in.Fleet.File.Nodes)) {
			labels = append(labels, k+"="+in.Fleet.File.Nodes[k])
		}
		return "the site has chosen it; nodes with " + strings.Join(labels, ", ") + " are wanted"
	case n.Chosen:
		return "the site has chosen it"
	case d.Generation > d.ObservedGeneration:
		return fmt.Sprintf("the site has not adopted generation %d yet, and says then", d.Generation)
	case n.State == lifecycle.Deleting || n.State == lifecycle.Deleted:
		return "it is not wanted there any more"
	}
	return "the site has reported no reason"
}

// ofFleet is what the fleet deployment of that name waits for.
func (in *Input) ofFleet(target *ExplainedTarget) []NextStep {
	f := in.Fleet
	switch {
	case f == nil:
		return nil
	case in.Own != "":
		return []NextStep{{What: fmt.Sprintf("the site's own deployment stays; to have that of the fleet, delete it: colony deployment delete %s/%s", in.Site, in.Name)}}
	case f.Fault != "":
		return []NextStep{{What: fmt.Sprintf("%s has to be corrected; what runs stays until then: %s", fleetfile.Path(in.Name), f.Fault)}}
	case target != nil && len(target.Except) > 0:
		return []NextStep{{What: "the site is left out of the targets (" + strings.Join(target.Except, ", ") + ")"}}
	case target != nil && !target.Meant:
		return []NextStep{{What: fmt.Sprintf("no entry of the targets of %s means the site: colony fleet show %s", fleetfile.Path(in.Name), in.Name)}}
	case f.Rollout == nil || f.Member == nil:
		return []NextStep{{What: "the CO takes the file up: the site is not recorded as a target yet"}}
	case f.Rollout.State == rollout.Refused:
		return []NextStep{{What: fmt.Sprintf("%s was refused, and the revision before stays: %s", f.Rollout.Name(), f.Rollout.Reason)}}
	}
	return in.ofMember()
}

// ofMember is what the site waits for in the rollout.
func (in *Input) ofMember() (steps []NextStep) {
	r, m := in.Fleet.Rollout, in.Fleet.Member
	waits := ": " + r.Reason
	if in.Partial || r.Reason == "" {
		waits = ""
	}
	if r.State == rollout.Paused {
		steps = append(steps, NextStep{What: fmt.Sprintf("a person resumes the rollout (colony rollout resume %s), or aborts it%s", in.Name, waits)})
	}
	strategy := in.Fleet.File.Plan()
	switch m.State {
	case rollout.SiteWaiting:
		switch {
		case r.State == rollout.Aborted:
			steps = append(steps, NextStep{What: fmt.Sprintf("%s was aborted before the site had it: a later change of the file begins a rollout anew", r.Name())})
		case m.Wave > r.Wave:
			steps = append(steps, NextStep{What: fmt.Sprintf("the site gets %s with wave %d; wave %d has its turn%s", r.Name(), m.Wave+1, r.Wave+1, waits)})
		default:
			steps = append(steps, NextStep{What: fmt.Sprintf("the site gets %s in its turn%s%s", r.Name(), bounds(strategy), waits)})
		}
	case rollout.SiteMoving:
		steps = append(steps, NextStep{What: cmp.Or(m.Reason, "the site runs "+r.Name()+" on all its nodes")})
		if m.Admitted != nil {
			deadline := m.Admitted.Add(cmp.Or(strategy.Deadline, rollout.DefaultDeadline))
			steps = append(steps, NextStep{What: "it counts as failed, at the earliest: time in which the change waits, or the site is offline, does not count", At: &deadline})
		}
	case rollout.SiteAway:
		steps = append(steps, NextStep{What: fmt.Sprintf("the site comes back, and gets %s", r.Name())})
	case rollout.SiteFailed:
		steps = append(steps, NextStep{What: fmt.Sprintf("it works, or the fleet deployment changes (colony fleet revert %s): %s", in.Name, m.Reason)})
	case rollout.SiteHealthy:
		if r.State == rollout.Running && m.Wave == r.Wave && r.Settled != nil && r.Wave < len(strategy.Waves) {
			until := r.Settled.Add(strategy.Waves[r.Wave].Bake)
			steps = append(steps, NextStep{What: "its wave is watched until then", At: &until})
		}
	}
	return steps
}

// bounds says what bounds how fast sites begin.
func bounds(p rollout.Plan) string {
	var parts []string
	if p.SitesPerMinute > 0 {
		parts = append(parts, fmt.Sprintf("%d sites a minute", p.SitesPerMinute))
	}
	if p.AtOnce > 0 {
		parts = append(parts, fmt.Sprintf("%d at once", p.AtOnce))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (at most " + strings.Join(parts, ", ") + ")"
}

// ofSite is what the site waits for.
func (in *Input) ofSite() (steps []NextStep) {
	d := in.Deployment
	if d == nil || d.Archived {
		return nil
	}
	if d.Held != "" {
		what := "a person confirms or withdraws proposal " + d.Held + ": colony proposal show " + d.Held
		if d.Withdrawn {
			what = "its removal was refused: delete it by name, or deploy it anew"
		}
		steps = append(steps, NextStep{What: what})
	}
	if d.Problem != "" {
		steps = append(steps, NextStep{What: d.Problem})
	}
	if !in.SiteOnline {
		steps = append(steps, NextStep{What: "the site comes back: until then what is shown of it is as of its last report", At: nil})
	}
	if d.Generation > d.ObservedGeneration {
		steps = append(steps, NextStep{What: fmt.Sprintf("the site adopts generation %d; it has %d", d.Generation, d.ObservedGeneration)})
	}
	for i := range in.Nodes {
		for _, w := range in.Nodes[i].Waits {
			if w.Deployment != in.Name {
				continue
			}
			step := NextStep{What: fmt.Sprintf("node %s: %s", in.Nodes[i].ID, w.Why)}
			if w.UntilMillis > 0 {
				at := time.UnixMilli(w.UntilMillis).UTC()
				step.At = &at
			}
			steps = append(steps, step)
		}
	}
	for i := range d.Nodes {
		if n := &d.Nodes[i]; n.RetryAt != nil && n.Waits == "" {
			steps = append(steps, NextStep{What: fmt.Sprintf("the site tries it once more on node %s", n.Node), At: n.RetryAt})
		}
	}
	return steps
}

func (in *Input) summary(e *Explanation) string {
	name := fmt.Sprintf("%s/%s", in.Site, in.Name)
	switch {
	case e.Versions != nil && e.State == lifecycle.Installed && e.Reason == "":
		return fmt.Sprintf("%s runs %s %s, as %s says", name, e.Versions.App, e.Versions.Desired, in.by())
	case e.Versions != nil && len(e.Said) == 0:
		return fmt.Sprintf("%s is %s, and no file asks for it", name, e.State)
	case e.Versions != nil:
		return fmt.Sprintf("%s is %s: %s asks for %s %s", name, e.State, in.by(), e.Versions.App, e.Versions.Desired)
	case e.Target != nil && !e.Target.Meant && in.Own == "":
		return fmt.Sprintf("the site does not have %s: the fleet deployment of that name does not mean it", name)
	}
	return fmt.Sprintf("the site does not have %s yet", name)
}

// by is the file that says what the site has.
func (in *Input) by() string {
	switch {
	case in.Own != "":
		return "its own file"
	case in.Fleet != nil:
		return "the fleet deployment"
	}
	return "what was committed"
}
