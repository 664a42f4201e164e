package trust

import (
	"crypto"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

func at(generation uint64) protocol.Position {
	return protocol.Position{Epoch: 1, Generation: generation}
}

// spec returns an encoded version of a deployment.
func spec(name protocol.DeploymentName, version string) []byte {
	return protocol.Marshal(&protocol.DeploymentSpec{V: 1, ID: "i", Deployment: name, App: "app", AppVersion: version, Components: []protocol.Component{
		{Name: "c", Containers: []protocol.Container{{Name: "c", Image: "i"}}},
	}})
}

// A world is a CO and one node of site s1.
type world struct {
	t       *testing.T
	co      *signtest.CO
	checker *Checker
	state   State
	records map[protocol.DeploymentName]plan.Record
	gen     uint64
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, co: signtest.New(t, 1), records: map[protocol.DeploymentName]plan.Record{}}
	w.restart()
	return w
}

// restart gives the node the state that it stored.
func (w *world) restart() {
	w.t.Helper()
	var err error
	w.checker, err = New(Node{Site: "s1", Node: "n1", Labels: map[string]string{"line": "3"}}, w.co.Root(), w.state)
	if err != nil {
		w.t.Fatal(err)
	}
}

// entry returns an assignment as an honest LO makes it of a signed entry.
func (w *world) entry(name protocol.DeploymentName, version string, generation uint64, change ...func(*protocol.SiteDesired)) protocol.Assignment {
	w.t.Helper()
	b := spec(name, version)
	m := protocol.SiteDesired{V: 1, Site: "s1", Position: at(generation), Deployments: []protocol.SiteEntry{{
		Deployment: name, Digest: protocol.DigestOf(b), Size: uint64(len(b)), Position: at(generation), Policy: protocol.Policy{MinHealthyMillis: 7},
	}}}
	for _, c := range change {
		c(&m)
	}
	e := w.co.Attached(m).Deployments[0]
	return protocol.Assignment{Deployment: name, Digest: e.Digest, Spec: b, Signature: e.Signature, Attempt: 1, Site: e.Position, MinHealthyMillis: 7}
}

func place(p protocol.Placement) func(*protocol.SiteDesired) {
	return func(m *protocol.SiteDesired) { m.Deployments[0].Placement = p }
}

func (w *world) tombstone(name protocol.DeploymentName, generation uint64, volumes bool, site protocol.SiteID) protocol.NodeRemoval {
	w.t.Helper()
	m := w.co.Attached(protocol.SiteDesired{V: 1, Site: site, Position: at(generation), Removals: []protocol.Removal{{Deployment: name, Position: at(generation), Volumes: volumes}}})
	return protocol.NodeRemoval{Deployment: name, Site: at(generation), Volumes: volumes, Signature: m.Removals[0].Signature}
}

func (w *world) purge(p protocol.Purge) protocol.NodePurge {
	w.t.Helper()
	m := w.co.Attached(protocol.SiteDesired{V: 1, Site: "s1", Position: p.Position, Purges: []protocol.Purge{p}})
	return protocol.NodePurge{Deployment: p.Deployment, Volume: p.Volume, Site: p.Position, Signature: m.Purges[0].Signature}
}

// check gives the node a desired state with the key set.
func (w *world) check(d protocol.NodeDesired) Verdict {
	w.gen++
	d.V, d.Node, d.Position = 1, "n1", at(w.gen)
	if d.KeySet == nil {
		d.KeySet = w.co.KeySet
	}
	return w.checker.Check(&d, w.records)
}

// obey is check, and the node has everything up that is obeyed.
func (w *world) obey(d protocol.NodeDesired) Verdict {
	w.t.Helper()
	v := w.check(d)
	w.checker.Adopt(v.State)
	w.state = v.State
	for _, a := range v.Obeyed.Assignments {
		if _, failed := v.Failed[a.Deployment]; !failed {
			rec := plan.Record{
				Deployment: a.Deployment, State: lifecycle.Installing, Digest: a.Digest, Spec: a.Spec, Site: a.Site, MinHealthyMillis: a.MinHealthyMillis,
			}
			w.records[a.Deployment] = rec.Installed()
		}
	}
	for _, r := range v.Obeyed.Removals {
		rec := w.records[r.Deployment]
		rec.State = lifecycle.Deleted
		w.records[r.Deployment] = rec.Deleted()
	}
	return v
}

func (w *world) expect(what string, v Verdict, want ...sign.Reason) {
	w.t.Helper()
	var got []sign.Reason
	for _, r := range v.Refused {
		got = append(got, sign.ReasonOf(r.Err))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: refused is %v, want %v", what, v.Refused, want)
	}
}

func assign(list ...protocol.Assignment) protocol.NodeDesired {
	return protocol.NodeDesired{Assignments: list}
}

func remove(list ...protocol.NodeRemoval) protocol.NodeDesired {
	return protocol.NodeDesired{Removals: list}
}

// TestHonest goes through the life of a deployment at an honest LO: nothing is refused.
func TestHonest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v1 := w.entry("web", "1", 1, place(protocol.Placement{Selector: map[string]string{"line": "3"}}))
	v2 := w.entry("web", "2", 2)
	for _, step := range []struct {
		what string
		d    protocol.NodeDesired
	}{
		{"installed", assign(v1)},
		{"the same once more", assign(v1)},
		{"updated", assign(v2)},
		{"returned to the one before, of an earlier position", assign(rollback(v1))},
		{"tried again", assign(func() protocol.Assignment { v := v2; v.Attempt = 2; return v }())},
		{"by name", assign(w.entry("web", "3", 3, place(protocol.Placement{Node: "n1"})))},
		{"returned to the one before the last, as that is faulty", assign(rollback(v1))},
		{"moved to another node by the signed number of replicas", remove(protocol.NodeRemoval{
			Deployment: "web", Signature: w.entry("web", "4", 4, place(protocol.Placement{Replicas: 1})).Signature,
		})},
		{"moved back", assign(w.entry("web", "4", 4, place(protocol.Placement{Replicas: 1})))},
		{"removed with its volumes", remove(w.tombstone("web", 5, true, "s1"))},
		{"a volume purged", protocol.NodeDesired{Purges: []protocol.NodePurge{w.purge(protocol.Purge{Node: "n1", Deployment: "old", Volume: "v", Position: at(6)})}}},
		{"deployed once more", assign(w.entry("web", "1", 7))},
		{"leaves the node, which does not meet the constraints any more", remove(protocol.NodeRemoval{
			Deployment: "web", Signature: w.entry("web", "1", 8, place(protocol.Placement{Constraints: []byte(`{"cpu":{"cores":8}}`)})).Signature,
		})},
		{"meets them again", assign(w.entry("web", "1", 8, place(protocol.Placement{Constraints: []byte(`{"cpu":{"cores":8}}`)})))},
		{"leaves the node, whose labels do not match any more", remove(protocol.NodeRemoval{
			Deployment: "web", Signature: w.entry("web", "1", 8, place(protocol.Placement{Selector: map[string]string{"line": "4"}})).Signature,
		})},
	} {
		w.expect(step.what, w.obey(step.d))
		w.restart()
	}
}

func rollback(a protocol.Assignment) protocol.Assignment {
	a.Rollback = true
	return a
}

// TestMaliciousLO gives a node everything that an LO can make up which has what the CO signed, and
// not its key: none of it is obeyed, each has its reason, and what runs is left as it is.
func TestMaliciousLO(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v0, v1, v2, v3 := w.entry("web", "0", 1), w.entry("web", "1", 2), w.entry("web", "2", 3), w.entry("web", "3", 9)
	gone := w.entry("gone", "1", 2)
	w.expect("v1", w.obey(assign(v1, gone)))
	w.expect("v2", w.obey(assign(v2)))
	w.expect("gone", w.obey(remove(w.tombstone("gone", 4, false, "s1"))))
	stranger := signtest.New(t, 9)
	own := &world{t: t, co: stranger}
	altered := v3
	altered.Spec = spec("web", "evil")
	altered.Digest = protocol.DigestOf(altered.Spec)
	renamed := v3
	renamed.Deployment = "other"
	unsigned := v3
	unsigned.Signature = nil
	changed := v3
	changed.Signature = slices.Clone(v3.Signature)
	changed.Signature[len(changed.Signature)-1] ^= 1
	withVolumes := w.tombstone("web", 9, false, "s1")
	withVolumes.Volumes = true
	later := w.tombstone("gone", 4, false, "s1")
	later.Deployment = "web"
	purged := w.purge(protocol.Purge{Node: "n1", Deployment: "gone", Volume: "v", Position: at(5)})
	purged.Volume = ""
	cited := func(d protocol.NodeRemoval, from protocol.Assignment) protocol.NodeRemoval {
		d.Signature = from.Signature
		return d
	}
	elsewhere := func(m *protocol.SiteDesired) { m.Site = "s2" }
	for name, tt := range map[string]struct {
		d    protocol.NodeDesired
		want sign.Reason
	}{
		"own spec":                       {assign(unsigned), sign.Unsigned},
		"own spec with own keys":         {assign(own.entry("web", "3", 9)), sign.UnknownKey},
		"altered spec":                   {assign(altered), sign.Mismatch},
		"altered signature":              {assign(changed), sign.BadSignature},
		"the spec of another deployment": {assign(renamed), sign.Mismatch},
		"a tombstone as an entry": {assign(func() protocol.Assignment {
			a := v3
			a.Signature = w.tombstone("web", 9, false, "s1").Signature
			return a
		}()), sign.WrongKind},
		"old spec, never here":                 {assign(v0), sign.Stale},
		"old spec as a rollback, never here":   {assign(rollback(v0)), sign.Stale},
		"old spec without a rollback":          {assign(v1), sign.Stale},
		"rollback to what was never signed":    {assign(rollback(unsigned)), sign.Unsigned},
		"replayed after the removal":           {assign(gone), sign.Stale},
		"replayed as a rollback":               {assign(rollback(gone)), sign.Stale},
		"other node's":                         {assign(w.entry("web", "3", 9, place(protocol.Placement{Node: "n2"}))), sign.WrongNode},
		"other nodes'":                         {assign(w.entry("web", "3", 9, place(protocol.Placement{Selector: map[string]string{"line": "4"}}))), sign.WrongNode},
		"other site's":                         {assign(w.entry("web", "3", 9, elsewhere)), sign.WrongSite},
		"removal without a tombstone":          {remove(protocol.NodeRemoval{Deployment: "web"}), sign.Unsigned},
		"removal at a position of its own":     {remove(protocol.NodeRemoval{Deployment: "web", Site: at(99), Volumes: true}), sign.Unsigned},
		"removal of what must run here":        {remove(cited(protocol.NodeRemoval{Deployment: "web"}, v2)), sign.WrongNode},
		"removal of what is to run here alone": {remove(cited(protocol.NodeRemoval{Deployment: "web"}, w.entry("web", "2", 9, place(protocol.Placement{Node: "n1", Replicas: 1})))), sign.WrongNode},
		"a move with volumes":                  {remove(cited(protocol.NodeRemoval{Deployment: "web", Volumes: true}, w.entry("web", "2", 9, place(protocol.Placement{Replicas: 1})))), sign.Mismatch},
		"a move by an old entry":               {remove(cited(protocol.NodeRemoval{Deployment: "web"}, w.entry("web", "1", 2, place(protocol.Placement{Replicas: 1})))), sign.Stale},
		"tombstone of another deployment":      {remove(later), sign.Mismatch},
		"tombstone with volumes":               {remove(withVolumes), sign.Mismatch},
		"old tombstone":                        {remove(w.tombstone("web", 1, false, "s1")), sign.Stale},
		"other site's tombstone":               {remove(w.tombstone("web", 9, false, "s2")), sign.WrongSite},
		"own purge":                            {protocol.NodeDesired{Purges: []protocol.NodePurge{{Deployment: "gone", Site: at(5)}}}, sign.Unsigned},
		"a purge of more":                      {protocol.NodeDesired{Purges: []protocol.NodePurge{purged}}, sign.Mismatch},
		"other node's purge":                   {protocol.NodeDesired{Purges: []protocol.NodePurge{w.purge(protocol.Purge{Node: "n2", Deployment: "gone", Position: at(5)})}}, sign.WrongNode},
		"own key set":                          {protocol.NodeDesired{KeySet: stranger.KeySet}, sign.UnknownKey},
	} {
		for _, when := range []string{"at once", "after a restart"} {
			w.restart()
			v := w.check(tt.d)
			w.expect(fmt.Sprintf("%s, %s", name, when), v, tt.want)
			if len(v.Obeyed.Removals)+len(v.Obeyed.Purges) > 0 {
				t.Errorf("%s: obeyed is %+v", name, v.Obeyed)
			}
			for _, a := range v.Obeyed.Assignments {
				if f := v.Failed[a.Deployment]; f.Code != protocol.SignatureInvalid {
					t.Errorf("%s: obeyed is %+v", name, a)
				}
			}
			if diff := cmp.Diff(w.state, v.State); diff != "" {
				t.Errorf("%s: what is remembered changed:\n%s", name, diff)
			}
		}
	}
}

// TestTakeBack has the LO let a node keep the version that an update was to replace, as its maintenance window is over: while the update gets
// its images, while it replaces the version, and once it has failed. Later it may not.
func TestTakeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v1, v2 := w.entry("web", "1", 2), w.entry("web", "2", 3)
	back := v1
	back.Attempt, back.Signature = 2, nil // the LO has the statement of the desired version alone
	w.expect("v1", w.obey(assign(v1)))
	had := w.records["web"]
	w.expect("v2", w.obey(assign(v2)))
	pulling := had
	pulling.State, pulling.Digest, pulling.Spec, pulling.Site = lifecycle.Updating, v2.Digest, v2.Spec, v2.Site
	for what, rec := range map[string]plan.Record{
		"while it pulls": pulling, "while it replaces": pulling.CutOver(), "once it has failed": pulling.CutOver().Failed(plan.Failure{Code: protocol.ProbeFailed}),
	} {
		w.records["web"] = rec
		w.expect(what, w.check(assign(back)))
	}
	installed := pulling.CutOver().Installed()
	w.records["web"] = installed
	w.expect("once it is INSTALLED", w.check(assign(back)), sign.Unsigned)
	w.records["web"] = installed.HasProven()
	w.expect("once it is proven", w.check(assign(back)), sign.Unsigned)
}

// TestTombstoneOfBefore has a CO whose database was restored ask again for a removal of before, of what the node does not hold any
// more: nothing is obeyed, and nothing is wrong.
func TestTombstoneOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.expect("installed", w.obey(assign(w.entry("gone", "1", 3))))
	w.expect("removed", w.obey(remove(w.tombstone("gone", 5, false, "s1"))))
	delete(w.records, "gone")
	v := w.check(remove(w.tombstone("gone", 4, true, "s1")))
	w.expect("a tombstone of before", v)
	if len(v.Obeyed.Removals) > 0 {
		t.Errorf("obeyed is %+v", v.Obeyed.Removals)
	}
	v = w.check(remove(w.tombstone("gone", 6, true, "s1")))
	w.expect("a later one", v)
	if len(v.Obeyed.Removals) != 1 {
		t.Errorf("obeyed is %+v", v.Obeyed.Removals)
	}
}

// TestKeysChange rotates the key and retires it: what runs goes on, the old key signs nothing
// new, and a return to a version of before needs no key.
func TestKeysChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v1, v2 := w.entry("web", "1", 1), w.entry("web", "2", 2)
	old := w.entry("web", "4", 4)
	w.expect("v1", w.obey(assign(v1)))
	w.expect("v2", w.obey(assign(v2)))
	former := w.co.KeySet
	w.co.Use(3, signtest.Signer(t, 5))
	w.expect("v2 of the former key, which runs", w.obey(assign(v2)))
	w.restart()
	w.expect("a return to what the former key signed", w.check(assign(rollback(v1))))
	w.expect("a new version by the former key", w.check(assign(old)), sign.UnknownKey)
	w.expect("the former key set", w.check(protocol.NodeDesired{KeySet: former}), sign.Stale)
	w.expect("a new version", w.obey(assign(w.entry("web", "3", 3))))
}

// TestKeysComeLater gives a node the root key that has adopted versions without a check: they go
// on, and the next one must be signed.
func TestKeysComeLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v1 := w.entry("web", "1", 1)
	v1.Signature = nil
	rec := plan.Record{Deployment: "web", Digest: v1.Digest, Spec: v1.Spec}
	w.records["web"] = rec.Installed()
	w.records["web"] = func() plan.Record { r := w.records["web"]; r.State = lifecycle.Installed; return r }()
	w.expect("what runs", w.obey(assign(v1)))
	v2 := w.entry("web", "2", 2)
	v2.Signature = nil
	w.expect("another version", w.check(assign(v2)), sign.Unsigned)
	w.expect("another version, signed", w.obey(assign(w.entry("web", "2", 2))))
}

// TestPolicyIsTheSigned checks that an LO does not change what the CO signed beside the version.
func TestPolicyIsTheSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.entry("web", "1", 1)
	a.MinHealthyMillis, a.Site = 99, at(77)
	v := w.obey(assign(a))
	if got := v.Obeyed.Assignments[0]; got.MinHealthyMillis != 7 || got.Site != at(1) {
		t.Errorf("obeyed is %+v", got)
	}
	unsigned := a
	unsigned.Signature = nil
	v = w.obey(assign(unsigned))
	w.expect("what runs goes on", v)
	if got := v.Obeyed.Assignments[0]; got.MinHealthyMillis != 7 || got.Site != at(1) {
		t.Errorf("what runs goes on as %+v", got)
	}
	w.obey(assign(w.entry("web", "2", 2)))
	v = w.obey(assign(rollback(a)))
	w.expect("a return", v)
	if got := v.Obeyed.Assignments[0]; got.MinHealthyMillis != 7 || got.Site != at(2) {
		t.Errorf("the return is %+v", got)
	}
}

// TestPurgeOfBefore holds a purge back until the deployment was deployed and removed once more: what
// it has written since is kept, and the purge is no refusal, as an honest LO hands it on as well.
func TestPurgeOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held := w.purge(protocol.Purge{Node: "n1", Deployment: "web", Position: at(3)})
	w.expect("deployed", w.obey(assign(w.entry("web", "1", 1))))
	w.expect("removed", w.obey(remove(w.tombstone("web", 2, false, "s1"))))
	purge := protocol.NodeDesired{Purges: []protocol.NodePurge{held}}
	if v := w.check(purge); len(v.Refused) > 0 || len(v.Obeyed.Purges) != 1 {
		t.Fatalf("in its time: %+v", v)
	}
	again := assign(w.entry("web", "1", 4))
	again.Purges = purge.Purges
	v := w.obey(again)
	if w.expect("deployed once more", v); len(v.Obeyed.Purges) > 0 {
		t.Errorf("with the deployment: %+v", v.Obeyed)
	}
	w.expect("removed once more", w.obey(remove(w.tombstone("web", 5, false, "s1"))))
	w.restart()
	v = w.check(purge)
	if w.expect("late", v); len(v.Obeyed.Purges) > 0 {
		t.Errorf("late: %+v", v.Obeyed)
	}
}

// TestFloorsAreBounded checks that a node forgets the lowest floors of very many deployments.
func TestFloorsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range maxFloors {
		w.state.Floors = append(w.state.Floors, Floor{Deployment: protocol.DeploymentName(fmt.Sprintf("d-%d", i)), Position: at(uint64(i + 1))})
	}
	w.restart()
	v := w.obey(assign(w.entry("web", "1", 9999)))
	if len(v.State.Floors) != maxFloors || slices.ContainsFunc(v.State.Floors, func(f Floor) bool { return f.Deployment == "d-0" }) ||
		!slices.ContainsFunc(v.State.Floors, func(f Floor) bool { return f.Deployment == "web" }) {
		t.Errorf("%d floors", len(v.State.Floors))
	}
}

// TestFloorsOfWhatIsHeldStay has thousands of deployments come and go beside one that runs, and one whose volume is retained: a tombstone of
// before is not obeyed of either.
func TestFloorsOfWhatIsHeldStay(t *testing.T) {
	t.Parallel()
	c, err := New(Node{Site: "s1", Node: "n1"}, nil, State{})
	if err != nil {
		t.Fatal(err)
	}
	records := map[protocol.DeploymentName]plan.Record{}
	see := func(d protocol.NodeDesired) Verdict {
		v := c.Check(&d, records)
		c.Adopt(v.State)
		return v
	}
	see(assign(protocol.Assignment{Deployment: "kept", Site: at(4)}, protocol.Assignment{Deployment: "runs", Site: at(4)}))
	records["runs"] = plan.Record{Deployment: "runs", State: lifecycle.Installed, Site: at(2)}
	see(remove(protocol.NodeRemoval{Deployment: "kept", Site: at(5)}))
	c.Retain([]plan.RetainedVolume{{Deployment: "kept", Name: "data", Site: at(5)}})
	var others []protocol.Assignment
	for i := range maxFloors + 10 {
		others = append(others, protocol.Assignment{Deployment: protocol.DeploymentName(fmt.Sprintf("d-%d", i)), Site: at(uint64(10 + i))})
	}
	v := see(assign(others...))
	if forgotten := func(f Floor) bool { return f.Deployment == "d-11" }; len(v.State.Floors) != maxFloors || slices.ContainsFunc(v.State.Floors, forgotten) {
		t.Errorf("%d floors, want %d, and the oldest of what is gone forgotten", len(v.State.Floors), maxFloors)
	}
	v = see(remove(protocol.NodeRemoval{Deployment: "kept", Site: at(3), Volumes: true}, protocol.NodeRemoval{Deployment: "runs", Site: at(3), Volumes: true}))
	if len(v.Obeyed.Removals) != 0 {
		t.Errorf("tombstones of before are obeyed: %+v", v.Obeyed.Removals)
	}
	c.Retain(nil) // it was purged
	if v = see(assign(protocol.Assignment{Deployment: "one-more", Site: at(99_999)})); slices.ContainsFunc(v.State.Floors, func(f Floor) bool { return f.Deployment == "kept" }) {
		t.Error("the floor of what is gone is not the first to be forgotten")
	}
}

// TestRemovalEndsTheReturn checks that a version from before a removal does not come back as a
// rollback of what was deployed since.
func TestRemovalEndsTheReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v1 := w.entry("web", "1", 1)
	w.expect("v1", w.obey(assign(v1)))
	w.expect("v2", w.obey(assign(w.entry("web", "2", 2))))
	w.expect("removed", w.obey(remove(w.tombstone("web", 3, false, "s1"))))
	w.expect("v3", w.obey(assign(w.entry("web", "3", 4))))
	w.expect("a return to v1", w.check(assign(rollback(v1))), sign.Stale)
}

// TestStrangersAreBounded assigns very many deployments without a signature, at once and with ever
// new names: few are on record, what is signed is obeyed, and a record that is not assigned any
// more makes room.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	signed := w.entry("web", "1", 1)
	strangers := func(from, n int) (d protocol.NodeDesired, reasons []sign.Reason) {
		for i := range n {
			a := w.entry(protocol.DeploymentName(fmt.Sprintf("s-%03d", from+i)), "1", 1)
			a.Signature = nil
			d.Assignments, reasons = append(d.Assignments, a), append(reasons, sign.Unsigned)
		}
		d.Assignments = append(d.Assignments, signed)
		return d, reasons
	}
	// act does with a verdict what the agent does.
	act := func(v Verdict) {
		for _, name := range slices.Sorted(maps.Keys(w.records)) {
			rec := w.records[name]
			if a, ok := plan.Next(&rec, plan.AssignmentFor(v.Obeyed, name)); ok && a.Kind == plan.Forget {
				delete(w.records, name)
			}
		}
		for _, a := range v.Obeyed.Assignments {
			if f, failed := v.Failed[a.Deployment]; failed {
				o := plan.AssignmentFor(v.Obeyed, a.Deployment)
				o.Refusal = &f
				next, _ := plan.Next(nil, o)
				w.records[a.Deployment] = next.Record
			}
		}
	}
	for round := range 3 {
		d, want := strangers(round*100, 100)
		for _, when := range []string{"first", "again"} {
			v := w.obey(d)
			w.expect(fmt.Sprintf("round %d, %s", round, when), v, want...)
			act(v)
			if got := len(w.records); got > maxStrangers+1 || w.records["web"].State != lifecycle.Installed {
				t.Errorf("round %d, %s: %d records, web is %q", round, when, got, w.records["web"].State)
			}
			if round == 0 && len(v.Failed) != maxStrangers {
				t.Errorf("%s: %d refusals are reported, want %d", when, len(v.Failed), maxStrangers)
			}
		}
		if _, ok := w.records[protocol.DeploymentName(fmt.Sprintf("s-%03d", round*100))]; !ok {
			t.Errorf("round %d: none of its refusals is on record", round)
		}
	}
	act(w.obey(assign(signed)))
	if len(w.records) != 1 {
		t.Errorf("%d records, once no stranger is assigned", len(w.records))
	}
}

// TestWithoutARootKey has a node that takes the LO's word: what it has followed of a deployment keeps what is there from a
// tombstone and a purge of before, also once the deployment is gone, over restarts, and until the node has a root key.
func TestWithoutARootKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	restart := func() {
		t.Helper()
		var err error
		if w.checker, err = New(Node{Site: "s1", Node: "n1"}, nil, w.state); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	tombstone := func(generation uint64, volumes bool) protocol.NodeRemoval {
		return protocol.NodeRemoval{Deployment: "web", Site: at(generation), Volumes: volumes}
	}
	purge := func(generation uint64) protocol.NodeDesired {
		return protocol.NodeDesired{Purges: []protocol.NodePurge{{Deployment: "web", Site: at(generation)}}}
	}
	assigned := func(generation uint64) protocol.Assignment {
		a := w.entry("web", "1", generation)
		a.Signature = nil
		return a
	}
	removed := func(what string, v Verdict, removals, purges int, refused string) {
		t.Helper()
		if len(v.Obeyed.Removals) != removals || len(v.Obeyed.Purges) != purges {
			t.Errorf("%s: obeyed are %d removals and %d purges, want %d and %d", what, len(v.Obeyed.Removals), len(v.Obeyed.Purges), removals, purges)
		}
		if got := fmt.Sprint(v.Refused); !strings.Contains(got, refused) || refused == "" && len(v.Refused) > 0 {
			t.Errorf("%s: refused is %s, want %q", what, got, refused)
		}
	}
	w.expect("assigned", w.obey(assign(assigned(1))))
	w.expect("again at a later position, with the same content", w.obey(assign(assigned(4))))
	removed("a tombstone of between, while it runs", w.obey(remove(tombstone(3, true))), 0, 0, "removal of web: stale")
	removed("the LO places it elsewhere", w.check(remove(protocol.NodeRemoval{Deployment: "web"})), 1, 0, "")
	removed("a tombstone of after that", w.obey(remove(tombstone(5, false))), 1, 0, "")
	rec := w.records["web"]
	rec.State = lifecycle.Deleted
	w.records["web"] = rec
	removed("a tombstone of before, just after the removal", w.obey(remove(tombstone(3, true))), 0, 0, "")
	delete(w.records, "web")
	restart()
	removed("a tombstone of before", w.obey(remove(tombstone(3, true))), 0, 0, "")
	removed("a purge of before", w.obey(purge(4)), 0, 0, "")
	removed("a purge of after", w.obey(purge(6)), 0, 1, "")
	removed("the tombstone with volumes now", w.obey(remove(tombstone(5, true))), 1, 0, "")
	w.expect("assigned by a CO whose database was restored", w.obey(assign(assigned(2))))
	restart()
	removed("a tombstone of before what runs was removed", w.obey(remove(tombstone(3, true))), 0, 0, "removal of web: stale")

	w.state, w.records["old"] = State{}, plan.Record{Deployment: "old", State: lifecycle.Installed, Site: at(9)}
	restart()
	removed("what runs since an earlier release", w.obey(remove(protocol.NodeRemoval{Deployment: "old", Site: at(8), Volumes: true})), 0, 0, "removal of old: stale")
	w.state = State{Site: "s1", Floors: []Floor{{Deployment: "web", Claimed: at(7)}}}
	delete(w.records, "old")
	w.restart()
	w.expect("assigned, once the node has a root key", w.obey(assign(w.entry("web", "1", 3))))
	w.expect("a signed tombstone of before what was claimed", w.check(remove(w.tombstone("web", 6, true, "s1"))), sign.Stale)
	w.expect("one of after it", w.check(remove(w.tombstone("web", 8, true, "s1"))))
	if f := w.state.Floors; len(f) != 1 || f[0].Position != at(3) || f[0].Claimed != at(7) {
		t.Errorf("remembered is %+v", f)
	}
	restart()
	w.expect("without the key again", w.obey(assign(assigned(9))))
	w.restart()
	w.expect("and with it", w.check(remove(w.tombstone("web", 2, true, "s1"))), sign.Stale)
}

// TestFloorsAreOfOneSite gives a node to another site, whose positions are its own.
func TestFloorsAreOfOneSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.expect("at the first site", w.obey(assign(w.entry("web", "1", 50))))
	w.expect("removed", w.obey(remove(w.tombstone("web", 51, false, "s1"))))
	if got := w.checker.Followed(); got != at(51) {
		t.Errorf("followed is %s, want 1.51", got)
	}
	var err error
	if w.checker, err = New(Node{Site: "s2", Node: "n1"}, w.co.Root(), w.state); err != nil {
		t.Fatal(err)
	}
	if got := w.checker.Followed(); !got.IsZero() {
		t.Errorf("of the second site %s is followed", got)
	}
	delete(w.records, "web")
	second := func(m *protocol.SiteDesired) { m.Site = "s2" }
	w.expect("at the second site", w.obey(assign(w.entry("web", "1", 3, second))))
	if w.state.Site != "s2" || w.checker.Followed() != at(3) {
		t.Errorf("remembered is %+v", w.state)
	}
}

// TestLOSigns has a node follow an LO that begins to sign: from then on it takes nothing that is not signed,
// over restarts, until it is given to another site.
func TestLOSigns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key, other := identitytest.Key(t), identitytest.Key(t)
	node := Node{Site: "s1", Node: "n1", Labels: map[string]string{"line": "3"}, LO: func(certificates [][]byte) (crypto.PublicKey, error) {
		if len(certificates) != 1 {
			return nil, errors.New("no certificate")
		}
		return key.Public(), nil
	}}
	restart := func() {
		t.Helper()
		var err error
		if w.checker, err = New(node, w.co.Root(), w.state); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	sent := func(by crypto.Signer, certificates ...[]byte) (protocol.NodeDesired, error) {
		t.Helper()
		d := assign(w.entry("web", "1", 1))
		d.Certificates = certificates
		if by != nil {
			if err := sign.Node(by, node.Site, &d); err != nil {
				t.Fatal(err)
			}
		}
		return d, w.checker.Sent(&d, protocol.Marshal(&d))
	}
	refused := func(what string, want sign.Reason, by crypto.Signer, certificates ...[]byte) {
		t.Helper()
		if _, err := sent(by, certificates...); sign.ReasonOf(err) != want {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	d, err := sent(nil)
	if err != nil {
		t.Fatalf("of an LO that never signed: %v", err)
	}
	w.expect("unsigned", w.obey(d))
	refused("by another key", sign.UnknownKey, other, []byte{1})
	refused("without certificates", sign.UnknownKey, key)
	if w.state.LOSigns {
		t.Error("a forged signature counts as one of the LO")
	}
	if d, err = sent(key, []byte{1}); err != nil {
		t.Fatalf("signed: %v", err)
	}
	w.expect("signed", w.obey(d))
	for _, when := range []string{"at once", "after a restart"} {
		refused("unsigned, "+when, sign.Unsigned, nil)
		restart()
	}
	node.LO = nil // it has no certificates any more, as in development mode
	restart()
	refused("without certificates of its own", "", nil)
	if d, err = sent(nil); err != nil {
		t.Fatal(err)
	}
	w.expect("unsigned, without certificates of its own", w.obey(d))
	node.LO = func([][]byte) (crypto.PublicKey, error) { return key.Public(), nil }
	restart()
	refused("unsigned, with certificates once more", sign.Unsigned, nil)
	node.Site = "s2"
	restart()
	refused("unsigned, at another site", "", nil)
}
