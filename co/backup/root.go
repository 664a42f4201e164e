package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/identity"
)

// rootFile is the root of the fleet's certificates with its key, as colony ca export writes it.
const rootFile = "fleet-root.pem"

// A RootStore keeps the root of the fleet's certificates; package identity/store has one.
type RootStore interface {
	// OpenRoot returns the root; fs.ErrNotExist where there is none.
	OpenRoot() (*identity.Authority, error)
	// ExportRoot returns it with its key as PEM, and ImportRoot stores that.
	ExportRoot() ([]byte, error)
	ImportRoot(raw []byte) (*identity.Authority, error)
}

// fingerprintOf names the root of a store; "" where there is none.
func fingerprintOf(s RootStore) (string, error) {
	if s == nil {
		return "", nil
	}
	a, err := s.OpenRoot()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return identity.KeyName(a.Root()), nil
}

// saveRoot writes the root into dir, unless it is to be left out, and says in m which it is.
func saveRoot(s Source, dir string, m *Manifest) error {
	var err error
	if m.RootFingerprint, err = fingerprintOf(s.Root); err != nil || m.RootFingerprint == "" || s.NoRoot {
		return err
	}
	raw, err := s.Root.ExportRoot()
	if err != nil {
		return err
	}
	m.Root = true
	return writeFile(filepath.Join(dir, rootFile), raw)
}

// checkRoot makes sure, before anything is changed, that the CO will have the root of the backup's
// fleet: another one, or a new one, would lock out all its machines. existed says that it is there.
func checkRoot(s Source, m Manifest) (existed bool, err error) {
	if m.RootFingerprint == "" {
		return false, nil
	}
	if s.Root == nil {
		return false, errors.New("restore: the backup is of a fleet whose machines have certificates, and there is no place for its root")
	}
	here, err := fingerprintOf(s.Root)
	switch {
	case err != nil:
		return false, fmt.Errorf("restore: the root of the fleet's certificates: %w", err)
	case here == m.RootFingerprint:
		return true, nil
	case here != "":
		return false, fmt.Errorf("restore: this machine has another root of a fleet (%.16s) than the backup is of (%.16s), and would lock out all machines: if this one is not needed, remove root.key and root.crt from identity in %s", here, m.RootFingerprint, s.StateDir)
	case !m.Root:
		return false, fmt.Errorf("restore: the backup was made without the root of the fleet's certificates (%.16s), and this machine does not have it: bring it first with colony ca import --config %s FILE; a new root would lock out all machines", m.RootFingerprint, s.Config)
	}
	return false, nil
}

// restoreRoot stores the root of a backup that has one.
func restoreRoot(s Source, dir string, m Manifest) error {
	if !m.Root {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(dir, rootFile))
	if err == nil {
		_, err = s.Root.ImportRoot(raw)
	}
	return wrap("restore the root of the fleet's certificates", err)
}
