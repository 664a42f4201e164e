package ondisk

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Meta is the content of the meta file, under the header of a state file.
type Meta struct {
	Version int    `json:"version"` // of the format
	Epoch   string `json:"epoch"`   // 32 hexadecimal digits
	// Former, which files have for "previous", and Through are the epoch with whose numbers Epoch goes on, see protocol.PreviousEpoch. Absent: there is none.
	Former  string `json:"former,omitempty"`
	Through uint64 `json:"through,omitempty"`
}

const metaVersion = 1

// WriteEpoch replaces the meta file of the journal in dir, atomically and durably.
func WriteEpoch(fs Dir, dir, epoch string, previous protocol.PreviousEpoch) error {
	b, err := json.Marshal(Meta{Version: metaVersion, Epoch: epoch, Former: previous.Epoch, Through: previous.Through})
	if err != nil {
		return err
	}
	return replaceFile(fs, MetaName, identity(dir).Seal(b))
}

// replaceFile puts content in the place of name: a crash leaves the old or the new.
func replaceFile(fs Dir, name string, content []byte) error {
	tmp := name + TempExt
	f, err := fs.Open(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, name); err != nil {
		return err
	}
	return fs.SyncDir()
}

// identity is that of the meta file of the journal in dir.
func identity(dir string) statefile.Identity {
	return statefile.Identity{Role: role, Name: filepath.Base(dir)}
}

// ReadEpoch reads the epoch of the journal in dir, and the one with whose numbers it goes on. It fails with kind
// Unavailable where the journal must not be touched, and with kind NotFound where there is no usable epoch.
func ReadEpoch(fs Dir, dir string) (epoch string, previous protocol.PreviousEpoch, err error) {
	b, err := readSmall(fs, MetaName)
	if errors.Is(err, os.ErrNotExist) {
		return "", previous, protocol.Errorf(protocol.NotFound, "%s: %w", MetaName, err)
	} else if err != nil {
		return "", previous, protocol.Errorf(protocol.Unavailable, "%s: %w", MetaName, err)
	}
	content, _, err := identity(dir).Unseal(b)
	if newer, ok := errors.AsType[*statefile.NewerError](err); ok {
		newer.Path = filepath.Join(dir, MetaName)
		return "", previous, protocol.Errorf(protocol.Unavailable, "%w", newer)
	}
	if err != nil {
		return "", previous, protocol.Errorf(protocol.NotFound, "%s is damaged: %w", MetaName, err)
	}
	return parseMeta(content)
}

func parseMeta(b []byte) (epoch string, previous protocol.PreviousEpoch, err error) {
	var m Meta
	if err := json.Unmarshal(b, &m); err != nil {
		return "", previous, protocol.Errorf(protocol.NotFound, "%s: %w", MetaName, err)
	}
	if m.Version > metaVersion {
		return "", previous, protocol.Errorf(protocol.Unavailable, "%s: format %d, this program knows %d: run the newer version", MetaName, m.Version, metaVersion)
	}
	if raw, err := hex.DecodeString(m.Epoch); err != nil || len(raw) != 16 {
		return "", previous, protocol.Errorf(protocol.NotFound, "%s: epoch %q is not 32 hexadecimal digits", MetaName, m.Epoch)
	}
	return m.Epoch, protocol.PreviousEpoch{Epoch: m.Former, Through: m.Through}, nil
}

// readSmall returns the beginning of a file, which is all of one that is not damaged.
func readSmall(files Dir, name string) ([]byte, error) {
	f, err := files.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, sector))
	return b[:ReadAround(f, b, 0)], nil
}
