package keeper

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/keyfile"
)

// Key reads the key of checkpoints, and makes one where there is none. One that is damaged, or that others may read, is
// put aside together with the file of the checkpoints that it has signed, and another one made: the CO starts.
func Key(path, checkpoints string, log *slog.Logger) (ed25519.PrivateKey, error) {
	key, err := keyfile.Ensure(path)
	if err == nil {
		return key, nil
	}
	at := time.Now()
	for _, file := range []string{path, checkpoints} {
		if _, moved := atomicfile.PutAside(file, "unusable-key", at); moved != nil {
			return nil, errors.Join(err, moved)
		}
	}
	log.Error("the key of the audit's checkpoints cannot be used; it is put aside with its checkpoints, and there is a new one", "err", err, "key", path)
	return keyfile.Ensure(path)
}

// A Reader reads a file of checkpoints. Use NewReader. It may be used concurrently.
type Reader struct {
	file string
	key  ed25519.PublicKey

	mu   sync.Mutex // protects what follows
	read fs.FileInfo
	list []audit.Checkpoint
	bad  int
}

// NewReader returns a reader of the checkpoints in a file that key has signed.
func NewReader(file string, key ed25519.PrivateKey) *Reader {
	public, _ := key.Public().(ed25519.PublicKey) // by its documentation
	return &Reader{file: file, key: public}
}

// Checkpoints returns the checkpoints, and how many lines of the file are none, or were signed by another key. A file
// that has not changed is not read again.
func (r *Reader) Checkpoints() (list []audit.Checkpoint, bad int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		r.read, r.list, r.bad = nil, nil, 0
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the checkpoints of the audit: %w", err)
	}
	if r.read != nil && os.SameFile(r.read, info) && r.read.Size() == info.Size() && r.read.ModTime().Equal(info.ModTime()) {
		return r.list, r.bad, nil
	}
	b, err := disk.ReadFile(disk.OS, r.file)
	if err != nil {
		return nil, 0, fmt.Errorf("read the checkpoints of the audit: %w", err)
	}
	r.read = info
	r.list, r.bad = audit.ParseCheckpoints(b, r.key)
	return r.list, r.bad, nil
}
