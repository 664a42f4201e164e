package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A colony is a fleet on this machine, run by `colony up` from the built binaries.
type colony struct {
	t      testing.TB
	dir    string // state directory
	http   string
	port   int // of the sample on the gateway
	args   []string
	env    []string // of commands, beside that of the test
	cmd    *exec.Cmd
	out    *lockedWriter
	ended  chan error
	dumped bool // a failure was logged with the parts' logs
}

const (
	site = "plant"
	node = "gw-1"
)

func bin(name string) string {
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		panic(err)
	}
	return path
}

// newColony prepares a fleet with ports and a state directory of its own.
func newColony(t testing.TB) *colony {
	t.Helper()
	if _, err := os.Stat(bin("colony")); err != nil {
		t.Fatalf("%v: the scenarios run the built binaries: make build", err)
	}
	// Short, because Unix sockets have short names; and open to the database's user.
	dir, err := os.MkdirTemp("/tmp", "colony-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	apps, err := filepath.Abs("testdata/apps")
	if err != nil {
		t.Fatal(err)
	}
	c := &colony{t: t, dir: dir}
	ports := freeport.Ports(t, 11)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	c.http = at(0)
	c.port = ports[4]
	c.args = []string{
		"up", "--state-dir", dir, "--site", site, "--node", node, "--http", c.http,
		"--co-mqtt", at(1), "--lo-mqtt", at(2), "--lo-http", at(3), "--co-mqtt-tls", at(5), "--lo-mqtt-tls", at(6), "--co-enrol", at(7), "--lo-enrol", at(8),
		"--co-https", at(9), "--lo-https", at(10),
		"--samples", filepath.Join("..", "examples"), "--sample-binaries", filepath.Join("..", "bin", "samples"),
		"--import-root", os.TempDir(), "--import-root", apps,
		"--sample-parameter", fmt.Sprintf("port=%d", c.port),
	}
	t.Cleanup(func() {
		c.down()
		if t.Failed() {
			if !c.dumped {
				c.dump()
			}
			t.Logf("the state directory is left for inspection: %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("the state directory cannot be removed, something is left in it: %v", err)
		}
	})
	return c
}

// up starts the fleet and waits until the sample is INSTALLED.
func (c *colony) up() {
	c.t.Helper()
	c.start()
	c.eventually(3*time.Minute, "the fleet is up", func() error {
		select {
		case err := <-c.ended:
			c.ended <- err
			c.t.Fatalf("colony up ended: %v\n%s", err, c.out)
		default:
		}
		if !strings.Contains(c.out.String(), "Colony is up") {
			return errors.New("not up yet")
		}
		return nil
	})
}

func (c *colony) start() {
	c.t.Helper()
	c.out = &lockedWriter{w: &bytes.Buffer{}}
	c.cmd = exec.Command(bin("colony"), c.args...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	child, err := childproc.Start(c.cmd, syscall.SIGTERM)
	if err != nil {
		c.t.Fatal(err)
	}
	c.ended = make(chan error, 1)
	go func() {
		<-child.Done()
		c.ended <- child.Err()
	}()
}

// down stops the fleet as Ctrl-C does.
func (c *colony) down() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	select {
	case <-c.ended:
	case <-time.After(90 * time.Second):
		c.t.Error("colony up did not stop within 90 s of an interrupt")
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	c.cmd = nil
	logs, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	for _, path := range logs {
		testproc.CheckLog(c.t, path)
	}
}

// dump logs the last lines of what each part of the fleet said.
func (c *colony) dump() {
	c.t.Helper()
	c.dumped = true
	c.t.Logf("colony up:\n%s", lastLines([]byte(c.out.String())))
	logs, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	for _, path := range logs {
		b, _ := os.ReadFile(path)
		c.t.Logf("%s:\n%s", filepath.Base(path), lastLines(b))
	}
}

// lastLines returns the end of a log: a report is cut by the program that shows it, and the failure
// has to stay in it.
func lastLines(b []byte) []byte {
	const most = 2000
	if len(b) <= most {
		return b
	}
	b = b[len(b)-most:]
	return b[bytes.IndexByte(b, '\n')+1:]
}

// cli runs the command line and returns its answer and exit code.
func (c *colony) cli(args ...string) (out string, code int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin("colony"), args...)
	cmd.Env = append(append(os.Environ(), "COLONY_URL=http://"+c.http), c.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		c.t.Fatal(err)
	}
	return stdout.String() + stderr.String(), code
}

// must runs the command line and wants it to succeed.
func (c *colony) must(args ...string) string {
	c.t.Helper()
	out, code := c.cli(args...)
	if code != 0 {
		c.t.Fatalf("colony %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// refused runs the command line and wants exit code and words in the answer.
func (c *colony) refused(code int, words []string, args ...string) {
	c.t.Helper()
	out, got := c.cli(args...)
	if got != code {
		c.t.Errorf("colony %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			c.t.Errorf("colony %s: %q is not in the answer:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// get fetches a path of the API into v.
func (c *colony) get(path string, v any) error {
	resp, err := http.Get("http://" + c.http + "/api/v1" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	return json.Unmarshal(b, v)
}

func (c *colony) deployment(name string) (fleet.Deployment, error) {
	var d fleet.Deployment
	err := c.get("/deployments/"+site+"/"+name, &d)
	return d, err
}

// installed waits until a deployment is INSTALLED at a version.
func (c *colony) installed(name, version string) {
	c.t.Helper()
	c.eventually(2*time.Minute, name+" "+version+" is INSTALLED", func() error {
		d, err := c.deployment(name)
		if err != nil {
			return err
		}
		for _, n := range d.Nodes {
			if n.State != lifecycle.Installed || n.AppVersion != version {
				return fmt.Errorf("node %s: %s %s %s %s", n.Node, n.State, n.AppVersion, n.Code, n.Message)
			}
		}
		if len(d.Nodes) == 0 {
			return fmt.Errorf("on no node: %s", d.Problem)
		}
		return nil
	})
}

// history returns the states that a deployment passed through on the node, oldest first.
func (c *colony) history(name string) []lifecycle.State {
	c.t.Helper()
	var h struct {
		Transitions []fleet.Transition `json:"transitions"`
	}
	if err := c.get("/deployments/"+site+"/"+name+"/history", &h); err != nil {
		c.t.Fatal(err)
	}
	var states []lifecycle.State
	for i := len(h.Transitions) - 1; i >= 0; i-- {
		states = append(states, h.Transitions[i].To)
	}
	return states
}

// greeting fetches the page that the sample serves on the gateway.
func (c *colony) greeting() (string, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", c.port))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func (c *colony) greets(want string) {
	c.t.Helper()
	c.eventually(time.Minute, "the sample says "+want, func() error {
		got, err := c.greeting()
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

// pid returns the process of a part: co, lo, en, postgres, containerd.
func (c *colony) pid(name string) (int, error) {
	b, err := os.ReadFile(filepath.Join(c.dir, "run", name+".pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// kill ends parts the hard way, and waits until each is back as another process.
func (c *colony) kill(names ...string) {
	c.t.Helper()
	old := map[string]int{}
	for _, name := range names {
		pid, err := c.pid(name)
		if err != nil {
			c.t.Fatal(err)
		}
		old[name] = pid
	}
	for _, pid := range old {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.t.Fatal(err)
		}
	}
	for name, was := range old {
		c.eventually(time.Minute, name+" is started again", func() error {
			pid, err := c.pid(name)
			if err == nil && pid == was {
				err = errors.New("the old process id")
			}
			return err
		})
	}
}

func (c *colony) nodeOnline() (bool, error) {
	var n fleet.Node
	err := c.get("/nodes/"+site+"/"+node, &n)
	return n.Online, err
}

// eventually waits until check returns nil.
func (c *colony) eventually(within time.Duration, what string, check func() error) {
	c.t.Helper()
	testpart.Within(c.t, within, what, check)
}
