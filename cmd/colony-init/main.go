// Command colony-init does two small things for containers, where the agent must not be needed:
//
//	colony-init -- program arguments…
//
// is the first process of a container with init: it runs the program, forwards signals to it, reaps
// orphaned processes, and exits with the code of the program.
//
//	colony-init log file
//
// appends to file what a container writes to its terminal. The container's shim starts it and gives
// it the terminal as descriptor 3 and a pipe to close once it is ready as 5.
package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The exit codes of a shell for a program that cannot be run, or is not there.
const (
	exitNotRunnable = 126
	exitNotFound    = 127
)

func main() {
	switch {
	case len(os.Args) > 2 && os.Args[1] == "--":
		os.Exit(supervise(os.Args[2:]))
	case len(os.Args) == 3 && os.Args[1] == "log":
		if err := log(os.Args[2]); err != nil {
			complain(err)
			os.Exit(1)
		}
	default:
		complain(errors.New("usage: colony-init -- program arguments… | colony-init log file"))
		os.Exit(2)
	}
}

func complain(err error) { _, _ = os.Stderr.WriteString("colony-init: " + err.Error() + "\n") }

// supervise runs a program to its end and returns its exit code.
func supervise(args []string) int {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	path, err := exec.LookPath(args[0])
	if err != nil {
		complain(err)
		return exitNotFound
	}
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		complain(&os.PathError{Op: "run", Path: path, Err: err})
		return exitNotRunnable
	}
	for sig := range signals {
		switch number, ok := sig.(syscall.Signal); {
		case !ok, number == syscall.SIGURG: // Go's own
		case number == syscall.SIGCHLD:
			if code, ended := reap(pid); ended {
				return code
			}
		default:
			_ = syscall.Kill(pid, number) // one that has ended is reaped next
		}
	}
	return 0
}

// reap takes the exits of all processes that have ended, and reports that of pid.
func reap(pid int) (code int, ended bool) {
	for {
		var status syscall.WaitStatus
		child, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || child == 0 {
			return code, ended
		}
		if child == pid {
			code, ended = status.ExitStatus(), true
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
		}
	}
}

// log appends the terminal to a file until the container ends.
func log(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := os.NewFile(5, "ready").Close(); err != nil {
		return err
	}
	// The container ends by its own signal, and this by the end of the terminal.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	_, err = io.Copy(f, os.NewFile(3, "terminal"))
	return errors.Join(err, f.Close())
}
