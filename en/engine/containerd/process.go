package containerd

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// initName is the program that is the first process of a container with init, and
	// that writes down what one with a terminal says.
	initName = "colony-init"
	// initTarget is where a container finds it; Docker has its own there.
	initTarget = "/sbin/docker-init"
)

// initProgram returns the path of colony-init: it lies beside the agent.
func (e *Engine) initProgram(c engine.Container, key string) (string, error) {
	path := e.opts.Init
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), initName)
	}
	if _, err := os.Stat(path); err != nil {
		return "", engine.Errorf(protocol.Incompatible, "container %s has %s, for which the node needs the program %s: install it at %s: %w", c.ID, key, initName, path, err)
	}
	return path, nil
}

// withInit puts the init process before a container's program.
func (e *Engine) withInit(c engine.Container, args []string) ([]string, []specs.Mount, error) {
	if !c.Spec.Init {
		return args, nil, nil
	}
	path, err := e.initProgram(c, "init")
	if err != nil {
		return nil, nil, err
	}
	mount := specs.Mount{Type: "bind", Source: path, Destination: initTarget, Options: []string{"bind", "ro"}}
	return append([]string{initTarget, "--"}, args...), []specs.Mount{mount}, nil
}

// taskIO says where the output of a container goes and where its input comes from. Like
// its log, both must do without the agent.
func (e *Engine) taskIO(key string, c engine.Container) (cio.Creator, error) {
	scheme, path, args := "file", e.logFile(key), map[string]string(nil)
	if c.Spec.TTY {
		program, err := e.initProgram(c, "tty")
		if err != nil {
			return nil, err
		}
		scheme, path, args = "binary", program, map[string]string{"log": e.logFile(key)}
	}
	uri, err := cio.LogURIGenerator(scheme, path, args)
	if err != nil {
		return nil, err
	}
	config := cio.Config{Terminal: c.Spec.TTY, Stdout: uri.String(), Stderr: uri.String()}
	if c.Spec.TTY {
		config.Stderr = "" // a terminal has one output
	}
	if c.Spec.Stdin {
		// The shim waits for somebody to write to it, and nobody does.
		config.Stdin = e.dir(key, "stdin")
		if err := syscall.Mkfifo(config.Stdin, 0o600); err != nil && !os.IsExist(err) {
			return nil, err
		}
	}
	return func(string) (cio.IO, error) { return detached{config}, nil }, nil
}

// detached is the IO of a task in which this process has no part.
type detached struct{ config cio.Config }

func (d detached) Config() cio.Config { return d.config }
func (detached) Cancel()              {}
func (detached) Wait()                {}
func (detached) Close() error         { return nil }
