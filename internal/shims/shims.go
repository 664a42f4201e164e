// Package shims finds and ends the shim processes of containerd on this machine.
// containerd forgets a shim whose removal was cut short; such a shim is seen only in
// the list of processes. Its functions may be called concurrently.
package shims

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A Shim is a shim process.
type Shim struct {
	Container string // the id of its container
	PID       int    // id of the process
	args      []string
}

// program is how the name of every shim for runc begins.
const program = "containerd-shim-"

// Find returns the shims of the containerd at the socket address that serve a
// namespace, in the order of their process ids.
func Find(address, namespace string) ([]Shim, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []Shim
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args := arguments(pid)
		if len(args) > 0 && strings.HasPrefix(filepath.Base(args[0]), program) &&
			value(args, "-address") == address && value(args, "-namespace") == namespace && value(args, "-id") != "" {
			out = append(out, Shim{value(args, "-id"), pid, args})
		}
	}
	slices.SortFunc(out, func(a, b Shim) int { return a.PID - b.PID })
	return out, nil
}

// arguments returns the command line of a process; nil of one that has ended.
func arguments(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimRight(b, "\x00")), "\x00")
}

func value(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// Kill kills a shim with the processes that it began: those of its container. One
// that has ended is killed.
func (s Shim) Kill() error {
	p, err := os.FindProcess(s.PID) // a handle of the process, so that no other one of this id is hit
	if err != nil {
		return fmt.Errorf("kill shim %d: %w", s.PID, err)
	}
	defer p.Release() // it holds no more than a descriptor
	if !slices.Equal(arguments(s.PID), s.args) {
		return nil
	}
	// It is stopped first, so that it starts nothing more and reaps nothing.
	if err := p.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop shim %d: %w", s.PID, err)
	}
	for _, child := range children(s.PID) {
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d of shim %d: %w", child, s.PID, err)
		}
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill shim %d: %w", s.PID, err)
	}
	return nil
}

// children returns the processes that a process began and that did not end. While
// their parent is stopped, their ids are not used again.
func children(pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var out []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}
