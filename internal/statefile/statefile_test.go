package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
)

func file(dir string) File {
	return File{Identity: Identity{"test/role", "name"}, Path: filepath.Join(dir, "state")}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// load returns the content as Load hands it out.
func load(f File) (content string, found bool, err error) {
	found, err = f.Load(func(b []byte) error {
		content = string(b)
		return json.Unmarshal(b, new(map[string]string))
	})
	return content, found, err
}

const content = `{"key":"value"}`

func TestLoad(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	if _, found, err := load(f); found || err != nil {
		t.Errorf("no file: found %t, %v", found, err)
	}
	if err := f.Save([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if got, found, err := load(f); got != content || !found || err != nil {
		t.Errorf("load = %q, %t, %v", got, found, err)
	}
}

// TestEveryBit flips each bit of a file, cuts it at each length, and swaps it: none
// is read as content, none is an error that stops a start, each is set aside.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	whole := f.Seal([]byte(content))
	damaged := map[string][]byte{
		"other role":    Identity{"test/other", "name"}.Seal([]byte(content)),
		"other name":    Identity{"test/role", "other"}.Seal([]byte(content)),
		"shifted name":  Identity{"test/rolen", "ame"}.Seal([]byte(content)),
		"zeroed header": append(make([]byte, headSize), content...),
	}
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		damaged[fmt.Sprintf("bit %d", bit)] = b
	}
	for n := range whole {
		damaged[fmt.Sprintf("cut to %d", n)] = whole[:n]
	}
	for name, b := range damaged {
		write(t, f.Path, b)
		got, found, err := load(f)
		d, ok := errors.AsType[*Damage](err)
		if found || !ok || d.Aside == "" {
			t.Fatalf("%s: found %t %q, %v", name, found, got, err)
		}
		if kept, err := os.ReadFile(d.Aside); err != nil || !bytes.Equal(kept, b) {
			t.Fatalf("%s: aside: %v", name, err)
		}
		if _, found, err := load(f); found || err != nil {
			t.Fatalf("%s: the damage does not end: %v", name, err)
		}
	}
	if all, err := filepath.Glob(f.Path + asideMark + "*"); err != nil || len(all) != keepAside {
		t.Errorf("%d files are aside, %v; want %d", len(all), err, keepAside)
	}
}

var damages = flag.Int("damages", 2000, "how often TestRandomDamage damages a file")

// TestRandomDamage is about a large file.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	rng := rand.New(rand.NewPCG(1, 2))
	whole := f.Seal([]byte(`{"key":"` + strings.Repeat("x", 64<<10) + `"}`))
	for i := range *damages {
		b := bytes.Clone(whole)
		switch i % 3 {
		case 0:
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		case 1:
			b = b[:rng.IntN(len(b))]
		case 2:
			at := rng.IntN(len(b)) &^ 511
			clear(b[at:min(at+512, len(b))])
		}
		if _, _, err := f.Unseal(b); err == nil {
			t.Fatalf("damage %d was not noticed", i)
		}
	}
}

// TestPlain reads a file of before the header, which gets one.
func TestPlain(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	write(t, f.Path, []byte(content))
	if got, found, err := load(f); got != content || !found || err != nil {
		t.Fatalf("load = %q, %t, %v", got, found, err)
	}
	if b, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(b, f.Seal([]byte(content))) {
		t.Errorf("the file has no header now: %q, %v", b, err)
	}
}

// TestSealed has no plain file.
func TestSealed(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	f.Sealed = true
	write(t, f.Path, []byte(content))
	_, found, err := load(f)
	if _, ok := errors.AsType[*Damage](err); found || !ok {
		t.Errorf("found %t, %v", found, err)
	}
}

func TestNewerFormatIsUntouched(t *testing.T) {
	t.Parallel()
	f := file(t.TempDir())
	b := f.seal([]byte(content), format+1, "7.8.9")
	write(t, f.Path, b)
	_, found, err := load(f)
	if _, ok := errors.AsType[*NewerError](err); found || !ok || !strings.Contains(err.Error(), "7.8.9") || !strings.Contains(err.Error(), f.Path) {
		t.Errorf("found %t, %v", found, err)
	}
	if got, err := os.ReadFile(f.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the file changed: %v", err)
	}
}

// TestPowerCut cuts the power at each operation of a Save: the file has the old content or
// the new, and after a Save that returned, the new.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	saved := 0
	for seed := range uint64(50) {
		for cut := 1; ; cut++ {
			d := simdisk.New(seed)
			f := file("/")
			f.Disk = d
			if err := f.Save([]byte(`{"v":"old"}`)); err != nil {
				t.Fatal(err)
			}
			d.CutAt(cut)
			err := f.Save([]byte(`{"v":"new"}`))
			through := !d.Off()
			d.Restart(true)
			got, found, loadErr := load(f)
			if !found || loadErr != nil {
				t.Fatalf("seed %d, cut at %s: found %t, %v", seed, d.CutOn(), found, loadErr)
			}
			if want := `{"v":"new"}`; err == nil && got != want || got != want && got != `{"v":"old"}` {
				t.Fatalf("seed %d, cut at %s: %q after %v", seed, d.CutOn(), got, err)
			}
			if through {
				saved++
				break
			}
		}
	}
	if saved != 50 {
		t.Errorf("%d of 50 runs came to the end", saved)
	}
}

// TestIrregularFile puts a FIFO and a directory in the place of a state file, of one that is opened and of a lock: they are set aside.
func TestIrregularFile(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o700) },
	} {
		path := filepath.Join(t.TempDir(), "file")
		for n, use := range []func() error{
			func() error {
				f := File{Identity: Identity{Role: "test"}, Path: path}
				_, err := f.Load(func([]byte) error { return nil })
				if _, ok := errors.AsType[*Damage](err); !ok {
					return fmt.Errorf("load: %w", err)
				}
				return f.Save([]byte("new"))
			},
			func() error {
				f, err := Open(disk.OS, path, os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					return err
				}
				return f.Close()
			},
			func() error {
				l, err := Lock(disk.OS, path)
				if err != nil {
					return err
				}
				return l.Close()
			},
		} {
			if err := errors.Join(os.RemoveAll(path), put(path), use()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			st, err := os.Lstat(path)
			aside, failed := filepath.Glob(path + asideMark + "*")
			if err := errors.Join(err, failed); err != nil || !st.Mode().IsRegular() || len(aside) != n+1 {
				t.Errorf("%s: there is %v, %v, and aside %q", what, st, err, aside)
			}
		}
	}
}
