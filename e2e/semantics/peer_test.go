//go:build peer

package semantics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/doctable"
	"github.com/colonyfleet/colony/protocol"
)

// peerSettle is how long a check may take to pass under Podman. One that passes later is
// reported as a difference that is not listed, and so is seen.
const peerSettle = 15 * time.Second

// podman runs Podman and its front end for Compose, with storage and networks of its own.
type podman struct {
	dir string
	env []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	for _, program := range []string{"podman", "podman-compose"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: install it (apt-get install podman podman-compose)", err)
		}
	}
	p := &podman{dir: t.TempDir()}
	write := func(name, content string) string {
		path := filepath.Join(p.dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	networks := filepath.Join(p.dir, "networks")
	if err := os.Mkdir(networks, 0o700); err != nil {
		t.Fatal(err)
	}
	p.env = append(os.Environ(),
		"CONTAINERS_STORAGE_CONF="+write("storage.conf", fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(p.dir, "root"), filepath.Join(p.dir, "run"))),
		"CONTAINERS_CONF="+write("containers.conf", fmt.Sprintf("[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n[network]\nnetwork_config_dir = %q\n", networks)),
	)
	t.Cleanup(func() {
		for _, args := range [][]string{{"rm", "-af", "-t", "0"}, {"pod", "rm", "-af"}, {"network", "prune", "-f"}, {"volume", "rm", "-af"}, {"rmi", "-af"}} {
			if out, err := p.run("", "podman", args...); err != nil {
				t.Errorf("podman %q: %v\n%s", args, err, out)
			}
		}
	})
	p.build(t)
	return p
}

// run runs a program in a directory, and returns its output.
func (p *podman) run(dir, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = p.env, dir, time.Second
	return cmd.CombinedOutput()
}

// build makes the images that newNode has, from nothing.
func (p *podman) build(t *testing.T) {
	t.Helper()
	for name, lines := range map[string]string{
		"tools": "ENV COLOUR=red\n", "volumes": "VOLUME /data\n", "broken": "VOLUME /data\nCMD [\"exit\", \"1\", \"broken\"]\n",
		"checked": "HEALTHCHECK CMD [\"/toolbox\", \"append\", \"/count\"]\n", "sick": "HEALTHCHECK CMD [\"/toolbox\", \"cat\", \"/none\"]\n",
	} {
		dir := filepath.Join(p.dir, "build", name)
		for path, content := range map[string][]byte{
			"Containerfile": []byte("FROM scratch\nCOPY fs /\nENTRYPOINT [\"/toolbox\"]\nCMD [\"wait\"]\n" + lines),
			"fs/toolbox":    containerdtest.Toolbox(t), "fs/bin/sh": nil, "fs/data/seed": []byte("seed\n"), "fs/etc/passwd": nil,
		} {
			if path == "fs/bin/sh" {
				content = containerdtest.Toolbox(t)
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, path), content, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := p.run(dir, "podman", "build", "--format", "docker", "-t", "localhost/"+name, "."); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
}

// A project is a file that Podman runs.
type project struct {
	*podman
	name, dir string
}

// up writes the file and starts its containers.
func (p *podman) up(name string, s scenario) (*project, error) {
	j := &project{p, name, filepath.Join(p.dir, name)}
	files := maps.Clone(s.files)
	if files == nil {
		files = map[string]string{}
	}
	files["compose.yaml"] = s.compose
	for path, content := range files {
		path = filepath.Join(j.dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			return nil, err
		}
	}
	if out, err := p.run(j.dir, "podman-compose", "-p", name, "-f", "compose.yaml", "up", "-d"); err != nil {
		return j, fmt.Errorf("up: %w: %s", err, last(out))
	}
	return j, nil
}

func (j *project) down() error {
	out, err := j.run(j.dir, "podman-compose", "-p", j.name, "-f", "compose.yaml", "down", "-v", "-t", "0")
	if err != nil {
		err = fmt.Errorf("down: %w: %s", err, last(out))
	}
	return err
}

// last returns the last lines of an output.
func last(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

// find returns the containers of a service, or of all.
func (j *project) find(service string) ([]string, error) {
	args := []string{"ps", "-aq", "--filter", "label=io.podman.compose.project=" + j.name}
	if service != "" {
		args = append(args, "--filter", "label=com.docker.compose.service="+service)
	}
	out, err := j.run("", "podman", args...)
	return strings.Fields(string(out)), err
}

// id returns the container of a service.
func (j *project) id(service string) (string, error) {
	all, err := j.find(service)
	if err != nil || len(all) == 0 {
		return "", fmt.Errorf("no container %s (%v)", service, err)
	}
	return all[0], nil
}

func (j *project) containers() (int, error) {
	all, err := j.find("")
	return len(all), err
}

func (j *project) exec(service string, command []string) (engine.ExecResult, error) {
	id, err := j.id(service)
	if err != nil {
		return engine.ExecResult{}, err
	}
	out, err := j.run("", "podman", append([]string{"exec", id}, command...)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() < 125 {
		return engine.ExecResult{ExitCode: int32(exit.ExitCode()), Output: out}, nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, last(out))
	}
	return engine.ExecResult{Output: out}, err
}

func (j *project) log(service string) ([]byte, error) {
	id, err := j.id(service)
	if err != nil {
		return nil, err
	}
	return j.run("", "podman", "logs", id)
}

func (j *project) stop(service string) error {
	id, err := j.id(service)
	if err != nil {
		return err
	}
	_, err = j.run("", "podman", "stop", id)
	return err
}

func (j *project) status(service string) (engine.Status, error) {
	id, err := j.id(service)
	if err != nil {
		return engine.Status{}, err
	}
	out, err := j.run("", "podman", "inspect", id)
	if err != nil {
		return engine.Status{}, fmt.Errorf("inspect: %w: %s", err, last(out))
	}
	var all []struct {
		State struct {
			Running               bool
			ExitCode              int32
			StartedAt, FinishedAt time.Time
		}
		RestartCount    uint32
		NetworkSettings struct {
			IPAddress string
			Networks  map[string]struct{ IPAddress string }
			Ports     map[string][]struct{ HostPort string }
		}
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&all); err != nil || len(all) != 1 {
		return engine.Status{}, fmt.Errorf("inspect: %d containers: %v", len(all), err)
	}
	c := all[0]
	st := engine.Status{State: engine.Exited, ExitCode: c.State.ExitCode, StartedAt: c.State.StartedAt, ExitedAt: c.State.FinishedAt, Restarts: c.RestartCount, IP: c.NetworkSettings.IPAddress}
	if c.State.Running {
		st.State = engine.Running
	}
	for _, n := range c.NetworkSettings.Networks {
		st.IP = n.IPAddress
	}
	for _, on := range c.NetworkSettings.Ports {
		for _, p := range on {
			host, err := strconv.ParseUint(p.HostPort, 10, 16)
			if err != nil {
				return st, err
			}
			st.Ports = append(st.Ports, protocol.Port{Host: uint16(host)})
		}
	}
	return st, nil
}

// TestPeer runs the scenarios under Podman and its front end as well, and compares: where that
// behaves otherwise, differences says why.
func TestPeer(t *testing.T) {
	p := newPodman(t)
	var mu sync.Mutex
	found := map[string]error{}
	list := scenarios(t)
	work := make(chan int)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for i := range work {
				s := list[i]
				err := p.compare(fmt.Sprintf("p%d", i), s)
				mu.Lock()
				found[s.name] = err
				mu.Unlock()
				t.Logf("%s: %v", s.name, err)
			}
		})
	}
	for i := range list {
		work <- i
	}
	close(work)
	workers.Wait()
	var same, notCompared []string
	rows := "| scenario | why Podman does otherwise |\n|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(found)) {
		diff, listed := differences[name]
		switch err := found[name]; {
		case errors.Is(err, errNotCompared):
			notCompared = append(notCompared, name)
		case err == nil && listed && !diff.depends:
			t.Errorf("%s is the same under Podman: drop it from differences", name)
		case err == nil:
			same = append(same, name)
		case !listed:
			t.Errorf("%s differs under Podman: %v: find out who is right, and list it in differences", name, err)
		}
		if listed {
			rows += fmt.Sprintf("| %s | %s |\n", name, diff.reason)
		}
	}
	for name := range differences {
		if _, ok := found[name]; !ok {
			t.Errorf("differences has %q, which is no scenario", name)
		}
	}
	rows += fmt.Sprintf("\nThe same are %d: %s.\n\nNot compared, because their checks look at what Colony alone reports, are %d: %s.\n",
		len(same), strings.Join(same, "; "), len(notCompared), strings.Join(notCompared, "; "))
	if os.Getenv("UPDATE") == "" {
		return // it is of one machine
	}
	doctable.Table{Doc: "../../docs/compose.md", Name: "peer", Content: rows, Command: "UPDATE=1 make compose-peer"}.Check(t, true)
}

// compare runs a scenario under Podman.
func (p *podman) compare(name string, s scenario) error {
	j, err := p.up(name, s)
	if j != nil {
		defer func() { _ = j.down() }() // what it leaves is removed at the end
	}
	if err != nil {
		return err
	}
	deadline := time.Now().Add(peerSettle)
	for {
		err := s.check(&deployed{peer: j})
		if err == nil || errors.Is(err, errNotCompared) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// A difference is what Podman does otherwise.
type difference struct {
	reason string
	// depends says that it is so on some machines.
	depends bool
}

// differences are the scenarios that Podman 4.3.1 with podman-compose 1.0.3 does not pass, with
// the reason.
var differences = map[string]difference{
	"CDI device":                          {"Podman looks in `/etc/cdi` and `/var/run/cdi` alone, and the files of the test lie elsewhere", false},
	"HOSTNAME":                            {"Podman gives it to the first process alone, not to what is executed in the container", false},
	"HOSTNAME of another":                 {"the front end asks for an alias as well, which Podman refuses without a bridge", false},
	"UDP port on IPv6":                    {"a network of Podman without IPv6 publishes on IPv4 alone; Docker on both, as Colony", false},
	"address of IPv6 in extra_hosts":      {"Podman takes `name:address` alone, and the front end passes `name=address` on", false},
	"addresses":                           {"the front end refuses networks that are named default", false},
	"addresses on networks apart":         {"the front end does not read the mapping of `networks` of a service", false},
	"aliases":                             {"the front end refuses networks that are named default", false},
	"check of the image":                  {"Podman has systemd run the checks, which did not run where this was made", true},
	"check of the image with other times": {"Podman has systemd run the checks, which did not run where this was made", true},
	"configs":                             {"the front end does not read `configs`", false},
	"container_name":                      {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"content of a config":                 {"the front end does not read `configs`", false},
	"count of gpus":                       {"the front end does not read `gpus`", false},
	"cpuset":                              {"the front end does not read `cpuset`", false},
	"devices":                             {"the front end does not read the long form", false},
	"dns":                                 {"without a plugin for names the containers have the resolv.conf of the node; the front end reads `dns` and `dns_search` for the project", true},
	"dns_opt":                             {"without a plugin for names the containers have the resolv.conf of the node; the front end reads `dns` and `dns_search` for the project", true},
	"dns_search":                          {"without a plugin for names the containers have the resolv.conf of the node; the front end reads `dns` and `dns_search` for the project", true},
	"domainname":                          {"the front end does not read `domainname`", false},
	"driver of gpus":                      {"the front end does not read `gpus`", false},
	"driver of reserved devices":          {"the front end does not read `devices` of reservations", false},
	"driver_opts":                         {"the front end gives the volume to Podman without `driver_opts`", false},
	"env_file":                            {"the front end does not read the long form", false},
	"extra_hosts":                         {"Podman takes `name:address` alone, and the front end passes `name=address` on", false},
	"gpus":                                {"the front end does not read `gpus`", false},
	"group of a config":                   {"the front end does not read `configs`", false},
	"group_add":                           {"the front end does not read `group_add`", false},
	"host network":                        {"the front end asks for an alias as well, which Podman refuses without a bridge", false},
	"ids of gpus":                         {"the front end does not read `gpus`", false},
	"ids of reserved devices":             {"the front end does not read `devices` of reservations", false},
	"include":                             {"the front end does not read `include`", false},
	"init":                                {"Podman wants catatonit for it, which is not installed", true},
	"init and tty":                        {"Podman wants catatonit for it, which is not installed", true},
	"internal":                            {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"interval":                            {"Podman has systemd run the checks, which did not run where this was made", true},
	"ipc":                                 {"the front end does not read `ipc`", false},
	"limits":                              {"the front end does not read `pids` of the limits", false},
	"links":                               {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"memswap_limit":                       {"the front end does not read `memswap_limit`", false},
	"mode of a secret":                    {"the front end binds the file as it is", false},
	"mode of a tmpfs":                     {"the front end writes the mode in decimal, which Podman refuses", false},
	"mode of a tmpfs over a directory":    {"Podman refuses the options `uid` and `gid`; Docker takes them", false},
	"name without regard to case":         {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"network of a service":                {"the front end asks for an alias as well, which Podman refuses without a bridge", false},
	"no network":                          {"the front end asks for an alias as well, which Podman refuses without a bridge", false},
	"nocopy":                              {"the front end does not read `nocopy` of the long form", false},
	"nocopy, short":                       {"the front end refuses the option", false},
	"not required":                        {"the front end does not read `profiles`", false},
	"oom_score_adj":                       {"the front end does not read `oom_score_adj`", false},
	"owner of a config":                   {"the front end does not read `configs`", false},
	"owner of a relative path":            {"Podman binds the directory of the file itself, which belongs to whoever made it", false},
	"owner of a tmpfs":                    {"Podman refuses the options `uid` and `gid`; Docker takes them", false},
	"pid":                                 {"the front end does not read `pid`", false},
	"pids_limit":                          {"the front end does not read `pids_limit`", false},
	"ports on IPv6":                       {"a network of Podman without IPv6 publishes on IPv4 alone; Docker on both, as Colony", false},
	"ports on all addresses":              {"a network of Podman without IPv6 publishes on IPv4 alone; Docker on both, as Colony", false},
	"profiles":                            {"the front end does not read `profiles`", false},
	"replicas":                            {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"reserved device":                     {"the front end does not read `devices` of reservations", false},
	"retries":                             {"Podman has systemd run the checks, which did not run where this was made", true},
	"scale":                               {"the front end takes it on its command line alone", false},
	"secrets":                             {"the front end does not read secrets of variables", false},
	"separated networks":                  {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"service names":                       {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"several networks of one service":     {"Podman finds names by the plugin dnsname, which Debian does not have for it", true},
	"shared alias":                        {"the front end refuses networks that are named default", false},
	"start interval":                      {"Podman has systemd run the checks, which did not run where this was made", true},
	"start period":                        {"Podman has systemd run the checks, which did not run where this was made", true},
	"stop_grace_period":                   {"the front end uses it for its own `stop` alone, and leaves the container with 10 s", false},
	"subpath":                             {"the front end does not read `subpath`", false},
	"swap without a bound":                {"the front end does not read `memswap_limit`", false},
	"sysctls":                             {"the front end passes the names of a mapping on without their values", false},
	"test by a shell":                     {"Podman has systemd run the checks, which did not run where this was made", true},
	"ulimits":                             {"Podman sets it after it gave up the right to; Docker and Colony before", true},
	"values of variables":                 {"the front end takes an empty variable for a set one in `${A:-x}`, against the specification", false},
	"variable of a config":                {"the front end does not read `configs`", false},
	"variables of include":                {"the front end does not read `include`", false},
	"volume of the image under a tmpfs":   {"a tmpfs of Podman begins with what the image has there; that of Docker is empty", false},
	"volumes_from":                        {"the front end does not read `volumes_from`", false},
	"whole node, read-only":               {"a read-only bind of Podman is not recursive; that of Docker is, since release 25", false},
	"working_dir that the image lacks":    {"Podman refuses it; Docker makes it", false},
}
