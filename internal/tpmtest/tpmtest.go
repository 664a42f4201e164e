// Package tpmtest starts swtpm, a TPM 2.0 in software (libtpms), for the tests of what keeps keys in one.
package tpmtest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
)

// A TPM is a TPM of one machine, which serves one connection at a time.
type TPM struct {
	*testproc.Process
	// Path is its Unix socket.
	Path  string
	t     testing.TB
	state string
}

// Start starts a TPM, and waits until it answers. It ends with the test.
func Start(t testing.TB) *TPM {
	t.Helper()
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Fatal("swtpm is not installed: run scripts/setup --with-test-peers as root")
	}
	dir, err := os.MkdirTemp("", "tpm") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &TPM{Process: testproc.New(t, "swtpm", filepath.Join(t.TempDir(), "log")), Path: filepath.Join(dir, "tpm"), t: t, state: filepath.Join(dir, "state")}
	if err := os.Mkdir(p.state, 0o700); err != nil {
		t.Fatal(err)
	}
	p.Again()
	t.Cleanup(p.Kill)
	return p
}

// Again starts it after it was killed, as a machine that is switched on, and waits until it answers.
func (p *TPM) Again() {
	p.t.Helper()
	p.Start("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+p.state, "--server", "type=unixio,path="+p.Path, "--flags", "not-need-init,startup-clear")
	testpart.Eventually(p.t, "swtpm answers", func() bool {
		c, err := net.Dial("unix", p.Path)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	})
}

// Replace turns it into another TPM, which is also the state after it was cleared. It must have
// been killed.
func (p *TPM) Replace() {
	p.t.Helper()
	if err := os.RemoveAll(p.state); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Mkdir(p.state, 0o700); err != nil {
		p.t.Fatal(err)
	}
}
