// Package storage says what a registry needs of the place where it keeps its content: files
// that are small, blobs, uploads under way, and locks between the programs that share it.
// It has plain files (package files) and object storage (package objects).
package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

var (
	// ErrBusy is of an upload to which another request writes.
	ErrBusy = errors.New("another request writes to this upload")
	// ErrTooLarge is of an upload that is larger than it may be.
	ErrTooLarge = errors.New("the upload is too large")
	// ErrRemoved is of a blob that was removed before it had its name: it is sealed again.
	ErrRemoved = errors.New("the blob was removed meanwhile")
	// ErrHeld is of a lock that another program has.
	ErrHeld = errors.New("another program has the lock")
)

// A MismatchError is of an upload whose digest is not the one that was named.
type MismatchError struct{ Got, Want protocol.Digest }

// Error names both digests.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("the upload has digest %s, not %s", e.Got, e.Want)
}

// An Info is what is known of a file, a folder or an upload.
type Info struct {
	Name   string // the last part of its path, or the id of an upload
	Folder bool   // it is a folder
	Size   int64  // in bytes
	// Used is when it was last written or touched, by the clock of the storage. Of a list it
	// may be earlier than that.
	Used time.Time
	Busy bool // of an upload: a request of this program writes to it
}

// Files keeps contents under paths with slashes. What a method has confirmed outlives a
// crash. A path that there is not is an error that is fs.ErrNotExist; a storage that does not
// answer, or refuses to, one of kind Unavailable that says what to do. The methods may be
// called concurrently, and each ends in a time that the implementation bounds.
type Files interface {
	// Read returns a small file.
	Read(path string) ([]byte, error)
	// Open returns a file to be read from any position, until ctx ends.
	Open(ctx context.Context, path string) (io.ReadSeekCloser, error)
	// Write makes a file have a content: readers see the one before or this one.
	Write(path string, content []byte) error
	// Remove removes a file.
	Remove(path string) error
	// Stat describes a file.
	Stat(path string) (Info, error)
	// Touch makes a file as young as one that is written now.
	Touch(path string) error
	// List describes what is in a folder, sorted by name. One that there is not is empty.
	List(folder string) ([]Info, error)
}

// Uploads keeps blobs under way. An upload is found by any program that shares the storage.
type Uploads interface {
	// Begin begins an upload under an id that is new.
	Begin(id string) error
	// Uploaded returns how many bytes an upload has.
	Uploaded(id string) (int64, error)
	// Append adds what body has to an upload and returns its new size. Append first asks room, with
	// the size before, how many bytes more are allowed. If room or body fails, the upload stays as
	// it was; the errors ErrTooLarge and ErrBusy mean that, too.
	Append(ctx context.Context, id string, body io.Reader, room func(before int64) (int64, error)) (int64, error)
	// Seal checks the digest of an upload, which must not be written to until the Sealed is closed.
	Seal(ctx context.Context, id string, want protocol.Digest, path string) (Sealed, error)
	// Drop removes an upload.
	Drop(id string) error
	// Unfinished describes all uploads.
	Unfinished() ([]Info, error)
}

// A Sealed is an upload whose digest is known.
type Sealed interface {
	// Place puts it at the path that Seal got. The caller holds the lock. ErrRemoved asks for another Seal.
	Place() error
	// Close ends it, placed or not.
	Close() error
}

// Locks is a lock for many readers or one writer among all users of a storage, and one that a
// single program has at a time.
type Locks interface {
	// RLock locks for reading; it waits for a writer.
	RLock() error
	// RUnlock ends RLock.
	RUnlock()
	Lock() error
	// Unlock ends the lock of the one writer.
	Unlock()
	// Held fails where what Lock got may be another's by now. It is asked right before a removal.
	Held() error
	// Alone gets the other lock until it is closed, or fails with ErrHeld.
	Alone() (io.Closer, error)
}

// A Storage is all of it.
type Storage interface {
	Files
	Uploads
	Locks
}
