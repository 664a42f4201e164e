// Package statefile keeps a piece of state in a file that never passes for
// something else. A header of fixed layout names the format and the release that
// reads it, and holds the length and a SHA-256 checksum, which also covers what the
// file is for (its role) and which one of these it is (its name). So a flipped bit,
// a zeroed block, a cut and a file of another identity are all noticed.
//
// A damaged file counts as not held: it is set aside under another name, for people
// to look at, and the caller receives a *Damage. It never stops a start. A
// file of a later format is no damage: it stays where it is, and *NewerError names
// the release that reads it.
package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
)

// The header, integers little-endian: magic 8, format 4, release that reads it 12
// (padded with zeros), length of the content 8, SHA-256 of these 32 bytes, the
// identity and the content 32. Its layout never changes, so that each release can
// tell a later format from damage.
const (
	magic       = "COLONYS1"
	releaseSize = 12
	sumAt       = 32
	headSize    = sumAt + sha256.Size

	format = 1
	// release is the first one that reads format.
	release = "0.1.0"

	filePerm = 0o600
)

// An Identity says what a file is. It is part of the checksum and not of the file.
type Identity struct {
	// Role is what the file is for, such as "lo/node".
	Role string
	// Name tells the files of one role apart, such as the id of the node.
	Name string
}

// String returns role and name, for people.
func (id Identity) String() string {
	if id.Name == "" {
		return id.Role
	}
	return id.Role + " " + id.Name
}

// A NewerError says that a file has a later format than this program reads. The
// file was not touched.
type NewerError struct {
	Path    string
	Format  uint32
	Release string // the first release that reads Format
}

// Error says what to do.
func (e *NewerError) Error() string {
	return fmt.Sprintf("%s has format %d: run Colony %s or later, which reads it; nothing was changed", e.Path, e.Format, e.Release)
}

// A Damage says that a file did not hold what was stored in it. It counts as not
// held.
type Damage struct {
	Identity
	Path string
	// Aside is the path that the file has now; empty where it could not be set aside.
	Aside string
	// Removed says that the file was removed: the tier that still has its content is asked again.
	Removed bool
	// Lost is how many records are missing, or more; 0 where that is not known, or the file as a
	// whole is one.
	Lost uint64
	// Kept says that nothing is missing: another file has it, or the frame alone was damaged.
	Kept bool
	Err  error // what was wrong
}

// Error names the file, what was wrong, and where it is now.
func (d *Damage) Error() string {
	kept := "could not be set aside"
	switch {
	case errors.Is(d.Err, fs.ErrNotExist):
		kept = "is not there"
	case d.Removed:
		kept = "was removed"
	case d.Aside != "":
		kept = "was set aside as " + d.Aside
	}
	lost := ""
	switch {
	case d.Kept:
		lost = ", nothing of it is lost"
	case d.Lost > 0:
		lost = fmt.Sprintf(", %d records are lost", d.Lost)
	}
	return fmt.Sprintf("%s in %s is damaged%s (%v); the file %s; check the disk", d.Identity, d.Path, lost, d.Err, kept)
}

// Unwrap returns the cause.
func (d *Damage) Unwrap() error { return d.Err }

// errPlain says that bytes have no header.
var errPlain = errors.New("no header")

// Seal returns content with its header.
func (id Identity) Seal(content []byte) []byte {
	return id.seal(content, format, release)
}

func (id Identity) seal(content []byte, format uint32, release string) []byte {
	b := make([]byte, headSize, headSize+len(content))
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], format)
	copy(b[12:12+releaseSize], release)
	binary.LittleEndian.PutUint64(b[24:], uint64(len(content)))
	copy(b[sumAt:], id.sum(b[:sumAt], content))
	return append(b, content...)
}

func (id Identity) sum(head, content []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{head, []byte(id.Role), []byte(id.Name), content} {
		// A hash never fails. The length keeps role and name apart.
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}

// Unseal returns the content of what Seal made for the same identity. plain says
// that b has no header at all, as files had none before release 0.1.0. A
// *NewerError, whose Path is empty, says that b has a later format; any other
// error, that b is damaged or something else.
func (id Identity) Unseal(b []byte) (content []byte, plain bool, err error) {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, true, errPlain
	}
	if len(b) < headSize {
		return nil, false, fmt.Errorf("%d bytes are less than a header", len(b))
	}
	content = b[headSize:]
	if n := binary.LittleEndian.Uint64(b[24:]); n != uint64(len(content)) {
		return nil, false, fmt.Errorf("it has %d bytes of %d", len(content), n)
	}
	if !bytes.Equal(id.sum(b[:sumAt], content), b[sumAt:headSize]) {
		return nil, false, errors.New("its checksum is wrong")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > format {
		return nil, false, &NewerError{Format: v, Release: string(bytes.TrimRight(b[12:12+releaseSize], "\x00"))}
	}
	return content, false, nil
}

// A File is a state file at a path. Save and Load of one File are not called
// concurrently.
type File struct {
	Identity
	Path string
	// Sealed says that a file without a header is damaged: for content of which any
	// bytes could be some.
	Sealed bool
	// Disk is where the file is; nil: the file system of the machine.
	Disk disk.FS
}

// Save replaces the file. When it returns nil, content is durable; a crash leaves
// the old content or the new.
func (f File) Save(content []byte) error {
	return atomicfile.Write(disk.Or(f.Disk), f.Path, f.Seal(content), filePerm)
}

// Remove removes the file durably. One that does not exist is removed already.
func (f File) Remove() error { return atomicfile.Remove(disk.Or(f.Disk), f.Path) }

// Load hands the content to decode, whose error says that it is not what the file
// should hold. found is false where there is no file.
//
// A *Damage says that the file does not hold what was stored: it is set aside. A
// *NewerError says that a later release wrote it: it is untouched. With any other
// error the file could not be read now. A file without a header, of before release
// 0.1.0, is read if decode accepts it, and gets its header.
func (f File) Load(decode func(content []byte) error) (found bool, err error) {
	b, err := disk.ReadFile(disk.Or(f.Disk), f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case disk.Unreadable(err):
		return false, f.damaged(err)
	case err != nil:
		return false, fmt.Errorf("read %s: %w", f.Identity, err)
	}
	content, plain, err := f.Unseal(b)
	if newer, ok := errors.AsType[*NewerError](err); ok {
		newer.Path = f.Path
		return false, newer
	}
	if plain = plain && !f.Sealed; plain {
		content, err = b, nil
	}
	if err == nil {
		err = decode(content)
	}
	if err != nil {
		return false, f.damaged(err)
	}
	if plain {
		// Where it fails, as on a full disk, the next Save does it.
		_ = f.Save(content)
	}
	return true, nil
}

// damaged sets the file aside.
func (f File) damaged(why error) *Damage {
	aside, err := SetAside(disk.Or(f.Disk), f.Path)
	return &Damage{Identity: f.Identity, Path: f.Path, Aside: aside, Err: errors.Join(why, err)}
}
