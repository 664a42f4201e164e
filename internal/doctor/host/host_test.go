package host

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/filelock"
)

// want checks the status of each finding, and that what is not ok says how to fix it.
func want(t *testing.T, what string, got []doctor.Finding, statuses ...doctor.Status) {
	t.Helper()
	if len(got) != len(statuses) {
		t.Fatalf("%s: %d findings, want %d: %+v", what, len(got), len(statuses), got)
	}
	for i, f := range got {
		if f.Status != statuses[i] {
			t.Errorf("%s: finding %d is %s (%s), want %s", what, i, f.Status, f.Message, statuses[i])
		}
		if (f.Fix == "") != (f.Status == doctor.OK) || f.Message == "" {
			t.Errorf("%s: finding %d has the message %q and the fix %q", what, i, f.Message, f.Fix)
		}
	}
}

func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := Disk(filepath.Join(dir, "a", "b"), 0)(t.Context())
	if !strings.Contains(got[0].Message, dir) || !strings.Contains(got[0].Message, "does not exist yet") {
		t.Errorf("a directory that is to be made: %q", got[0].Message)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the check left %v, %v", left, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "a file in place of the directory", Disk(file, 0)(t.Context()), doctor.Fail)
	want(t, "no file can be made there", []doctor.Finding{writable("/proc", "/proc")}, doctor.Fail)
	for err, fix := range map[error]string{
		unix.ENOSPC: "free some space, or, where the line about inodes", unix.EDQUOT: "quota", unix.EROFS: "fsck", unix.EACCES: "the right to write", unix.EIO: "dmesg",
	} {
		if got := remedy(&fs.PathError{Op: "open", Path: "/x", Err: err}); !strings.Contains(got, fix) {
			t.Errorf("%v: the fix is %q, want %q in it", err, got, fix)
		}
	}
	for name, tt := range map[string]struct {
		have, need int64
		want       doctor.Status
	}{
		"enough":               {1 << 30, 1 << 20, doctor.OK},
		"the bounds need more": {1 << 30, 2 << 30, doctor.Warn},
		"next to nothing":      {1 << 20, 0, doctor.Fail},
	} {
		want(t, name, []doctor.Finding{judgeFree("/x", tt.have, 1<<40, tt.need)}, tt.want)
	}
	if got := Size(t.Context(), dir); got != 0 {
		t.Errorf("Size of an empty file = %d, want 0", got)
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want(t, "nothing", Damaged(dir)(t.Context()), doctor.OK)
	want(t, "no directory", Damaged(filepath.Join(dir, "none"))(t.Context()), doctor.OK)
	for _, path := range []string{"state/site.json.damaged-1", "engine/volumes/x.damaged-1"} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got := Damaged(dir)(t.Context())
	want(t, "a damaged file", got, doctor.Warn)
	if !strings.Contains(got[0].Message, "1 damaged files were set aside: state/site.json.damaged-1") {
		t.Errorf("message %q, want the name of the file, and not of those of applications", got[0].Message)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		floor time.Time
		sync  bool
		err   error
		want  doctor.Status
	}{
		"synchronised":      {now.Add(-time.Hour), true, nil, doctor.OK},
		"not synchronised":  {now.Add(-time.Hour), false, nil, doctor.Warn},
		"the kernel errs":   {now.Add(-time.Hour), false, errors.New("no"), doctor.Warn},
		"behind its files":  {now.Add(time.Hour), true, nil, doctor.Fail},
		"seconds of a file": {now.Add(time.Second), true, nil, doctor.OK},
	} {
		want(t, name, judgeClock(now, tt.floor, "/x/file", func() (bool, error) { return tt.sync, tt.err }), tt.want)
	}
	if got := Clock(t.TempDir())(t.Context()); len(got) != 1 || got[0].Status == doctor.Fail {
		t.Errorf("this machine: %+v", got)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := errors.Join(os.Chmod(dir, 0o700), os.WriteFile(key, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want(t, "as they should be", Permissions(dir, key, "")(t.Context()), doctor.OK, doctor.OK)
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(key, 0o644)); err != nil { //nolint:gosec // the test is about that
		t.Fatal(err)
	}
	want(t, "open to all", Permissions(dir, key, filepath.Join(dir, "none"))(t.Context()), doctor.Fail, doctor.Warn, doctor.Fail)
	want(t, "to be made", Permissions(filepath.Join(dir, "none"))(t.Context()), doctor.OK)
}

func TestKernel(t *testing.T) {
	t.Parallel()
	for release, status := range map[string]doctor.Status{"6.12.1-arm64": doctor.OK, "5.10.0": doctor.OK, "4.19.0": doctor.Warn, "5.4": doctor.Warn, "plan 9": doctor.Warn} {
		want(t, release, []doctor.Finding{judgeKernel(release)}, status)
	}
	all := []string{"cpuset", "cpu", "memory", "pids"}
	want(t, "version 2", []doctor.Finding{judgeGroups(true, all, nil)}, doctor.OK)
	want(t, "version 1", []doctor.Finding{judgeGroups(false, all, nil)}, doctor.Warn)
	want(t, "no memory", []doctor.Finding{judgeGroups(true, []string{"cpu", "pids", "memory2"}, nil)}, doctor.Fail)
	want(t, "not mounted", []doctor.Finding{judgeGroups(false, nil, os.ErrNotExist)}, doctor.Fail)
	want(t, "mounts", []doctor.Finding{mounts(true), mounts(false)}, doctor.OK, doctor.Warn)
	if got := Kernel(true)(t.Context()); len(got) != 3 {
		t.Errorf("this machine: %+v", got)
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	is := func(running bool) func(context.Context) bool { return func(context.Context) bool { return running } }
	taken := Address{"mqtt", l.Addr().String()}
	want(t, "free, and one that is not set", Ports(is(false), Address{"http", "127.0.0.1:0"}, Address{"x", ""})(t.Context()), doctor.OK)
	want(t, "another's", Ports(is(false), taken)(t.Context()), doctor.Fail)
	want(t, "its own", Ports(is(true), taken)(t.Context()), doctor.OK)
	want(t, "another machine's", Ports(is(false), Address{"http", "192.0.2.1:80"})(t.Context()), doctor.Fail)
	want(t, "no address", Ports(is(false), Address{"http", "nonsense"})(t.Context()), doctor.Fail)
}

func TestBroker(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	there := "tcp://" + l.Addr().String()
	away := "tcp://user:secret@127.0.0.1:1"
	want(t, "one of two", Broker("the broker", "co.mqtt", []string{away, there})(t.Context()), doctor.OK)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := Broker("the broker", "co.mqtt", []string{away, there, "unix:///nowhere", "::"})(t.Context())
	want(t, "none", got, doctor.Fail)
	if strings.Contains(got[0].Message, "secret") || !strings.Contains(got[0].Message, "127.0.0.1:1") || !strings.Contains(got[0].Fix, "co.mqtt") {
		t.Errorf("message %q, fix %q; want the address without the password, and the key", got[0].Message, got[0].Fix)
	}
	want(t, "not configured", Broker("the broker", "co.mqtt", nil)(t.Context()))
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
		case "/v2/":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	want(t, "answers", HTTP("the API", "co.http", s.URL+"/healthz")(t.Context()), doctor.OK)
	want(t, "wants a token", HTTP("the registry", "co.http", s.URL+"/v2/")(t.Context()), doctor.OK)
	want(t, "is not ready", HTTP("the API", "co.http", s.URL+"/readyz")(t.Context()), doctor.Fail)
	want(t, "not configured", HTTP("the API", "co.http", "")(t.Context()))
	listener := s.Listener.Addr().String()
	if !Running(listener, "")(t.Context()) {
		t.Error("a tier whose /healthz answers counts as not running")
	}
	for listener, url := range map[string]string{"0.0.0.0:80": "http://127.0.0.1:80/x", ":80": "http://127.0.0.1:80/x", "[::]:80": "http://127.0.0.1:80/x", "[::1]:80": "http://[::1]:80/x", "": ""} {
		if got := URL(listener, "/x"); got != url {
			t.Errorf("URL of %q = %q, want %q", listener, got, url)
		}
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	if Locked(path) {
		t.Error("a file that does not exist is locked")
	}
	lock, err := filelock.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if !Locked(path) || !Running("", path)(t.Context()) {
		t.Error("a lock that is held is not seen")
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if Locked(path) || Running("", path)(t.Context()) {
		t.Error("a lock that was given back counts as held")
	}
}
