// Package idfile keeps the id of each container in the directory that has its other files, so that
// these are known when containerd has no record of the container any more.
package idfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Name is the name of the file in the directory of a container.
const Name = "id.json"

// fileIn is the file of a container, by its key, in the directory of all.
func fileIn(dir, key string) statefile.File {
	return statefile.File{Identity: statefile.Identity{Role: "en/container", Name: key}, Path: filepath.Join(dir, key, Name)}
}

// Save stores the id of a container, by its key, in the directory of all. All may run at the same time.
func Save(dir, key string, id engine.ID) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	f := fileIn(dir, key)
	if have, err := disk.ReadFile(disk.OS, f.Path); err == nil && bytes.Equal(have, f.Seal(b)) {
		return nil
	}
	return f.Save(b)
}

// All returns the ids in the directory of all by the keys of the containers, and what is damaged, which is set
// aside. An error says what could not be read now; the others are returned all the same. Agents before 0.3.0
// wrote an id without a header: it counts where keyOf, which has a hash of it, makes the name of its directory.
func All(dir string, keyOf func(engine.ID) string) (ids map[string]engine.ID, damaged []*statefile.Damage, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", Name))
	if err != nil {
		return nil, nil, err
	}
	ids = map[string]engine.ID{}
	var errs []error
	for _, path := range paths {
		key := filepath.Base(filepath.Dir(path))
		var id engine.ID
		found, err := fileIn(dir, key).Load(func(content []byte) error {
			err := json.Unmarshal(content, &id)
			if err == nil && keyOf(id) != key {
				err = fmt.Errorf("it names %s", id)
			}
			return err
		})
		if damage, ok := errors.AsType[*statefile.Damage](err); ok {
			damaged = append(damaged, damage)
		} else if err != nil {
			errs = append(errs, err)
		} else if found { // else it was removed meanwhile
			ids[key] = id
		}
	}
	return ids, damaged, errors.Join(errs...)
}
