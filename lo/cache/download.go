package cache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// silence is how long a registry may send nothing in the middle of an answer.
	silence = 30 * time.Second
	// patience is how long a download that has begun waits for its registry to come
	// back. The node that waits for it reports that it pulls, and spends no attempt.
	patience = 24 * time.Hour
	// The waits between two tries double up to longestPause. A link that is never up for
	// that long may be missed.
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
)

// A download is one fetch of one blob, for all clients that wait for it.
type download struct {
	digest protocol.Digest
	from   source
	done   chan struct{}
	err    error     // valid after done
	sum    hash.Hash // of what has arrived; of the goroutine that downloads

	mu    sync.Mutex       // protects what follows
	size  int64            // of the blob; 0: not known yet
	have  int64            // bytes in the partial file
	grown notify.Broadcast // it has changed
}

func newDownload(d protocol.Digest, from source) *download {
	return &download{digest: d, from: from, done: make(chan struct{}), sum: sha256.New()}
}

// set changes the download and notifies the waiting goroutines.
func (dl *download) set(change func()) {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	change()
	dl.grown.Notify()
}

func (dl *download) expect(size int64) { dl.set(func() { dl.size = max(0, size) }) }

func (dl *download) progress() int64 {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	return dl.have
}

// begun reports whether the registry is known to have the blob.
func (dl *download) begun() bool {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	return dl.size > 0
}

// resume reads what an earlier download left in the partial file.
func (dl *download) resume(f disk.File) error {
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("read partial blob: %w", err)
	}
	n, err := io.Copy(dl.sum, io.NewSectionReader(f, 0, size))
	if err != nil {
		return fmt.Errorf("read partial blob: %w", err)
	}
	dl.set(func() { dl.have = n })
	return nil
}

// restart begins anew.
func (dl *download) restart(f disk.File) error {
	dl.sum.Reset()
	dl.set(func() { dl.have = 0 })
	return f.Truncate(0)
}

// missing is how many bytes are still to come, as far as that is known.
func (dl *download) missing() int64 {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	return max(dl.size-dl.have, 0)
}

// roomEvery is after how many bytes a download makes sure again that there is room: its
// size may not be known, and others write too.
const roomEvery = 8 << 20

// writer stores what arrives.
func (c *Cache) writer(dl *download, f disk.File) io.Writer { return &arrival{c: c, dl: dl, f: f} }

type arrival struct {
	c       *Cache
	dl      *download
	f       disk.File
	written int64 // since there was room
}

// Write implements io.Writer. What the file took counts, also of a write that
// failed, so that the sum is always that of the file.
func (a *arrival) Write(p []byte) (int, error) {
	if a.written += int64(len(p)); a.written >= roomEvery {
		a.written = 0
		if err := a.c.room(a.dl.missing()); err != nil {
			return 0, err
		}
	}
	n, err := a.f.WriteAt(p, a.dl.progress())
	_, _ = a.dl.sum.Write(p[:n]) // a hash never fails
	a.dl.set(func() { a.dl.have += int64(n) })
	return n, err
}

// open waits until it is known how large the blob is, and that some of it is there.
// It returns 0 where the download has ended before that.
func (dl *download) open(ctx context.Context) (size int64, err error) {
	for {
		dl.mu.Lock()
		size, have, grown := dl.size, dl.have, dl.grown.C()
		dl.mu.Unlock()
		if size > 0 && have > 0 {
			return size, nil
		}
		select {
		case <-dl.done:
			return 0, dl.err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-grown:
		}
	}
}

// await waits until there is something to read at an offset, and returns up to
// where: not the last byte, as long as the whole was not checked.
func (dl *download) await(ctx context.Context, at int64) (end int64, err error) {
	for {
		dl.mu.Lock()
		size, have, grown := dl.size, dl.have, dl.grown.C()
		dl.mu.Unlock()
		if end = min(have, size-1); at < end {
			return end, nil
		}
		select {
		case <-dl.done:
			return size, dl.err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-grown:
		}
	}
}

// A follower reads a blob while it arrives.
type follower struct {
	ctx  context.Context //nolint:containedctx // of the request that is answered with it
	dl   *download
	f    disk.File // the partial file, which keeps its content under its later name
	size int64
	at   int64
}

// Read implements io.Reader. It waits for what is not there yet.
func (r *follower) Read(p []byte) (int, error) {
	if r.at >= r.size {
		return 0, io.EOF
	}
	end, err := r.dl.await(r.ctx, r.at)
	if err != nil {
		return 0, err
	}
	n, err := r.f.ReadAt(p[:min(int64(len(p)), end-r.at)], r.at)
	r.at += int64(n)
	if n > 0 {
		return n, nil
	}
	return 0, errors.Join(io.ErrUnexpectedEOF, err)
}

// Seek implements io.Seeker.
func (r *follower) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	r.at = offset
	return offset, nil
}

// watchedReader postpones the time-out of a try with each part that arrives.
type watchedReader struct {
	io.Reader
	watch *time.Timer
}

// Read implements io.Reader.
func (h watchedReader) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.watch.Reset(silence)
	}
	return n, err
}

// totalOf returns the size of the whole from a Content-Range (RFC 9110, section
// 14.4) that begins at from, or 0 if it begins elsewhere or does not name the size.
func totalOf(header string, from int64) int64 {
	rest, ok := strings.CutPrefix(header, fmt.Sprintf("bytes %d-", from))
	_, total, slash := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(total, 10, 64)
	if !ok || !slash || err != nil {
		return 0
	}
	return n
}
