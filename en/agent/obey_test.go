package agent

import (
	"bytes"
	"crypto"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

// A signedNode is a node that checks, and the CO that signs.
type signedNode struct {
	*node
	co *signtest.CO
}

func newSignedNode(t *testing.T) *signedNode {
	t.Helper()
	n := &signedNode{newNode(t, memory.Options{}), signtest.New(t, 1)}
	n.root = n.co.Root()
	return n
}

// signed returns an assignment with the CO's statement, of a position.
func (n *signedNode) signed(a protocol.Assignment, generation uint64) protocol.Assignment {
	n.t.Helper()
	at := protocol.Position{Epoch: 1, Generation: generation}
	m := n.co.Attached(protocol.SiteDesired{V: 1, Site: "s1", Position: at, Deployments: []protocol.SiteEntry{{Deployment: a.Deployment, Digest: a.Digest, Position: at}}})
	a.Signature, a.Site = m.Deployments[0].Signature, at
	return a
}

func (n *signedNode) tombstone(generation uint64, volumes bool) protocol.NodeRemoval {
	n.t.Helper()
	at := protocol.Position{Epoch: 1, Generation: generation}
	m := n.co.Attached(protocol.SiteDesired{V: 1, Site: "s1", Position: at, Removals: []protocol.Removal{{Deployment: "app", Position: at, Volumes: volumes}}})
	return protocol.NodeRemoval{Deployment: "app", Site: at, Volumes: volumes, Signature: m.Removals[0].Signature}
}

// desire sends a desired state with the key set.
func (n *signedNode) desire(d protocol.NodeDesired) {
	n.t.Helper()
	n.gen++
	d.V, d.Node, d.Position, d.KeySet = 1, "n1", protocol.Position{Epoch: 1, Generation: n.gen}, n.co.KeySet
	if err := n.runner.Accept(n.t.Context(), protocol.Marshal(d)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *signedNode) assign(list ...protocol.Assignment) {
	n.desire(protocol.NodeDesired{Assignments: list})
}

// TestForgedDesiredState gives a running agent what the CO did not sign: the version that runs goes on
// in its container, the refusal is reported with its code, over restarts as well, and what the CO
// signs next is obeyed.
func TestForgedDesiredState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		v0, v1, v2 := n.signed(version("0", 1, web()), 1), n.signed(version("1", 1, web()), 2), n.signed(version("2", 1, web()), 5)
		n.assign(v1)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
		evil := v2
		evil.Spec = version("evil", 1, web()).Spec
		evil.Digest = protocol.DigestOf(evil.Spec)
		unsigned := version("own", 1, web())
		for name, forged := range map[string]struct {
			d      protocol.NodeDesired
			reason sign.Reason
			failed protocol.Digest
		}{
			"own version":      {protocol.NodeDesired{Assignments: []protocol.Assignment{unsigned}}, sign.Unsigned, unsigned.Digest},
			"altered version":  {protocol.NodeDesired{Assignments: []protocol.Assignment{evil}}, sign.Mismatch, evil.Digest},
			"old version":      {protocol.NodeDesired{Assignments: []protocol.Assignment{v0}}, sign.Stale, v0.Digest},
			"own removal":      {protocol.NodeDesired{Removals: []protocol.NodeRemoval{{Deployment: "app", Volumes: true, Site: protocol.Position{Epoch: 1, Generation: 9}}}}, sign.Unsigned, ""},
			"own move":         {protocol.NodeDesired{Removals: []protocol.NodeRemoval{{Deployment: "app"}}}, sign.Unsigned, ""},
			"move of all":      {protocol.NodeDesired{Removals: []protocol.NodeRemoval{{Deployment: "app", Signature: v1.Signature}}}, sign.WrongNode, ""},
			"removal once had": {protocol.NodeDesired{Removals: []protocol.NodeRemoval{n.tombstone(1, true)}}, sign.Stale, ""},
		} {
			before := n.runner.Refused()[forged.reason]
			n.desire(forged.d)
			state := lifecycle.Installed
			if forged.failed != "" {
				state = lifecycle.Failed
			}
			for _, when := range []string{"at once", "after a restart"} {
				rec := n.eventually("app", state)
				if forged.failed != "" && (rec.Code != protocol.SignatureInvalid || !strings.HasPrefix(rec.Message, string(forged.reason)+": ") || rec.Digest != forged.failed) {
					t.Errorf("%s, %s: record %s %s %q", name, when, rec.Digest.Short(), rec.Code, rec.Message)
				}
				n.wantContainers(running("web", v1))
				if got := n.runner.Refused()[forged.reason]; got != before+1 {
					t.Errorf("%s, %s: %d refusals counted, want %d", name, when, got, before+1)
				}
				if p := n.runner.Problem(); !strings.Contains(p, string(forged.reason)+": ") {
					t.Errorf("%s, %s: the problem of the node is %q", name, when, p)
				}
				n.stop()
				before = 0
				n.start()
			}
			n.assign(v1) // as an honest LO does
			n.eventually("app", lifecycle.Installed)
			n.wantContainers(running("web", v1))
			if p := n.runner.Problem(); p != "" {
				t.Errorf("%s: afterwards the problem of the node is %q", name, p)
			}
		}
		if !slices.Contains(n.lo.transitions(), "UPDATING>FAILED signature_invalid") {
			t.Errorf("reported: %q", n.lo.transitions())
		}
		n.assign(v2)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		n.desire(protocol.NodeDesired{Removals: []protocol.NodeRemoval{n.tombstone(6, false)}})
		n.eventually("app", lifecycle.Deleted)
		n.wantContainers()
		n.assign(v2)
		if rec := n.eventually("app", lifecycle.Failed); !strings.HasPrefix(rec.Message, "stale: ") {
			t.Errorf("replayed after the removal: %q", rec.Message)
		}
		n.wantContainers()
		n.stop()
	})
}

// TestSignaturesComeLater refuses a version without a signature, and obeys the same desired state
// once it comes with signatures.
func TestSignaturesComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		defer n.stop()
		v1 := n.signed(version("1", 1, web()), 1)
		bare := v1
		bare.Signature = nil
		n.assign(bare)
		n.eventually("app", lifecycle.Failed)
		n.wantContainers()
		n.gen-- // the same position
		again := v1
		n.assign(again)
		if p := n.runner.Problem(); p != "" {
			t.Errorf("with signatures: %s", p)
		}
		again.Attempt++
		n.assign(again)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
	})
}

// TestKeySetAtTheSamePosition gives a node a key set without the key that was stolen, at the
// position that it holds: what that key signs is refused from then on, also after a restart. Bytes
// of which more is refused take no place of others.
func TestKeySetAtTheSamePosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		v1, stolen := n.signed(version("1", 1, web()), 1), n.signed(version("2", 1, web()), 2)
		n.assign(v1)
		n.eventually("app", lifecycle.Installed)
		former := n.co.KeySet
		n.co.Use(2, signtest.Signer(t, 5))
		renewed := n.signed(version("1", 1, web()), 1)
		n.gen--
		n.assign(renewed)
		good := n.runner.raw

		n.gen--
		garbage := renewed
		garbage.Signature = []byte("garbage")
		keys := n.co.KeySet
		n.co.KeySet = []byte("garbage")
		n.assign(garbage)
		n.co.KeySet = keys
		if !bytes.Equal(n.runner.raw, good) || n.runner.Problem() != "" {
			t.Errorf("garbage took the place of the desired state; the problem is %q", n.runner.Problem())
		}
		n.stop()
		n.start()
		defer n.stop()
		if p := n.runner.Problem(); p != "" {
			t.Errorf("after a restart the problem is %q", p)
		}
		n.co.KeySet = former // as the owner of the stolen key sends it
		n.assign(stolen)
		if rec := n.eventually("app", lifecycle.Failed); !strings.HasPrefix(rec.Message, string(sign.UnknownKey)+": ") {
			t.Errorf("signed with the retired key: %s %q", rec.State, rec.Message)
		}
		n.wantContainers(running("web", v1))
	})
}

// TestAdoptedGoesOn restarts a node whose keys were replaced, and one that was given its keys
// after it had adopted a version: what runs goes on, with its container.
func TestAdoptedGoesOn(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"signed with keys of before": true, "not signed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newSignedNode(t)
				v1 := version("1", 1, web())
				if first {
					v1 = n.signed(v1, 1)
				} else {
					n.root = nil
				}
				n.start()
				n.assign(v1)
				n.eventually("app", lifecycle.Installed)
				n.stop()
				n.co = signtest.New(t, 9)
				n.root = n.co.Root()
				n.start()
				defer n.stop()
				n.eventually("app", lifecycle.Installed)
				n.wantContainers(running("web", v1))
				n.assign(n.signed(version("2", 1, web()), 2))
				n.eventually("app", lifecycle.Installed)
			})
		})
	}
}

// TestForgedPurge keeps the volumes of a removed deployment from purges, and from tombstones with
// volumes, that the CO did not sign.
func TestForgedPurge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		o := n.options()
		o.VolumeRetention = 48 * time.Hour
		n.startWith(o)
		defer n.stop()
		n.assign(n.signed(version("1", 1, withVolumes("a")), 1))
		n.eventually("app", lifecycle.Installed)
		n.desire(protocol.NodeDesired{Removals: []protocol.NodeRemoval{n.tombstone(2, false)}})
		n.removed()
		n.wantVolumes("removed", []string{"a"}, []string{"a"})
		withVolumes := n.tombstone(2, false)
		withVolumes.Volumes = true
		for _, forged := range []protocol.NodeDesired{
			{Purges: []protocol.NodePurge{{Deployment: "app", Site: protocol.Position{Epoch: 1, Generation: 9}}}},
			{Removals: []protocol.NodeRemoval{withVolumes}},
		} {
			n.desire(forged)
			<-time.After(time.Hour)
			n.wantVolumes("forged", []string{"a"}, []string{"a"})
		}
		at := protocol.Position{Epoch: 1, Generation: 3}
		m := n.co.Attached(protocol.SiteDesired{V: 1, Site: "s1", Position: at, Purges: []protocol.Purge{{Node: "n1", Deployment: "app", Position: at}}})
		n.desire(protocol.NodeDesired{Purges: []protocol.NodePurge{{Deployment: "app", Site: at, Signature: m.Purges[0].Signature}}})
		<-time.After(time.Hour)
		n.wantVolumes("purged", nil, nil)
	})
}

// TestFollowedIsReported checks that the LO learns of the position of a deployment that is gone: an
// LO and CO that were restored from before it are raised above it.
func TestFollowedIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		n.assign(n.signed(version("1", 1, web()), 40))
		n.eventually("app", lifecycle.Installed)
		n.desire(protocol.NodeDesired{Removals: []protocol.NodeRemoval{n.tombstone(41, false)}})
		n.removed()
		n.desire(protocol.NodeDesired{})
		n.stop()
		n.start()
		defer n.stop()
		n.runner.ReportAgain()
		synctest.Wait()
		n.lo.mu.Lock()
		defer n.lo.mu.Unlock()
		if last := n.lo.whole[len(n.lo.whole)-1]; last.Held.Site != (protocol.Position{Epoch: 1, Generation: 41}) {
			t.Errorf("reported is that %+v is held", last.Held)
		}
	})
}

// TestForgedByBroker gives an agent what a broker between it and its LO can make of what both signed: other choices
// of the LO within what the CO signed. It is refused as a whole, counted, a problem of the node, and what runs goes on.
func TestForgedByBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		key, thief := identitytest.Key(t), identitytest.Key(t)
		n.loKey = func([][]byte) (crypto.PublicKey, error) { return key.Public(), nil }
		n.start()
		var sent []byte // last
		send := func(by crypto.Signer, change func(*protocol.NodeDesired), list ...protocol.Assignment) error {
			n.gen++
			d := protocol.NodeDesired{V: 1, Node: "n1", Position: protocol.Position{Epoch: 1, Generation: n.gen}, KeySet: n.co.KeySet, Assignments: list}
			d.Content = d.ContentDigest()
			if by != nil {
				if err := sign.Node(by, "s1", &d); err != nil {
					t.Fatal(err)
				}
			}
			if change != nil {
				change(&d)
			}
			sent = protocol.Marshal(&d)
			return n.runner.Accept(t.Context(), sent)
		}
		v1, v2 := n.signed(version("1", 1, web()), 1), n.signed(version("2", 1, web()), 2)
		if err := send(nil, nil, v1); err != nil { // an LO of the release before
			t.Fatal(err)
		}
		n.eventually("app", lifecycle.Installed)
		n.gen--
		if err := send(key, nil, v1); err != nil { // the same, once it signs
			t.Fatal(err)
		}
		genuine := sent
		again := v1
		again.Attempt = 7
		back := v1
		back.Rollback = true
		for name, forged := range map[string]struct {
			by     crypto.Signer
			change func(*protocol.NodeDesired)
			what   []protocol.Assignment
			want   sign.Reason
		}{
			"unsigned":              {nil, nil, []protocol.Assignment{v2}, sign.Unsigned},
			"by a key of its own":   {thief, nil, []protocol.Assignment{v2}, sign.UnknownKey},
			"the attempt once more": {key, func(d *protocol.NodeDesired) { d.Assignments = []protocol.Assignment{again} }, []protocol.Assignment{v1}, sign.Mismatch},
			"a rollback":            {key, func(d *protocol.NodeDesired) { d.Assignments = []protocol.Assignment{back} }, []protocol.Assignment{v2}, sign.Mismatch},
			"a version left out":    {key, func(d *protocol.NodeDesired) { d.Assignments = nil }, []protocol.Assignment{v2}, sign.Mismatch},
			"a later position":      {key, func(d *protocol.NodeDesired) { d.Position.Epoch = 99 }, []protocol.Assignment{v1}, sign.Mismatch},
			"a move of everything": {key, func(d *protocol.NodeDesired) {
				d.Assignments, d.Removals = nil, []protocol.NodeRemoval{{Deployment: "app", Signature: v1.Signature}}
			}, []protocol.Assignment{v1}, sign.Mismatch},
		} {
			before := n.runner.Refused()[forged.want]
			if err := send(forged.by, forged.change, forged.what...); sign.ReasonOf(err) != forged.want || protocol.KindOf(err) != protocol.Invalid {
				t.Errorf("%s: %v, want %s", name, err, forged.want)
			}
			if p := n.runner.Problem(); !strings.Contains(p, "refused as a whole") || !strings.Contains(p, string(forged.want)+": ") {
				t.Errorf("%s: the problem of the node is %q", name, p)
			}
			if got := n.runner.Refused()[forged.want]; got != before+1 {
				t.Errorf("%s: %d refusals counted, want %d", name, got, before+1)
			}
			synctest.Wait()
			n.wantContainers(running("web", v1))
			n.stop()
			n.start() // what is on disk is what the LO had signed
			n.eventually("app", lifecycle.Installed)
			n.wantContainers(running("web", v1))
			if p := n.runner.Problem(); p != "" {
				t.Errorf("%s: after a restart the problem of the node is %q", name, p)
			}
		}
		if err := send(key, nil, v2); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		if err := n.runner.Accept(t.Context(), genuine); err != nil { // it is genuine, and too late
			t.Errorf("played back: %v", err)
		}
		synctest.Wait()
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v2))
		n.stop()
	})
}

// TestReturnAfterTheRecordIsLost loses the record of a deployment that went back to its former version: the node follows that version, which
// it had running, although the CO has signed a later one since.
func TestReturnAfterTheRecordIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		v1, v2 := n.signed(version("1", 1, web()), 1), n.signed(version("2", 1, web()), 2)
		n.assign(v1)
		n.eventually("app", lifecycle.Installed)
		<-time.After(time.Hour)
		n.assign(v2)
		n.eventually("app", lifecycle.Installed)
		back := v1
		back.Rollback, back.Attempt = true, 2
		n.assign(back)
		n.eventually("app", lifecycle.Installed)
		n.loseRecord()
		defer n.stop()
		removed := n.engine.Calls(memory.Remove)
		n.assign(back)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
		if got := n.engine.Calls(memory.Remove); got != removed {
			t.Errorf("%d containers removed, want none", got-removed)
		}
	})
}

// TestRefusedWithoutARecord loses the record of a deployment that runs, and is assigned a version that the CO has not signed: it is refused, and
// what runs stays.
func TestRefusedWithoutARecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newSignedNode(t)
		n.start()
		v1 := n.signed(version("1", 1, web()), 1)
		n.assign(v1)
		n.eventually("app", lifecycle.Installed)
		n.loseRecord()
		defer n.stop()
		n.assign(version("2", 1, web()))
		if rec := n.eventually("app", lifecycle.Failed); rec.Code != protocol.SignatureInvalid {
			t.Errorf("failed with %s, want %s", rec.Code, protocol.SignatureInvalid)
		}
		<-time.After(time.Hour)
		n.wantContainers(running("web", v1))
		n.assign(v1)
		n.eventually("app", lifecycle.Installed)
		n.wantContainers(running("web", v1))
	})
}

// loseRecord starts the agent without what it had on record of the deployment.
func (n *node) loseRecord() {
	n.t.Helper()
	n.stop()
	if err := os.Remove(filepath.Join(n.dir, "deployments/app.cbor")); err != nil {
		n.t.Fatal(err)
	}
	n.start()
}
