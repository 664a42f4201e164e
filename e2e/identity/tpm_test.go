package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/tpmtest"
)

// TestTPM has an LO and a node with their keys in TPMs: they enrol, connect and sign by them, over restarts. A node whose TPM
// is away goes on without a certificate, and has the one that it had once the TPM is back; one whose TPM was cleared
// enrols anew.
func TestTPM(t *testing.T) {
	t.Parallel()
	f, o := prepare(t, pgtest.New(t))
	f.startCO(o)
	ofLO, ofNode := tpmtest.Start(t), tpmtest.Start(t)
	f.site = f.certifiedLO()
	f.site.Identity.Key = "tpm:" + ofLO.Path
	f.startLO(f.site)
	f.write(f.site.Identity.TokenFile, f.token("join-tokens", map[string]any{}))
	node := f.certifiedEN("g1", f.token("node-tokens", map[string]any{}))
	node.Identity.Key = "tpm:" + ofNode.Path
	stop := f.startEN(node)
	f.eventually("the node is online at the CO", f.known("g1"))
	f.followsSigned(node, stop)
	keyFile := filepath.Join(store.Dir(node.StateDir), "machine.key")
	for _, file := range []string{keyFile, filepath.Join(store.Dir(f.site.StateDir), "machine.key"), filepath.Join(store.Dir(f.site.StateDir), "issuer.key")} {
		raw, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(raw, []byte("-----BEGIN TSS2 PRIVATE KEY-----\n")) || bytes.Contains(raw, []byte("BEGIN PRIVATE KEY")) {
			t.Errorf("%s is no key of a TPM: %v\n%s", file, err, raw)
		}
	}
	if err := os.Remove(node.Identity.TokenFile); err != nil {
		t.Fatal(err)
	}
	before, err := store.At(nil, store.Dir(node.StateDir)).KeyName(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	f.stopLO()
	f.startLO(f.site) // its certificate and its key are those of before
	node.LO.MQTT, node.LO.Enrol = []string{"tls://" + f.lo.MachineAddr()}, []string{f.lo.EnrolAddr()}

	ofNode.Kill()
	stop = f.startEN(node)
	ofNode.Again()
	f.eventually("the node is online once its TPM is back", f.online("g1"))
	stop()
	if key, err := store.At(nil, store.Dir(node.StateDir)).KeyName(store.Machine); err != nil || key != before {
		t.Errorf("the key is %s, %v; before %s", key, err, before)
	}

	ofNode.Kill()
	ofNode.Replace()
	ofNode.Again()
	module := tpm.New(ofNode.Path)
	if _, err := store.At(nil, store.Dir(node.StateDir)).In(module).Load(store.Machine); !errors.Is(err, tpm.ErrForeign) || !store.IsDamaged(err) {
		t.Errorf("a key of the TPM that was cleared: %v", err)
	}
	if err := module.Close(); err != nil {
		t.Error(err)
	}
	f.write(node.Identity.TokenFile, f.token("node-tokens", map[string]any{"replace": true}))
	f.startEN(node)
	f.eventually("the node is online with another key", f.online("g1"))
	if key, err := store.At(nil, store.Dir(node.StateDir)).KeyName(store.Machine); err != nil || key == before {
		t.Errorf("the key is %s, %v, as before the TPM was cleared", key, err)
	}
	if aside, err := filepath.Glob(keyFile + ".damaged-*"); err != nil || len(aside) != 1 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
}
