package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakePart is a part that the test ends.
type fakePart struct {
	done    chan struct{}
	stopped chan struct{}
}

func (p *fakePart) PID() int              { return os.Getpid() }
func (p *fakePart) Done() <-chan struct{} { return p.done }
func (p *fakePart) Err() error            { return errors.New("it died") }
func (p *fakePart) Stop(context.Context) error {
	close(p.stopped)
	return nil
}

func TestSupervisedStartsAgainUntilStopped(t *testing.T) {
	t.Parallel()
	parts := make(chan *fakePart)
	k := &supervised{
		name: "x", pidDir: t.TempDir(), log: slog.New(slog.DiscardHandler),
		start: func(context.Context) (part, error) {
			p := &fakePart{make(chan struct{}), make(chan struct{})}
			go func() { parts <- p }()
			return p, nil
		},
	}
	if err := k.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := <-parts
	close(first.done)
	second := <-parts
	select {
	case <-first.stopped:
	case <-time.After(time.Minute):
		t.Error("the part that ended was not stopped, and still holds its lock")
	}
	select {
	case err := <-k.failed:
		if !strings.Contains(err.Error(), "x: it died") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the reason of the end was not reported")
	}
	k.stop()
	select {
	case <-second.stopped:
	default:
		t.Error("the part was not stopped")
	}
	if _, err := os.Stat(filepath.Join(k.pidDir, "x.pid")); err == nil {
		t.Error("the pid file is left behind")
	}
}

func TestSupervisedThatCannotStart(t *testing.T) {
	t.Parallel()
	k := &supervised{name: "x", start: func(context.Context) (part, error) { return nil, errors.New("no such program") }}
	if err := k.keep(t.Context()); err == nil || !strings.Contains(err.Error(), "start x: no such program") {
		t.Error(err)
	}
	k.stop() // harmless
}

func TestChildIsStoppedAndKilled(t *testing.T) {
	t.Parallel()
	l, err := openLog(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	polite, err := startChild(l, "sh", "-c", "echo hello; exec cat /dev/zero > /dev/null")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := polite.Stop(ctx); err != nil {
		t.Error(err)
	}
	deaf, err := startChild(l, "sh", "-c", "trap '' TERM; echo deaf; while :; do read x < /dev/zero; done")
	if err != nil {
		t.Fatal(err)
	}
	for { // until the trap is set
		if b, err := os.ReadFile(l.path); err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		} else if strings.Contains(string(b), "deaf") {
			break
		}
	}
	short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelShort()
	if err := deaf.Stop(short); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a process that ignores SIGTERM: %v", err)
	}
	if err := syscall.Kill(deaf.PID(), 0); err == nil {
		t.Error("the process still runs")
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := bytes.Repeat([]byte("x"), 1<<20)
	for range 40 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	var total int64
	for _, p := range []string{path, path + ".1"} {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		total += fi.Size()
	}
	if total > 2*maxLog+2<<20 {
		t.Errorf("the logs hold %d bytes", total)
	}
}

// TestFullDiskEndsNoPart runs a part whose log is on a full disk: it comes to its end, and the log
// says what it lacks once there is room.
func TestFullDiskEndsNoPart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Write([]byte("before\n")); err != nil {
		t.Fatal(err)
	}
	room := l.f
	if l.f, err = os.OpenFile("/dev/full", os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer l.f.Close()
	c, err := startChild(l, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; /bin/true; done; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("the part ended by %v, want its own exit status 3", err)
	}
	l.mu.Lock()
	l.f = room
	l.mu.Unlock()
	if _, err := l.Write([]byte("after\n")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) != 4 || lines[0] != "before" || !strings.Contains(lines[1], `"bytes":63}`) || lines[2] != "after" {
		t.Errorf("the log is %q, want a line about 63 bytes that are missing", lines)
	}
}

func TestStateDirIsHeldByOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := openStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openStateDir(dir)
	if !errors.Is(err, errBusy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) || !strings.Contains(err.Error(), "colony down") {
		t.Errorf("a second holder: %v", err)
	}
	if !locked(dir) {
		t.Error("it does not look locked")
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if was, err := Down(dir, time.Second); was || err != nil {
		t.Errorf("Down where nothing runs: %t, %v", was, err)
	}
	if s, err = openStateDir(dir); err != nil {
		t.Fatalf("the state directory cannot be held again: %v", err)
	}
	_ = s.close()
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.StateDir, o.Site, o.Node, o.HTTPAddr, o.Containerd = "relative", "Bad", "bad_node", "nonsense", "/x"
	o.COMQTTAddr, o.LOMQTTAddr, o.LOHTTPAddr, o.LogLevel, o.Samples = "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:65536", "loud", t.TempDir()
	o.COTLSAddr, o.LOTLSAddr, o.COEnrolAddr, o.LOEnrolAddr, o.COHTTPSAddr, o.LOHTTPSAddr = "a", "b", "c", "d", "e", "f"
	err := o.Validate()
	for _, want := range []string{`"relative"`, `"Bad"`, `"bad_node"`, "--http", "--co-mqtt", "--lo-mqtt", "--lo-http", "--co-mqtt-tls", "--lo-mqtt-tls", "--co-enrol", "--lo-enrol", "--co-https", "--lo-https", "--log-level", "--samples"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not among the faults: %v", want, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o = DefaultOptions()
	o.HTTPAddr, o.COMQTTAddr, o.LOMQTTAddr, o.LOHTTPAddr = l.Addr().String(), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	o.COTLSAddr, o.LOTLSAddr, o.COEnrolAddr, o.LOEnrolAddr, o.COHTTPSAddr, o.LOHTTPSAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	if err := o.checkPorts(); err == nil || !strings.Contains(err.Error(), "--http") || !strings.Contains(err.Error(), "something else listens there") {
		t.Errorf("a port that is in use: %v", err)
	}
	o.HTTPAddr, o.COMQTTAddr = "127.0.0.1:0", "192.0.2.254:1"
	if err := o.checkPorts(); err == nil || !strings.Contains(err.Error(), "--co-mqtt") || strings.Contains(err.Error(), "something else") {
		t.Errorf("an address of another machine: %v", err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.COMQTTAddr, o.LOMQTTAddr = free.Addr().String(), free.Addr().String()
	_ = free.Close()
	if err := o.checkPorts(); err == nil || !strings.Contains(err.Error(), "--lo-mqtt") || strings.Contains(err.Error(), "--co-mqtt") {
		t.Errorf("two parts with one address: %v", err)
	}
}

func TestRelayEndsWhenTheFleetIsUp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if !relay(strings.NewReader("starting\n"+Ready+", after 3 s\n  API\n  colony events -f\nmore\n"), &out) {
		t.Error("it was not seen to be up")
	}
	for _, o := range []Options{{}, {Samples: "/x"}} {
		if all := o.suggestions(); all[len(all)-1] != lastSuggestion {
			t.Errorf("the guide ends with %q", all[len(all)-1])
		}
	}
	if relay(strings.NewReader("starting\ncolony: it failed\n"), &out) {
		t.Error("a fleet that failed was seen to be up")
	}
	if !strings.Contains(out.String(), "it failed") {
		t.Errorf("the reason was not shown: %s", out.String())
	}
}
