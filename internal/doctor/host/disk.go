// Package host has the checks of a machine that all tiers share: disk, clock,
// permissions, ports, kernel, and whether others can be reached.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/internal/doctor"
)

const (
	// leastFree is how many bytes must be free for a tier to work at all.
	leastFree = 64 << 20
	// slowFlush is from when on a flush of the disk holds up what is acknowledged.
	slowFlush = 250 * time.Millisecond
)

// Disk checks a directory of state: that it can be written, that a flush works, and that
// need bytes more fit, which is what the tier's bounds allow it to store there.
func Disk(dir string, need int64) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		at, err := existing(dir)
		if err != nil {
			return []doctor.Finding{doctor.Failf("make the directory, or correct stateDir in the configuration", "%s: %v", dir, err)}
		}
		return []doctor.Finding{writable(dir, at), free(at, need), inodes(at)}
	}
}

// existing returns dir, or the nearest directory above it that exists.
func existing(dir string) (string, error) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		st, err := os.Stat(at)
		switch {
		case err == nil && st.IsDir():
			return at, nil
		case err == nil:
			return "", fmt.Errorf("%s is no directory", at)
		case !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at):
			return "", err
		}
	}
}

// writable writes and flushes a file in at and removes it.
func writable(dir, at string) doctor.Finding {
	f, err := os.CreateTemp(at, ".tmp-doctor-*")
	if err != nil {
		return doctor.Failf(remedy(err), "%s cannot be written: %v", at, err)
	}
	began := time.Now()
	_, err = f.Write(make([]byte, 4096))
	if err == nil {
		err = f.Sync()
	}
	took := time.Since(began)
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return doctor.Failf(remedy(err), "%s: what is written does not reach the disk: %v", at, err)
	}
	switch {
	case took > slowFlush:
		return doctor.Warnf("use a faster disk, or find who else writes to it: each acknowledgement waits for a flush", "%s: a flush takes %s", at, took.Round(time.Millisecond))
	case at != filepath.Clean(dir):
		return doctor.Okf("%s does not exist yet; %s is writable, a flush takes %s", dir, at, took.Round(time.Microsecond))
	}
	return doctor.Okf("%s is writable, a flush takes %s", at, took.Round(time.Microsecond))
}

// remedy says what to do where a file cannot be written.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "free some space, or, where the line about inodes says so, remove files"
	case errors.Is(err, unix.EDQUOT):
		return "free some space, or raise the quota of the user that Colony runs as"
	case errors.Is(err, unix.EROFS):
		return "mount it writable; where the kernel made it read-only after an error (see dmesg), check the file system with fsck first, and the disk"
	case errors.Is(err, fs.ErrPermission):
		return "give the user that Colony runs as the right to write there"
	}
	return "look at the kernel's messages (dmesg): the disk may have failed"
}

func free(at string, need int64) doctor.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return doctor.Failf("look at the file system", "%s: free space cannot be asked for: %v", at, err)
	}
	return judgeFree(at, int64(st.Bavail)*int64(st.Bsize), int64(st.Blocks)*int64(st.Bsize), need)
}

func judgeFree(at string, have, total, need int64) doctor.Finding {
	text := fmt.Sprintf("%s: %s of %s are free", at, Bytes(have), Bytes(total))
	switch {
	case have < leastFree:
		return doctor.Failf("free some space", "%s, at least %s are needed", text, Bytes(leastFree))
	case have < need:
		return doctor.Warnf("give it a larger disk, or lower the bounds in the configuration", "%s, what the configuration allows needs %s more", text, Bytes(need))
	}
	return doctor.Okf("%s", text)
}

func inodes(at string) doctor.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return doctor.Failf("look at the file system", "%s: free inodes cannot be asked for: %v", at, err)
	}
	if st.Files > 0 && st.Ffree < 1000 { // some file systems have no fixed number
		return doctor.Failf("remove small files that are not needed, or make the file system anew with more inodes", "%s: %d inodes are free, each file needs one", at, st.Ffree)
	}
	return doctor.Okf("%s: inodes are free", at)
}

// Bytes returns a number of bytes with a binary unit.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// skipped are directories below which others than Colony write, or very much is stored.
var skipped = []string{"volumes", "blobs", "uploads", "snapshots", "containerd"}

// Damaged looks for files of state that were set aside because they did not hold what was
// stored in them.
func Damaged(dir string) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		var found []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() && slices.Contains(skipped, d.Name()):
				return filepath.SkipDir
			case !d.IsDir() && strings.Contains(d.Name(), ".damaged-"):
				found = append(found, strings.TrimPrefix(path, dir+"/"))
			}
			return nil
		})
		switch {
		case err != nil:
			return []doctor.Finding{doctor.Failf("run it as the user that Colony runs as, or as root", "%s cannot be read: %v", dir, err)}
		case len(found) == 0:
			return []doctor.Finding{doctor.Okf("%s: no damaged state was set aside", dir)}
		}
		shown := strings.Join(found[:min(len(found), 3)], ", ")
		if len(found) > 3 {
			shown += " …"
		}
		return []doctor.Finding{doctor.Warnf("check the disk (smartctl, dmesg); the content came back from its owner, or is counted as lost: remove the files when you have looked at them",
			"%s: %d damaged files were set aside: %s", dir, len(found), shown)}
	}
}

// Size returns how many bytes the files below a directory have, as far as they can be read
// before ctx ends.
func Size(ctx context.Context, dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil {
			return nil // what cannot be read is not counted
		}
		if st, err := d.Info(); err == nil && st.Mode().IsRegular() {
			bytes += st.Size()
		}
		return nil
	})
	return bytes
}
