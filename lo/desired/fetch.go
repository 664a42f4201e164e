package desired

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/dictionary"
)

// silence is how long a download may bring nothing before it is given up.
const silence = 30 * time.Second

// HTTP returns a Fetch that gets the content with a digest from base + digest, and keeps what has arrived in the directory dir of a
// disk. A broken download resumes at once where it was cut off (RFC 9110, section 14), as long as each try brings data; otherwise the
// next call resumes there, also in another run. So even a link that is up only for short times brings everything in the end. Content
// that was fetched whole is not fetched again until the Store removes it.
//
// If the Want has similar content, the Fetch asks the CO for the difference (RFC 9842). After a difference that breaks, or does not
// give the desired content, it tries the whole content first: what arrives of that is kept, so that a link that is too short-lived for
// the difference brings the whole in the end.
func HTTP(client *http.Client, base *url.URL, d disk.FS, dir string) Fetch {
	f := fetcher{disk: d, client: client, base: base, dir: dir}
	return f.fetch
}

type fetcher struct {
	disk   disk.FS
	client *http.Client
	base   *url.URL
	dir    string
}

func (f fetcher) fetch(ctx context.Context, w Want) ([]byte, error) {
	digest, size := w.Digest, w.Size
	if size > protocol.MaxMessage {
		return nil, protocol.Errorf(protocol.Invalid, "what has the digest %s has %d bytes: the limit is %d", digest.Short(), size, protocol.MaxMessage)
	}
	if err := f.disk.MkdirAll(f.dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create directory of downloads: %w", err)
	}
	path := filepath.Join(f.dir, strings.TrimPrefix(string(digest), "sha256:"))
	for first, old := true, false; ; first = false {
		b, err := disk.ReadFile(f.disk, path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read download: %w", err)
		}
		old = old || first && len(b) > 0
		if uint64(len(b)) >= size {
			err := digest.Verify(b)
			if err == nil {
				return b, nil
			}
			if err := f.disk.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("remove download: %w", err)
			}
			if !old {
				return b, nil // the caller finds that it is wrong
			}
			b, old = nil, false // a power cut can have damaged what an earlier run stored
		}
		if len(b) > 0 {
			w.Like = nil // the rest of what is here, and not a difference
		}
		got, err := f.more(ctx, path, w, int64(len(b)))
		instead := w.Like != nil && errors.Is(err, errDifference) // now the whole
		w.Like = nil
		if err != nil && (got == 0 && !instead || ctx.Err() != nil) {
			return nil, err
		}
	}
}

// errDifference says that a difference was sent and is of no use.
var errDifference = errors.New("difference to what is here")

// more adds to a download what one request brings, and returns how much that is.
func (f fetcher) more(ctx context.Context, path string, w Want, have int64) (got int64, err error) {
	digest, size := w.Digest, int64(w.Size)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing arrived for %s", silence)) })
	defer watch.Stop()
	target := f.base.JoinPath(string(digest)).String()
	away := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return protocol.Errorf(protocol.Unavailable, "get %s: %d of %d bytes are here: %w", target, have+got, size, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Accept-Encoding", "identity") // a part of something compressed is no part of it
	if w.Like != nil {
		dictionary.Offer(req.Header, protocol.DigestOf(w.Like))
	}
	if have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
		req.Header.Set("If-Range", `"`+string(digest)+`"`)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return 0, away(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		have = 0
	case resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)):
	default:
		return 0, protocol.Errorf(protocol.Unavailable, "get %s: the central orchestrator answered %s", target, resp.Status)
	}
	body, rest := io.Reader(heard{resp.Body, watch}), size-have
	if resp.Header.Get("Content-Encoding") == dictionary.Coding {
		whole, err := made(body, w)
		if err != nil {
			return 0, away(err)
		}
		body = bytes.NewReader(whole)
	}
	file, err := statefile.Open(f.disk, path, os.O_CREATE|os.O_RDWR, filePerm)
	if err != nil {
		return 0, fmt.Errorf("store download: %w", err)
	}
	if err = file.Truncate(have); err == nil {
		// One byte more than was announced, so that more is noticed.
		got, err = io.Copy(io.NewOffsetWriter(file, have), io.LimitReader(body, rest+1))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return got, away(err)
	}
	if have+got != size {
		return 0, errors.Join(away(fmt.Errorf("got %d bytes, %d were announced", have+got, size)), f.disk.Remove(path))
	}
	return got, nil
}

// made returns what is wanted, from the difference that a body is.
func made(body io.Reader, w Want) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(body, int64(w.Size)+1)) // one that is larger is of no use
	if err == nil {
		b, err = dictionary.Decode(b, w.Like, w.Size)
	}
	if err == nil {
		err = w.Digest.Verify(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDifference, err)
	}
	return b, nil
}

// heard puts off the end of a download with each part that arrives.
type heard struct {
	io.Reader
	watch *time.Timer
}

// Read implements io.Reader.
func (h heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.watch.Reset(silence)
	}
	return n, err
}
