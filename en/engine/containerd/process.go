package containerd

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// initName is the program that is the first process of a container with init, and
// that writes down what one with a terminal says.
const initName = "colony-init"

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

// taskIO says where the output of a container goes and where its input comes from. Like
// its log, both must do without the agent.
func (e *Engine) taskIO(key string, c engine.Container) (cio.Creator, error) {
	stdout, stderr, err := e.logs.Begin(key, c.ID)
	if err != nil {
		return nil, err
	}
	// A path that is no URI, of a file that exists: the shim appends to it. By file:// both streams would go to one.
	config := cio.Config{Stdout: stdout, Stderr: stderr}
	if c.Spec.TTY {
		program, err := e.initProgram(c, "tty")
		if err != nil {
			return nil, err
		}
		uri, err := cio.LogURIGenerator("binary", program, map[string]string{"log": stdout})
		if err != nil {
			return nil, err
		}
		config = cio.Config{Terminal: true, Stdout: uri.String()} // a terminal has one output
	}
	if c.Spec.Stdin {
		// The shim waits for a writer, and there is none.
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
