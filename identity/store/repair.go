package store

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Repair sets aside the damaged files of a key and its certificates, and of the floor of the clock, and
// returns them: they count as absent from then on, and the machine enrols anew. Certificates are set aside
// with their key, without which they are useless; an intact key stays, so that the machine is known by it. If
// an LO's own key is missing, the authority of its site is set aside, too: when a machine is replaced, both
// are revoked. The root cannot be made anew, and stays as it is.
func (s *Store) Repair(name string) (found []*statefile.Damage) {
	if name == Root {
		return nil
	}
	floor, err := s.floor(), error(nil)
	if _, why := s.readFloor(); why != nil && !errors.Is(why, fs.ErrNotExist) {
		_, err = floor.Load(func(content []byte) error {
			_, err := parseFloor(content)
			return err
		})
	}
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		found = append(found, d)
	}
	_, keyErr := s.readKey(name)
	_, err = s.Load(name)
	missing := errors.Is(keyErr, fs.ErrNotExist)
	switch damaged, ok := errors.AsType[*damagedError](err); {
	case errors.Is(err, identity.ErrOtherKey): // two files of other places
		found = append(found, s.setAside(name+".crt", err), s.setAside(name+".key", err))
	case ok && damaged.path == s.path(name+".crt"):
		found = append(found, s.setAside(name+".crt", err))
	case err != nil && !errors.Is(err, fs.ErrNotExist) && (missing || IsDamaged(keyErr)):
		found = append(found, s.setAside(name+".crt", fmt.Errorf("its key is missing or damaged: %w", keyErr)))
	}
	if IsDamaged(keyErr) {
		found = append(found, s.setAside(name+".key", keyErr))
	}
	if _, err := s.readKey(name); name == Machine && errors.Is(err, fs.ErrNotExist) {
		for _, file := range []string{Issuer + ".crt", Issuer + ".key"} {
			if _, err := s.disk.Stat(s.path(file)); err == nil {
				found = append(found, s.setAside(file, errors.New("the key of the machine is missing, with which this authority is revoked")))
			}
		}
	}
	return found
}

// IsDamaged reports whether an error of a Store says that a file is not what was stored.
func IsDamaged(err error) bool {
	_, ok := errors.AsType[*damagedError](err)
	return ok
}

// setAside gives a file of a key or of certificates another name.
func (s *Store) setAside(file string, why error) *statefile.Damage {
	aside, err := statefile.SetAside(s.disk, s.path(file))
	return &statefile.Damage{Identity: statefile.Identity{Role: "identity/files", Name: file}, Path: s.path(file), Aside: aside, Err: errors.Join(why, err)}
}
