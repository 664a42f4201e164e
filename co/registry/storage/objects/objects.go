// Package objects keeps the content of a registry in a bucket of object storage that speaks
// the protocol of Amazon S3. Several programs may share it: what they must not do at the same
// time they do under a lock that Options names, as the protocol has none.
package objects

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/internal/filelock"
)

const (
	// callTimeout bounds each call but those that carry a blob.
	callTimeout = 30 * time.Second
	// smallest is the most that Read returns: a manifest has 4 MiB.
	smallest = 8 << 20
	// partSize is how much of a blob is in memory at a time, and putsAtOnce how many blobs.
	partSize   = 16 << 20
	putsAtOnce = 8
)

// A Lock is what programs that share a bucket have between them, such as one of their database.
type Lock interface {
	filelock.Between
	// Try gets the lock at once, or reports that another program has it.
	Try() (bool, error)
	// Held fails where another program may have got the lock meanwhile.
	Held() error
}

// A Bucket is a bucket that holds a registry.
type Bucket struct {
	*filelock.RW
	client   *minio.Client
	conns    *http.Transport
	where    Location
	lock     Lock
	cleaning Lock
	writers  storage.Writers
	puts     chan struct{} // holds a token for each blob that is being put
}

var _ storage.Storage = (*Bucket)(nil)

// Open returns the registry in a bucket. It makes no call. lock guards the content, and cleaning
// the garbage collection.
func Open(at Location, lock, cleaning Lock) (*Bucket, error) {
	client, conns, err := at.client()
	if err != nil {
		return nil, err
	}
	return &Bucket{
		RW: filelock.NewRW(lock), client: client, conns: conns, where: at, lock: lock, cleaning: cleaning, puts: make(chan struct{}, putsAtOnce),
	}, nil
}

// Close ends its connections and those of its locks, when it is not used any more.
func (b *Bucket) Close() error {
	b.conns.CloseIdleConnections()
	return errors.Join(b.RW.Close(), b.cleaning.Close())
}

// Held implements storage.Locks.
func (b *Bucket) Held() error { return b.lock.Held() }

// Alone implements storage.Locks.
func (b *Bucket) Alone() (io.Closer, error) {
	got, err := b.cleaning.Try()
	if err != nil {
		return nil, err
	}
	if !got {
		return nil, storage.ErrHeld
	}
	return alone{b.cleaning}, nil
}

type alone struct{ lock Lock }

// Close gives the lock back.
func (a alone) Close() error {
	a.lock.Release()
	return nil
}

// key is the key of a file.
func (b *Bucket) key(file string) string { return path.Join(b.where.Prefix, file) }

// call runs one call within its time.
func (b *Bucket) call(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return b.where.explain(do(ctx))
}

// Read implements storage.Files.
func (b *Bucket) Read(file string) (content []byte, err error) {
	err = b.call(func(ctx context.Context) error {
		o, err := b.client.GetObject(ctx, b.where.Bucket, b.key(file), minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer o.Close() //nolint:errcheck // read only
		content, err = io.ReadAll(io.LimitReader(o, smallest+1))
		if err == nil && len(content) > smallest {
			err = fmt.Errorf("object %s has more than %d bytes", b.key(file), smallest)
		}
		return err
	})
	return content, err
}

// Open implements storage.Files. Nothing is read ahead of what the caller asks for but one request's buffers.
func (b *Bucket) Open(ctx context.Context, file string) (io.ReadSeekCloser, error) {
	o, err := b.client.GetObject(ctx, b.where.Bucket, b.key(file), minio.GetObjectOptions{})
	if err == nil {
		if _, err = o.Stat(); err == nil {
			return o, nil
		}
		_ = o.Close() // nothing was read
	}
	return nil, b.where.explain(err)
}

// Write implements storage.Files.
func (b *Bucket) Write(file string, content []byte) error {
	return b.call(func(ctx context.Context) error {
		_, err := b.client.PutObject(ctx, b.where.Bucket, b.key(file), bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
		return err
	})
}

// Remove implements storage.Files. A delete of what there is not succeeds in S3, so that it is
// looked for first.
func (b *Bucket) Remove(file string) error {
	info, err := b.stat(file)
	if err != nil {
		return err
	}
	if err := b.delete(file); err != nil || info.Size == 0 {
		return err
	}
	return b.delete(mark(file))
}

func (b *Bucket) delete(file string) error {
	return b.call(func(ctx context.Context) error {
		return b.client.RemoveObject(ctx, b.where.Bucket, b.key(file), minio.RemoveObjectOptions{})
	})
}

// stat describes an object without its mark.
func (b *Bucket) stat(file string) (info storage.Info, err error) {
	err = b.call(func(ctx context.Context) error {
		o, err := b.client.StatObject(ctx, b.where.Bucket, b.key(file), minio.StatObjectOptions{})
		info = storage.Info{Name: path.Base(file), Size: o.Size, Used: o.LastModified}
		return err
	})
	return info, err
}

// mark is the empty object whose time says when another one was touched: an object has a
// time of its own only when it is written.
func mark(file string) string { return path.Join("used", file) }

// Stat implements storage.Files.
func (b *Bucket) Stat(file string) (storage.Info, error) {
	info, err := b.stat(file)
	if err != nil || info.Size == 0 {
		return info, err
	}
	switch touched, err := b.stat(mark(file)); {
	case err == nil && touched.Used.After(info.Used):
		info.Used = touched.Used
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return info, err
	}
	return info, nil
}

// Touch implements storage.Files. An empty object, as each link is, is written again.
func (b *Bucket) Touch(file string) error {
	info, err := b.stat(file)
	if err != nil {
		return err
	}
	if info.Size == 0 {
		return b.Write(file, nil)
	}
	return b.Write(mark(file), nil)
}

// List implements storage.Files.
func (b *Bucket) List(folder string) (list []storage.Info, err error) {
	prefix := b.key(folder) + "/"
	err = b.each(prefix, false, func(o minio.ObjectInfo) {
		name := strings.TrimPrefix(o.Key, prefix)
		if name == "" { // what some programs make to stand for a folder
			return
		}
		list = append(list, storage.Info{
			Name: strings.TrimSuffix(name, "/"), Folder: strings.HasSuffix(name, "/"), Size: o.Size, Used: o.LastModified,
		})
	})
	slices.SortFunc(list, func(a, b storage.Info) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// listTimeout bounds the list of a folder, which comes by pages of 1,000.
const listTimeout = 5 * time.Minute

// each calls use for the objects below a prefix.
func (b *Bucket) each(prefix string, recursive bool, use func(minio.ObjectInfo)) error {
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	for o := range b.client.ListObjectsIter(ctx, b.where.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: recursive}) {
		if o.Err != nil {
			return b.where.explain(o.Err)
		}
		use(o)
	}
	return nil
}

// Check writes an object, reads it, lists it and removes it, to test whether a registry can be kept at a
// location.
func Check(at Location) error {
	client, conns, err := at.client()
	if err != nil {
		return err
	}
	defer conns.CloseIdleConnections()
	b := &Bucket{client: client, where: at}
	const probe = "probe/object"
	if err := b.Write(probe, []byte("a probe of colony doctor")); err != nil {
		return err
	}
	if _, err := b.Read(probe); err != nil {
		return err
	}
	if _, err := b.List("probe"); err != nil {
		return err
	}
	return b.delete(probe)
}

// status is the HTTP status of an answer of the storage; 0: the error is none.
func status(err error) int {
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok {
		return cmp.Or(r.StatusCode, http.StatusInternalServerError)
	}
	return 0
}
