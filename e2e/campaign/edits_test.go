package campaign

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/shims"
)

var (
	editRounds = flag.Int("edits", 3, "how often TestEdits changes its mind and kills")
	editSeed   = flag.Uint64("edit-seed", 1, "decides when TestEdits kills what")
)

// TestEdits changes a deployment three times within half a second, and kills the agent,
// containerd or both in between. The last change must come into force, and nothing of the
// others may be left: no task, shim, pipe, snapshot, lease or network.
func TestEdits(t *testing.T) {
	t.Parallel()
	c := newColony(t, built(t), built(t), built(t))
	c.up()
	e := &edits{colony: c, random: rand.New(rand.NewPCG(*editSeed, 1))}
	c.must("deploy", "hello@1.0.0", "--site", site, "--set", fmt.Sprintf("port=%d", c.port), "--wait", "--healthy-for", "1s")
	began := time.Now()
	for i := range *editRounds {
		victims := e.round(i)
		if t.Failed() {
			t.Fatalf("round %d of seed %d, in which %v was killed: see above", i, *editSeed, victims)
		}
		if i%50 == 49 {
			t.Logf("seed %d: %d rounds in %s", *editSeed, i+1, time.Since(began).Round(time.Second))
		}
	}
	c.must("deployment", "delete", site+"/hello", "--wait")
	c.eventually("nothing is left of the deployment", func() error { return e.left(0) })
}

// edits is one run of TestEdits.
type edits struct {
	*colony
	random *rand.Rand
}

// round changes the deployment, kills, and waits until the last change runs alone.
func (e *edits) round(i int) (victims []string) {
	e.t.Helper()
	victims = [][]string{{"en"}, {"containerd"}, {"en", "containerd"}}[e.random.IntN(3)]
	at := e.random.IntN(3) // behind which of the changes
	name := ""
	for n := range 3 {
		name = fmt.Sprintf("Round %d.%d", i, n)
		e.patch(name)
		<-time.After(time.Duration(e.random.IntN(150)) * time.Millisecond)
		if n == at {
			e.kill(victims)
		}
	}
	e.eventually(fmt.Sprintf("round %d: the last change is in force, and it alone", i), func() error {
		if err := e.en.Running(); err != nil {
			e.t.Fatal(err)
		}
		// What is left is asked for last: it takes the time of several programs.
		if err := errors.Join(e.runs("hello", "1.0.0"), e.greets("Hello, "+name+"!")); err != nil {
			return err
		}
		return e.left(1)
	})
	return victims
}

// kill ends parts as kill -9 does, and starts them again.
func (e *edits) kill(victims []string) {
	e.t.Helper()
	for _, v := range victims {
		if v == "en" {
			e.en.Kill()
		} else {
			e.daemon.Kill(e.t)
		}
	}
	for _, v := range victims {
		if v == "en" {
			e.en.start()
		} else {
			e.daemon.Restart(e.t)
		}
	}
}

// patch sets whom the sample greets.
func (e *edits) patch(addressee string) {
	e.t.Helper()
	body := fmt.Sprintf(`{"version": "1.0.0", "parameters": {"port": %d, "addressee": %q}}`, e.port, addressee)
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPatch, "http://"+e.http+"/api/v1/deployments/"+site+"/hello", strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := client.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		var why bytes.Buffer
		_, _ = why.ReadFrom(resp.Body) // it is for the message only
		e.t.Fatalf("PATCH: %s: %s", resp.Status, &why)
	}
}

// left returns an error where containers, tasks, shims, pipes, snapshots, leases or networks
// are others than those of n containers that run.
func (e *edits) left(n int) error {
	var errs []error
	want := func(what string, got []string, n int) {
		if len(got) != n {
			errs = append(errs, fmt.Errorf("%d %s, want %d: %q", len(got), what, n, got))
		}
	}
	list := func(args ...string) (lines []string) {
		out, err := run(e.dir, "ctr", append([]string{"-a", e.daemon.Socket, "-n", e.engine.Namespace}, args...)...)
		if err != nil {
			errs = append(errs, err)
		}
		return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	}
	want("containers", list("container", "ls", "-q"), n)
	want("tasks", list("task", "ls", "-q"), n)
	want("leases", list("leases", "ls", "-q"), 0)
	active := slices.DeleteFunc(list("snapshot", "ls"), func(line string) bool { return !strings.HasSuffix(strings.TrimSpace(line), "Active") })
	want("active snapshots", active, n)
	running, err := shims.Find(e.daemon.Socket, e.engine.Namespace)
	if err != nil || len(running) != n {
		errs = append(errs, fmt.Errorf("shims %+v, %v; want %d", running, err, n))
	}
	for what, pattern := range map[string]string{
		"attachments": "engine/attachments/*.json", "network namespaces": "engine/netns/*", "folders of containers": "engine/containers/*", "reserved addresses": "engine/cni/ipam/*/[0-9]*",
	} {
		paths, err := filepath.Glob(filepath.Join(e.en.state, pattern))
		if err != nil {
			errs = append(errs, err)
		}
		want(what, paths, n)
	}
	return errors.Join(append(errs, e.pipes(running))...)
}

// pipes returns an error for each folder of named pipes of a container that does not run.
func (e *edits) pipes(running []shims.Shim) error {
	paths, err := filepath.Glob("/run/containerd/fifo/*/*")
	errs := []error{err}
	for _, path := range paths {
		if !strings.HasPrefix(filepath.Base(path), "hello-hello-") || slices.ContainsFunc(running, func(s shims.Shim) bool { return strings.HasPrefix(filepath.Base(path), s.Container) }) {
			continue
		}
		if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeNamedPipe != 0 {
			errs = append(errs, fmt.Errorf("the pipe %s is left", path))
		}
	}
	return errors.Join(errs...)
}
