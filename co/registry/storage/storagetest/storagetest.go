// Package storagetest is what every storage of a registry must do.
package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/protocol"
)

// Exercise plays the contract of package storage. open returns two storages of the same
// content, as two programs have them, which is empty.
func Exercise(t *testing.T, open func(t *testing.T) (a, b storage.Storage)) {
	for name, play := range map[string]func(*testing.T, storage.Storage, storage.Storage){
		"files": playFiles, "lists": lists, "uploads": playUploads, "large uploads": largeUploads, "two writers": twoWriters, "locks": locks,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := open(t)
			play(t, a, b)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func playFiles(t *testing.T, a, b storage.Storage) {
	const file = "repositories/plant/web/_tags/1"
	if _, err := b.Read(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read what there is not: %v", err)
	}
	for what, do := range map[string]func() error{
		"stat": func() error { _, err := b.Stat(file); return err }, "touch": func() error { return b.Touch(file) },
		"remove": func() error { return b.Remove(file) }, "open": func() error { _, err := b.Open(t.Context(), file); return err },
	} {
		if err := do(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s what there is not: %v", what, err)
		}
	}
	for _, content := range []string{"one", "", "another"} {
		must(t, a.Write(file, []byte(content)))
		got, err := b.Read(file)
		must(t, err)
		if string(got) != content {
			t.Errorf("%q after %q was written", got, content)
		}
		info, err := b.Stat(file)
		must(t, err)
		if info.Name != "1" || info.Size != int64(len(content)) || info.Folder {
			t.Errorf("%+v of %q", info, content)
		}
		first := info.Used
		for !info.Used.After(first) { // the clock of a storage may show whole seconds
			must(t, a.Touch(file))
			info, err = b.Stat(file)
			must(t, err)
		}
	}
	f, err := b.Open(t.Context(), file)
	must(t, err)
	end, err := f.Seek(0, io.SeekEnd)
	must(t, err)
	_, err = f.Seek(2, io.SeekStart)
	must(t, err)
	rest, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	if end != 7 || string(rest) != "other" {
		t.Errorf("%d bytes, and from the second on %q", end, rest)
	}
	must(t, b.Remove(file))
	if _, err := a.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the other one removed it: %v", err)
	}
}

func lists(t *testing.T, a, b storage.Storage) {
	names := func(folder string) []string {
		t.Helper()
		list, err := b.List(folder)
		must(t, err)
		var out []string
		for _, i := range list {
			name := i.Name
			if i.Folder {
				name += "/"
			}
			out = append(out, name)
		}
		return out
	}
	if got := names("repositories/none"); len(got) > 0 {
		t.Errorf("what is not there has %v", got)
	}
	for _, file := range []string{"repositories/a/_tags/1", "repositories/a/_tags/10", "repositories/a/_tags/2", "repositories/a/b/_blobs/x", "repositories/a-b/_blobs/x"} {
		must(t, a.Write(file, nil))
	}
	for folder, want := range map[string][]string{
		"repositories": {"a/", "a-b/"}, "repositories/a": {"_tags/", "b/"}, "repositories/a/_tags": {"1", "10", "2"},
	} {
		if diff := cmp.Diff(want, names(folder)); diff != "" {
			t.Errorf("%s: %s", folder, diff)
		}
	}
}

// room lets an upload have some bytes.
func room(most int64) func(int64) (int64, error) {
	return func(before int64) (int64, error) { return most - before, nil }
}

func playUploads(t *testing.T, a, b storage.Storage) {
	ctx := t.Context()
	if _, err := a.Append(ctx, "none", strings.NewReader("x"), room(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("add to an upload that there is not: %v", err)
	}
	must(t, a.Begin("one"))
	for i, s := range []storage.Storage{b, a, b, a} {
		size, err := s.Append(ctx, "one", strings.NewReader([]string{"one ", "", "two ", "three"}[i]), room(13))
		must(t, err)
		if known, err := a.Uploaded("one"); known != size || err != nil {
			t.Errorf("%d bytes after part %d, and %d are known: %v", size, i, known, err)
		}
	}
	refused := errors.New("refused")
	for want, do := range map[error]func() error{
		storage.ErrTooLarge: func() error { _, err := b.Append(ctx, "one", strings.NewReader("x"), room(13)); return err },
		refused: func() error {
			_, err := b.Append(ctx, "one", strings.NewReader("x"), func(int64) (int64, error) { return 0, refused })
			return err
		},
		errCut: func() error {
			_, err := b.Append(ctx, "one", io.MultiReader(strings.NewReader("x"), cutOff{}), room(100))
			return err
		},
	} {
		if err := do(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if size, err := a.Uploaded("one"); size != 13 || err != nil {
			t.Errorf("%d bytes after an upload that failed: %v", size, err)
		}
	}
	list, err := b.Unfinished()
	must(t, err)
	if len(list) != 1 || list[0].Name != "one" || time.Since(list[0].Used) > time.Hour {
		t.Errorf("uploads: %+v", list)
	}
	content := []byte("one two three")
	const file = "blobs/sha256/x"
	if _, err := b.Seal(ctx, "one", protocol.DigestOf(nil), file); !isMismatch(err) {
		t.Errorf("another digest: %v", err)
	}
	if _, err := a.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a blob of another digest: %v", err)
	}
	finish(t, b, "one", content, file)
	if got, err := a.Read(file); string(got) != string(content) || err != nil {
		t.Errorf("the blob has %q: %v", got, err)
	}
	if _, err := a.Uploaded("one"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the upload after it became a blob: %v", err)
	}
	must(t, a.Begin("empty"))
	finish(t, a, "empty", nil, "blobs/sha256/empty")
	if info, err := b.Stat("blobs/sha256/empty"); info.Size != 0 || err != nil {
		t.Errorf("the empty blob: %+v %v", info, err)
	}
	must(t, a.Begin("left"))
	must(t, b.Drop("left"))
	if err := a.Drop("left"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("drop it twice: %v", err)
	}
}

func isMismatch(err error) bool {
	_, ok := errors.AsType[*storage.MismatchError](err)
	return ok
}

var errCut = errors.New("the client is away")

type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, errCut }

// finish makes an upload a blob.
func finish(t *testing.T, s storage.Storage, id string, content []byte, file string) {
	t.Helper()
	sealed, err := s.Seal(t.Context(), id, protocol.DigestOf(content), file)
	must(t, err)
	must(t, s.RLock())
	must(t, sealed.Place())
	s.RUnlock()
	must(t, sealed.Close())
}

// largeUploads have several of what a storage holds in memory at a time.
func largeUploads(t *testing.T, a, b storage.Storage) {
	var content []byte
	must(t, a.Begin("large"))
	for i, n := range []int{40 << 20, 16 << 20, 1, 17 << 20} {
		part := bytes.Repeat([]byte{byte(i), 1, 2}, n/3+1)[:n]
		content = append(content, part...)
		_, err := a.Append(t.Context(), "large", bytes.NewReader(part), room(1<<30))
		must(t, err)
	}
	const file = "blobs/sha256/large"
	if _, err := b.Seal(t.Context(), "large", protocol.DigestOf(nil), file); !isMismatch(err) {
		t.Errorf("another digest: %v", err)
	}
	if _, err := b.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a blob of another digest: %v", err)
	}
	finish(t, b, "large", content, file)
	f, err := a.Open(t.Context(), file)
	must(t, err)
	got, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	if !bytes.Equal(got, content) {
		t.Errorf("the blob has %d bytes, or others, want %d", len(got), len(content))
	}
}

// twoWriters adds by both programs to the same place: one part counts.
func twoWriters(t *testing.T, a, b storage.Storage) {
	must(t, a.Begin("one"))
	body, feed := io.Pipe()
	first := make(chan error, 1)
	go func() {
		_, err := a.Append(t.Context(), "one", body, room(100))
		first <- err
	}()
	_, err := feed.Write([]byte("first"))
	must(t, err)
	_, second := b.Append(t.Context(), "one", strings.NewReader("second"), room(100))
	must(t, feed.Close())
	got := <-first
	if (got == nil) == (second == nil) || got != nil && !errors.Is(got, storage.ErrBusy) || second != nil && !errors.Is(second, storage.ErrBusy) {
		t.Errorf("the first writer: %v, the second: %v; want one of them to be refused", got, second)
	}
	want := map[bool]int64{true: 5, false: 6}[got == nil]
	if size, err := a.Uploaded("one"); size != want || err != nil {
		t.Errorf("%d bytes, %v; want %d", size, err, want)
	}
}

func locks(t *testing.T, a, b storage.Storage) {
	must(t, a.Write("count", []byte("0")))
	var wg sync.WaitGroup
	const rounds = 20
	for _, s := range []storage.Storage{a, b} {
		wg.Go(func() {
			for range rounds {
				if err := s.Lock(); err != nil {
					t.Error(err)
					return
				}
				var n int
				text, err := s.Read("count")
				if err == nil {
					_, err = fmt.Sscan(string(text), &n)
				}
				if err = errors.Join(err, s.Held(), s.Write("count", fmt.Append(nil, n+1))); err != nil {
					t.Error(err)
				}
				s.Unlock()
			}
		})
	}
	wg.Wait()
	if text, err := a.Read("count"); string(text) != fmt.Sprint(2*rounds) || err != nil {
		t.Errorf("counted %s: %v", text, err)
	}
	must(t, a.RLock())
	must(t, b.RLock()) // readers share it
	a.RUnlock()
	b.RUnlock()
	alone, err := a.Alone()
	must(t, err)
	if _, err := b.Alone(); !errors.Is(err, storage.ErrHeld) {
		t.Errorf("alone beside another one: %v", err)
	}
	must(t, alone.Close())
	alone, err = b.Alone()
	must(t, err)
	must(t, alone.Close())
}
