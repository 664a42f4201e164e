package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// script writes an executable shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fleetOf returns the options of a fleet of a program that stands in for Colony's,
// without a private PostgreSQL, containerd or repo, on addresses that are free.
func fleetOf(t *testing.T, program string, out *bytes.Buffer) Options {
	t.Helper()
	o := DefaultOptions()
	o.StateDir, o.Program, o.Agent, o.Out = t.TempDir(), program, program, out
	o.DatabaseURL, o.Containerd, o.GitRemote = "postgres:///x", filepath.Join(o.StateDir, "no.sock"), "/none"
	for _, addr := range []*string{&o.HTTPAddr, &o.COMQTTAddr, &o.LOMQTTAddr, &o.LOHTTPAddr, &o.COTLSAddr, &o.LOTLSAddr, &o.COEnrolAddr, &o.LOEnrolAddr, &o.COHTTPSAddr, &o.LOHTTPSAddr} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		*addr = l.Addr().String()
	}
	return o
}

// TestTierThatDoesNotComeUp runs a fleet whose CO ends at once: the error names the
// step, why it ended and where its log is, and nothing is left running.
func TestTierThatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := fleetOf(t, script(t, `echo "role $1"; exit 3`), &out)
	err := Run(t.Context(), o)
	log := filepath.Join(o.StateDir, "logs", "co.log")
	for _, want := range []string{
		"start the Central Orchestrator: it ended three times: co: exit status 3: see its log in " + log,
		"the logs are in " + filepath.Join(o.StateDir, "logs"),
	} {
		wantError(t, "Run", err, want)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.HasPrefix(string(text), "role co\n") {
		t.Errorf("log of the CO: %q, %v", text, err)
	}
	for _, want := range []string{"start the Central Orchestrator ...", " FAILED\n", "stopping ...", "stopped; the state is kept in " + o.StateDir} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the progress:\n%s", want, out.String())
		}
	}
	config, err := os.ReadFile(filepath.Join(o.StateDir, "config", "co.yaml"))
	if err != nil || !strings.Contains(string(config), "databaseURL: postgres:///x\n") || !strings.Contains(string(config), "http: "+o.HTTPAddr+"\n") {
		t.Errorf("configuration of the CO:\n%s%v", config, err)
	}
	if locked(o.StateDir) {
		t.Error("the state directory is still held")
	}
}

// TestRunIsInterrupted ends a fleet that waits for its CO.
func TestRunIsInterrupted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	started := filepath.Join(t.TempDir(), "started")
	o := fleetOf(t, script(t, "touch "+started+"; exec cat /dev/zero >/dev/null"), &out)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for { // until the CO's process runs
			if _, err := os.Stat(started); err == nil || t.Context().Err() != nil {
				return
			}
			<-time.After(5 * time.Millisecond)
		}
	}()
	if err := Run(ctx, o); !errors.Is(err, errInterrupted) {
		t.Errorf("error %v, want %v", err, errInterrupted)
	}
	if !strings.Contains(out.String(), " interrupted\n") {
		t.Errorf("progress:\n%s", out.String())
	}
}

func TestRunRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := fleetOf(t, "/bin/false", &out)
	o.Site = "Bad"
	wantError(t, "bad site", Run(t.Context(), o), `"Bad"`)
	o = fleetOf(t, "/bin/false", &out)
	o.LOHTTPAddr = o.HTTPAddr
	wantError(t, "one address for two parts", Run(t.Context(), o), "choose another with --lo-http")
	held, err := openStateDir(o.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); !errors.Is(err, errBusy) {
		t.Errorf("state directory of another fleet: error %v, want %v", err, errBusy)
	}
	if err := held.close(); err != nil {
		t.Error(err)
	}
}

func TestWaitGivesUp(t *testing.T) {
	t.Parallel()
	s := &supervisor{dir: &stateDir{path: "/state"}}
	calls := 0
	if err := s.wait(t.Context(), nil, time.Minute, func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Errorf("a check that succeeds at the third call: %v", err)
	}
	err := s.wait(t.Context(), nil, time.Millisecond, func(context.Context) error { return errors.New("not yet") })
	wantError(t, "time is up", err, "not within 1ms: not yet")
}

// TestTierIsAskedUntilItIsReady has /readyz answer as the CO and the LO do.
func TestTierIsAskedUntilItIsReady(t *testing.T) {
	t.Parallel()
	status := http.StatusServiceUnavailable
	o := against(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	wantError(t, "not ready", get(t.Context(), o.HTTPAddr, "/readyz"), "/readyz answers 503 Service Unavailable")
	status = http.StatusOK
	if err := get(t.Context(), o.HTTPAddr, "/readyz"); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// TestProgramOfARole chooses colony-en for the agent where it lies beside the program.
func TestProgramOfARole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, agent := filepath.Join(dir, "colony"), filepath.Join(dir, "colony-en")
	check := func(o Options, role, wantProgram string, wantArgs ...string) {
		t.Helper()
		got, args, err := o.command(role)
		if err != nil || got != wantProgram || fmt.Sprint(args) != fmt.Sprint(wantArgs) {
			t.Errorf("command of %s: %s %v, %v; want %s %v", role, got, args, err, wantProgram, wantArgs)
		}
	}
	o := Options{Program: program}
	check(o, "co", program, "co")
	check(o, "en", program, "en")
	if err := os.WriteFile(agent, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	check(o, "en", agent)
	o.Agent = "/elsewhere/colony-en"
	check(o, "en", "/elsewhere/colony-en")
}

// TestGuideNamesAddressesAndCommands holds what a person sees once the fleet is up.
func TestGuideNamesAddressesAndCommands(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &supervisor{opts: DefaultOptions(), dir: &stateDir{path: "/state"}, say: newProgress(&out)}
	s.opts.Samples, s.opts.HTTPAddr, s.opts.GitRemote = "examples", "127.0.0.1:9000", "/state/git/deployments.git"
	s.guide(1500 * time.Millisecond)
	for _, want := range []string{
		Ready + ", after 1.5 s. It runs until Ctrl-C.\n", "  API         http://127.0.0.1:9000/api/v1 ", "LO of local 127.0.0.1:1883: plain, for applications and devices\n",
		"mutual TLS at the CO 127.0.0.1:8884 and the LO 127.0.0.1:8883; the root of the certificates is in /state/co/identity\n", "  git         /state/git/deployments.git\n",
		"  logs        /state/logs\n", "  sample      http://127.0.0.1:8088/\n", "COLONY_URL=http://127.0.0.1:9000 ", "deployment show local/hello\n", lastSuggestion + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the guide:\n%s", want, out.String())
		}
	}
}

// TestDownStopsTheSupervisor has a process that ends at SIGTERM, and one that does
// not, stand in for the supervisor.
func TestDownStopsTheSupervisor(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (dir string, held *stateDir, cmd *exec.Cmd) {
		t.Helper()
		dir = t.TempDir()
		held, err := openStateDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command("cat", "/dev/zero")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(held.lock.Truncate(0), write(held.lock, strconv.Itoa(cmd.Process.Pid)+"\n")); err != nil {
			t.Fatal(err)
		}
		return dir, held, cmd
	}
	t.Run("it ends", func(t *testing.T) {
		t.Parallel()
		dir, held, cmd := start(t)
		ended := make(chan error, 1)
		go func() {
			_ = cmd.Wait() // it ends by the signal
			ended <- held.close()
		}()
		if was, err := Down(dir, time.Minute); !was || err != nil {
			t.Errorf("Down: %t, %v; want true and no error", was, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("it does not release the state directory", func(t *testing.T) {
		t.Parallel()
		dir, held, cmd := start(t)
		was, err := Down(dir, 200*time.Millisecond)
		if !was {
			t.Error("Down reports that nothing ran")
		}
		wantError(t, "Down", err, fmt.Sprintf("the supervisor (pid %d) did not stop within 200ms: see %s", cmd.Process.Pid, filepath.Join(dir, "logs", "up.log")))
		_ = cmd.Wait()
		if err := held.close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPartThatDoesNotStartAgain has the reason reported to the goroutines that wait for the part.
func TestPartThatDoesNotStartAgain(t *testing.T) {
	t.Parallel()
	first := &fakePart{make(chan struct{}), make(chan struct{})}
	starts := 0
	k := &supervised{
		name: "x", pidDir: t.TempDir(), log: slog.New(slog.DiscardHandler),
		start: func(context.Context) (part, error) {
			if starts++; starts == 1 {
				return first, nil
			}
			return nil, errors.New("no memory")
		},
	}
	if err := k.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(first.done)
	deadline := time.After(time.Minute)
	for got := ""; !strings.Contains(got, "x: no memory"); {
		select {
		case err := <-k.failed:
			got = err.Error()
		case <-deadline:
			t.Fatalf("reported last %q, want x: no memory", got)
		}
	}
	k.stop()
}
