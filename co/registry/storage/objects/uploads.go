package objects

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/protocol"
)

// An object cannot grow, so an upload is several:
//
//	uploads/<id>/begun                            empty
//	uploads/<id>/data/<name>                      what one request brought
//	uploads/<id>/parts/<offset>-<size>-<name>     empty: it is of the upload, from this offset on
//
// The last is written under the lock, where the upload still ends at the offset: of two
// requests that add to the same place, one is refused.
const uploads = "uploads"

func uploadDir(id string) string { return path.Join(uploads, id) }

// A part is what one request brought.
type part struct {
	offset, size int64
	name         string
}

func (p part) file(id string) string {
	return path.Join(uploadDir(id), "parts", fmt.Sprintf("%020d-%d-%s", p.offset, p.size, p.name))
}

func dataFile(id, name string) string { return path.Join(uploadDir(id), "data", name) }

// Begin implements storage.Uploads.
func (b *Bucket) Begin(id string) error { return b.Write(path.Join(uploadDir(id), "begun"), nil) }

// parts returns what an upload has, in order, and its size.
func (b *Bucket) parts(id string) (list []part, size int64, err error) {
	var there bool
	prefix := b.key(uploadDir(id)) + "/"
	err = b.each(prefix, true, func(o minio.ObjectInfo) {
		there = true
		name, ok := strings.CutPrefix(o.Key, prefix+"parts/")
		if !ok {
			return
		}
		var p part
		if n, err := fmt.Sscanf(strings.ReplaceAll(name, "-", " "), "%d %d %s", &p.offset, &p.size, &p.name); n == 3 && err == nil && p.offset == size {
			list, size = append(list, p), size+p.size // S3 lists in the order of the keys
		}
	})
	if err == nil && !there {
		err = fmt.Errorf("upload %s: %w", id, fs.ErrNotExist)
	}
	return list, size, err
}

// Uploaded implements storage.Uploads.
func (b *Bucket) Uploaded(id string) (int64, error) {
	_, size, err := b.parts(id)
	return size, err
}

// Append implements storage.Uploads.
func (b *Bucket) Append(ctx context.Context, id string, body io.Reader, room func(before int64) (int64, error)) (int64, error) {
	leave, err := b.writers.Enter(id)
	if err != nil {
		return 0, err
	}
	defer leave()
	_, before, err := b.parts(id)
	if err != nil {
		return 0, err
	}
	most, err := room(before)
	if err != nil {
		return 0, err
	}
	p := part{offset: before, name: strings.ToLower(rand.Text())}
	file := dataFile(id, p.name)
	if p.size, err = b.put(ctx, file, io.LimitReader(body, most+1)); err == nil && p.size > most {
		err = errors.Join(storage.ErrTooLarge, b.delete(file))
	}
	if err != nil || p.size == 0 {
		return before, err
	}
	if err := b.join(id, p); err != nil {
		return 0, errors.Join(err, b.delete(file))
	}
	return before + p.size, nil
}

// join makes a part one of its upload, unless another request was faster.
func (b *Bucket) join(id string, p part) error {
	if err := b.Lock(); err != nil {
		return err
	}
	defer b.Unlock()
	_, size, err := b.parts(id)
	if err != nil {
		return err
	}
	if size != p.offset {
		return storage.ErrBusy
	}
	return b.Write(p.file(id), nil)
}

// put stores what a reader has, and returns its size: without a byte, nothing. Where the reader fails,
// there is no object. What fits into one part is one call.
func (b *Bucket) put(ctx context.Context, file string, r io.Reader) (int64, error) {
	select {
	case b.puts <- struct{}{}:
		defer func() { <-b.puts }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	var first bytes.Buffer
	n, err := io.Copy(&first, io.LimitReader(r, partSize))
	if err != nil {
		return 0, fmt.Errorf("read upload: %w", err)
	}
	if n < partSize {
		if n == 0 {
			return 0, nil
		}
		_, err := b.client.PutObject(ctx, b.where.Bucket, b.key(file), &first, n, minio.PutObjectOptions{})
		return n, b.where.explain(err)
	}
	info, err := b.client.PutObject(ctx, b.where.Bucket, b.key(file), io.MultiReader(&first, r), -1, minio.PutObjectOptions{PartSize: partSize, NumThreads: 1})
	return info.Size, b.where.explain(err)
}

// Drop implements storage.Uploads. What says that it is there goes first, and the data last.
func (b *Bucket) Drop(id string) error {
	var keys []string
	if err := b.each(b.key(uploadDir(id))+"/", true, func(o minio.ObjectInfo) { keys = append(keys, o.Key) }); err != nil {
		return err
	}
	if len(keys) == 0 {
		return fmt.Errorf("upload %s: %w", id, fs.ErrNotExist)
	}
	var errs []error
	for _, key := range keys {
		errs = append(errs, b.call(func(ctx context.Context) error {
			return b.client.RemoveObject(ctx, b.where.Bucket, key, minio.RemoveObjectOptions{})
		}))
	}
	return errors.Join(errs...)
}

// Unfinished implements storage.Uploads.
func (b *Bucket) Unfinished() ([]storage.Info, error) {
	prefix := b.key(uploads) + "/"
	var list []storage.Info
	err := b.each(prefix, true, func(o minio.ObjectInfo) {
		id, _, _ := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		if len(list) == 0 || list[len(list)-1].Name != id {
			list = append(list, storage.Info{Name: id})
		}
		u := &list[len(list)-1]
		if u.Size += o.Size; o.LastModified.After(u.Used) {
			u.Used = o.LastModified
		}
	})
	b.writers.Mark(list)
	return list, err
}

// A sealed is an upload whose bytes are in the place of a blob already.
type sealed struct {
	bucket *Bucket
	id     string
	path   string
	placed bool
	leave  func()
}

// Seal implements storage.Uploads. The bytes are read once more to be checked, and put in
// the place of the blob meanwhile: with another digest than the one that is wanted, no object is made.
func (b *Bucket) Seal(ctx context.Context, id string, want protocol.Digest, file string) (_ storage.Sealed, err error) {
	leave, err := b.writers.Enter(id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	list, size, err := b.parts(id)
	if err != nil {
		return nil, err
	}
	r := &checked{from: &joined{ctx: ctx, bucket: b, id: id, parts: list}, sum: sha256.New(), want: want}
	defer r.from.close()
	n, err := b.put(ctx, file, r)
	if mismatch, ok := errors.AsType[*storage.MismatchError](err); ok {
		return nil, mismatch
	}
	if err == nil && n != size {
		err = fmt.Errorf("upload %s has %d bytes, and %d were stored", id, size, n)
	}
	if err == nil && size == 0 {
		err = b.Write(file, nil) // put stores nothing
	}
	if err != nil {
		return nil, err
	}
	return &sealed{bucket: b, id: id, path: file, leave: leave}, nil
}

// Place implements storage.Sealed: the object is there, unless a garbage collection removed it as
// unreferenced.
func (s *sealed) Place() error {
	_, err := s.bucket.stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return storage.ErrRemoved
	}
	s.placed = err == nil
	return err
}

// Close implements storage.Sealed. It removes the upload where there is a blob instead.
func (s *sealed) Close() error {
	defer s.leave()
	if !s.placed {
		return nil
	}
	return s.bucket.Drop(s.id)
}

// checked reads, and fails at the end where the digest is another one.
type checked struct {
	from *joined
	sum  hash.Hash
	want protocol.Digest
}

// Read implements io.Reader.
func (r *checked) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.sum.Write(p[:n])
	if err == io.EOF { //nolint:errorlint // as readers return it
		if got := protocol.Digest("sha256:" + hex.EncodeToString(r.sum.Sum(nil))); got != r.want {
			return n, &storage.MismatchError{Got: got, Want: r.want}
		}
	}
	return n, err
}

// joined reads the parts of an upload one after the other.
type joined struct {
	ctx    context.Context //nolint:containedctx // of the request that reads
	bucket *Bucket
	id     string
	parts  []part
	open   io.ReadCloser
}

// Read implements io.Reader.
func (r *joined) Read(p []byte) (int, error) {
	for {
		if r.open == nil {
			if len(r.parts) == 0 {
				return 0, io.EOF
			}
			f, err := r.bucket.Open(r.ctx, dataFile(r.id, r.parts[0].name))
			if err != nil {
				return 0, err
			}
			r.open, r.parts = f, r.parts[1:]
		}
		n, err := r.open.Read(p)
		if err == io.EOF { //nolint:errorlint // as readers return it
			r.close()
			err = nil
		}
		if n > 0 || err != nil {
			return n, r.bucket.where.explain(err)
		}
	}
}

func (r *joined) close() {
	if r.open != nil {
		_ = r.open.Close() // read only
		r.open = nil
	}
}
