package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/protocol"
)

// uploads is the folder of the uploads, each a file by its id.
const uploads = "uploads"

func (d *Dir) upload(id string) string { return d.Path(uploads + "/" + id) }

// Begin implements storage.Uploads.
func (d *Dir) Begin(id string) error {
	f, err := os.OpenFile(d.upload(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("begin upload: %w", err)
	}
	return f.Close()
}

// Uploaded implements storage.Uploads.
func (d *Dir) Uploaded(id string) (int64, error) {
	info, err := os.Stat(d.upload(id))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// claim makes a request the only one that writes to an upload.
func (d *Dir) claim(id string) (release func(), err error) {
	leave, err := d.writers.Enter(id)
	if err != nil {
		return nil, err
	}
	alone, err := filelock.Try(d.upload(id)) // of another program
	if errors.Is(err, filelock.ErrHeld) {
		err = storage.ErrBusy
	}
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		_ = alone.Close() // the file may be a blob now
		leave()
	}, nil
}

// Append implements storage.Uploads. A part that was cut off is taken back, so that the
// client's count and ours agree.
func (d *Dir) Append(_ context.Context, id string, body io.Reader, room func(before int64) (int64, error)) (int64, error) {
	release, err := d.claim(id)
	if err != nil {
		return 0, err
	}
	defer release()
	f, err := disk.OpenFile(d.upload(id), os.O_WRONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("open upload: %w", err)
	}
	defer f.Close() //nolint:errcheck // flushed when the upload is sealed
	before, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("open upload: %w", err)
	}
	most, err := room(before)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, io.LimitReader(body, most+1))
	if err != nil {
		return 0, errors.Join(fmt.Errorf("write upload: %w", err), f.Truncate(before))
	}
	if n > most {
		return 0, errors.Join(storage.ErrTooLarge, f.Truncate(before))
	}
	return before + n, nil
}

// Drop implements storage.Uploads.
func (d *Dir) Drop(id string) error { return os.Remove(d.upload(id)) }

// Unfinished implements storage.Uploads.
func (d *Dir) Unfinished() ([]storage.Info, error) {
	list, err := d.List(uploads)
	d.writers.Mark(list)
	return list, err
}

// A sealed is an upload whose file has no other writer.
type sealed struct {
	dir     *Dir
	id      string
	path    string
	release func()
}

// Seal implements storage.Uploads.
func (d *Dir) Seal(_ context.Context, id string, want protocol.Digest, path string) (storage.Sealed, error) {
	release, err := d.claim(id)
	if err != nil {
		return nil, err
	}
	if err := check(d.upload(id), want); err != nil {
		release()
		return nil, err
	}
	return &sealed{d, id, path, release}, nil
}

// check compares the digest of an upload, and flushes it.
func check(path string, want protocol.Digest) error {
	f, err := disk.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open upload: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was flushed
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("read upload: %w", err)
	}
	if got := protocol.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != want {
		return &storage.MismatchError{Got: got, Want: want}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush upload: %w", err)
	}
	return nil
}

// Place implements storage.Sealed.
func (s *sealed) Place() error {
	to := s.dir.Path(s.path)
	if err := os.Rename(s.dir.upload(s.id), to); err != nil {
		return fmt.Errorf("name blob: %w", err)
	}
	return disk.OS.SyncDir(filepath.Dir(to))
}

// Close implements storage.Sealed.
func (s *sealed) Close() error {
	s.release()
	return nil
}
