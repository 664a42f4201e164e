package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	cokeys "github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/privatecontainerd"
	"github.com/colonyfleet/colony/internal/privatepg"
	"github.com/colonyfleet/colony/internal/shims"
)

// Ready begins the line that the supervisor prints once the fleet works.
const Ready = "Colony is up"

var errInterrupted = errors.New("stopped before it was up")

// A supervisor runs one fleet.
type supervisor struct {
	opts  Options
	dir   *stateDir
	say   *progress
	log   *slog.Logger
	parts []*supervised // in the order of starting
	anew  []machine     // that were removed, and have another key
	logs  []*logFile
	// running says that containers ran before this start, which has not come to its end yet.
	running bool
}

// Run runs the fleet until ctx ends, then stops all of it. It returns an error
// where a part does not come up, or does not stop, and where ctx ended before the
// fleet was up. A start that fails stops all but containers that ran before it: they
// go on, as while nothing of Colony runs.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	dir, err := openStateDir(o.StateDir)
	if err != nil {
		return err
	}
	s := &supervisor{opts: o, dir: dir, say: newProgress(o.Out)}
	defer func() {
		for _, l := range s.logs {
			err = errors.Join(err, l.Close())
		}
		err = errors.Join(err, dir.close())
	}()
	l, err := s.openLog("up")
	if err != nil {
		return err
	}
	s.log = slog.New(slog.NewJSONHandler(l, nil))
	if err := o.checkPorts(); err != nil {
		return err
	}
	began := time.Now()
	before, err := shims.Find(s.engineOptions().Address, s.engineOptions().Namespace)
	if err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		s.running = len(before) > 0 && ctx.Err() == nil
		stopErr := s.stop()
		if ctx.Err() != nil {
			return errors.Join(errInterrupted, stopErr)
		}
		return errors.Join(err, fmt.Errorf("the logs are in %s", dir.sub("logs")), stopErr)
	}
	s.guide(time.Since(began))
	<-ctx.Done()
	return s.stop()
}

func (s *supervisor) openLog(name string) (*logFile, error) {
	l, err := openLog(s.dir.sub("logs", name+".log"))
	if err == nil {
		s.logs = append(s.logs, l)
	}
	return l, err
}

// start brings the parts up in the order in which they need each other.
func (s *supervisor) start(ctx context.Context) error {
	s.say.say("Colony %s in %s", s.opts.Version, s.opts.StateDir)
	steps := []struct {
		what string
		skip bool
		do   func(context.Context) error
	}{
		{"start PostgreSQL", s.opts.DatabaseURL != "", s.startPostgres},
		{"start containerd", s.opts.Containerd != "", s.startContainerd},
		{"prepare the deployments repo", s.opts.GitRemote != "", s.prepareRepo},
		{"prepare the signing keys", false, s.prepareKeys},
		{"prepare the root of the certificates", false, s.prepareRoot},
		{"start the Central Orchestrator", false, s.startCO},
		{"check the keys of the site and its node", false, s.checkKeys},
		{"start the Local Orchestrator of site " + s.opts.Site, false, s.startLO},
		{"wait for the site to be online", false, s.waitSite},
		{"start the agent of node " + s.opts.Node, false, s.startEN},
		{"wait for the node to be online", false, s.waitNode},
		{"build and push the sample images and components", s.opts.Samples == "", s.opts.pushSamples},
		{"import the sample registry", s.opts.Samples == "", s.importSamples},
		{"deploy " + sampleApp + " and wait until it is INSTALLED", s.opts.Samples == "", s.runSample},
	}
	for _, step := range steps {
		if step.skip {
			continue
		}
		if err := s.say.run(ctx, step.what, step.do); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the parts, the last started first, and the containers after the
// agent, unless they go on; their mounts and networks are removed.
func (s *supervisor) stop() error {
	s.say.say("\nstopping ...")
	var err error
	for i := len(s.parts) - 1; i >= 0; i-- {
		k := s.parts[i]
		k.stop()
		if k.name == "en" && !s.running { // the containers outlive the agent, but not the fleet
			err = s.stopContainers()
		}
	}
	if s.running {
		s.say.say("containers that ran before this start go on; the next one that comes up adopts them")
	} else if s.opts.Containerd == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, privatecontainerd.Purge(ctx, s.dir.sub("containerd")))
	}
	if err == nil {
		s.say.say("stopped; the state is kept in %s", s.opts.StateDir)
	}
	return err
}

// haltTime is how long the containers may take to end, and their networks to go: half of it before
// they are killed. It is less than what colony down and systemd wait.
const haltTime = time.Minute

// stopContainers stops the containers that the agent left running. Volumes stay.
func (s *supervisor) stopContainers() error {
	ctx, cancel := context.WithTimeout(context.Background(), haltTime)
	defer cancel()
	e, err := engines.Open(s.engineOptions(), s.log)
	if err != nil {
		return fmt.Errorf("stop containers: %w", err)
	}
	defer e.Close()
	if err := e.Halt(ctx); err != nil {
		return fmt.Errorf("stop containers: %w", err)
	}
	return nil
}

// keep adds a part and starts it.
func (s *supervisor) keep(ctx context.Context, name string, start func(context.Context) (part, error)) (*supervised, error) {
	k := &supervised{name: name, start: start, pidDir: s.dir.sub("run"), log: s.log}
	if err := k.keep(ctx); err != nil {
		return nil, err
	}
	s.parts = append(s.parts, k)
	return k, nil
}

func (s *supervisor) startPostgres(ctx context.Context) error {
	_, err := s.keep(ctx, "postgres", func(ctx context.Context) (part, error) {
		c, err := privatepg.Start(ctx, privatepg.Options{Dir: s.dir.sub("postgres"), DieWithParent: true, Logger: s.log})
		if err != nil {
			return nil, err
		}
		s.opts.DatabaseURL = c.URL("postgres")
		return c, nil
	})
	return err
}

func (s *supervisor) startContainerd(ctx context.Context) error {
	_, err := s.keep(ctx, "containerd", func(ctx context.Context) (part, error) {
		d, err := privatecontainerd.Start(ctx, privatecontainerd.Options{Dir: s.dir.sub("containerd"), DieWithParent: true, Logger: s.log})
		if err != nil {
			return nil, err
		}
		return daemon{d}, nil
	})
	return err
}

// daemon is a private containerd as a part.
type daemon struct{ *privatecontainerd.Daemon }

// Err returns nil: privatecontainerd does not report why the daemon ended; its log does.
func (daemon) Err() error { return nil }

func (s *supervisor) prepareRepo(ctx context.Context) error {
	if _, err := exec.LookPath("git"); err != nil {
		return fmt.Errorf("%w: run scripts/setup to install it", err)
	}
	s.opts.GitRemote = s.dir.sub("git", "deployments.git")
	if err := os.MkdirAll(filepath.Dir(s.opts.GitRemote), 0o755); err != nil {
		return err
	}
	return git.InitBare(ctx, s.opts.GitRemote, "main")
}

// prepareKeys makes the keys with which the CO signs, unless they are there: also in a state
// directory of a release that did not sign.
func (s *supervisor) prepareKeys(context.Context) error {
	_, err := cokeys.Init(s.dir.sub("keys"))
	return err
}

// startTier writes the configuration of a tier and keeps its process running. Before each start
// of it, ready is called, unless it is nil.
func (s *supervisor) startTier(ctx context.Context, role string, config any, ready func(context.Context) error) (*supervised, error) {
	path, err := s.writeConfig(role, config)
	if err != nil {
		return nil, err
	}
	l, err := s.openLog(role)
	if err != nil {
		return nil, err
	}
	program, args, err := s.opts.command(role)
	if err != nil {
		return nil, err
	}
	args = append(args, "--config", path, "--log-level", s.opts.LogLevel)
	return s.keep(ctx, role, func(ctx context.Context) (part, error) {
		if ready != nil {
			if err := ready(ctx); err != nil {
				return nil, err
			}
		}
		return startChild(l, program, args...)
	})
}

// command returns the program of a role. The agent is colony-en where it lies
// beside this program: the same small binary that gateways run.
func (o Options) command(role string) (program string, args []string, err error) {
	program = o.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return "", nil, fmt.Errorf("find this program: %w", err)
		}
	}
	if role != "en" {
		return program, []string{role}, nil
	}
	agent := o.Agent
	if agent == "" {
		agent = filepath.Join(filepath.Dir(program), "colony-en")
	}
	if _, err := os.Stat(agent); err != nil && o.Agent == "" {
		return program, []string{role}, nil
	}
	return agent, nil, nil
}

func (s *supervisor) startCO(ctx context.Context) error {
	k, err := s.startTier(ctx, "co", s.coConfig(), nil)
	if err != nil {
		return err
	}
	return s.wait(ctx, k, time.Minute, func(ctx context.Context) error { return get(ctx, s.opts.HTTPAddr, "/readyz") })
}

func (s *supervisor) startLO(ctx context.Context) error {
	k, err := s.startTier(ctx, "lo", s.loConfig(), func(ctx context.Context) error { return s.admit(ctx, s.theLO()) })
	if err != nil {
		return err
	}
	return s.wait(ctx, k, time.Minute, func(ctx context.Context) error { return get(ctx, s.opts.LOHTTPAddr, "/readyz") })
}

func (s *supervisor) startEN(ctx context.Context) error {
	_, err := s.startTier(ctx, "en", s.enConfig(), func(ctx context.Context) error { return s.admit(ctx, s.theEN()) })
	return err
}

func (s *supervisor) waitSite(ctx context.Context) error {
	return s.wait(ctx, s.parts[len(s.parts)-1], time.Minute, s.online(s.theLO(), s.opts.siteOnline))
}

func (s *supervisor) waitNode(ctx context.Context) error {
	return s.wait(ctx, s.parts[len(s.parts)-1], time.Minute, s.online(s.theEN(), s.opts.nodeOnline))
}

func (s *supervisor) importSamples(ctx context.Context) error {
	source, err := s.opts.sampleRegistry(ctx, s.dir.sub("git", "apps"))
	if err != nil {
		return err
	}
	return s.opts.importSamples(ctx, source+"#main")
}

func (s *supervisor) runSample(ctx context.Context) error {
	if err := s.opts.deploySample(ctx); err != nil {
		return err
	}
	return s.wait(ctx, nil, 2*time.Minute, s.opts.sampleInstalled)
}

// wait calls check until it returns nil. It gives up after the given time, or
// when the part ended several times meanwhile.
func (s *supervisor) wait(ctx context.Context, k *supervised, within time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	var failed chan error
	if k != nil {
		failed = k.failed
	}
	ends := 0
	for {
		last := check(ctx)
		if last == nil {
			return nil
		}
		select {
		case err := <-failed:
			if ends++; ends == 3 {
				return fmt.Errorf("it ended three times: %w: see its log in %s", err, s.dir.sub("logs", k.name+".log"))
			}
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, last)
		case <-tick.C:
		}
	}
}

// get succeeds where an HTTP GET is answered with 200.
func get(ctx context.Context, addr, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", path, resp.Status)
	}
	return nil
}
