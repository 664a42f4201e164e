package programs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
)

// marker begins the environment variable that each program of Open has, with the id of its process. Its children inherit the variable,
// so that they are found when the program is ended. A child that clears its environment is not found.
const marker = "COLONY_SESSION="

// signal sends a signal to what runs in a container by the program of an id, itself and its children, and returns how many
// of them there are.
func (p *Programs) signal(ctx context.Context, t client.Task, id string, signal syscall.Signal) (found int, err error) {
	clean, cancel := p.o.ToTheEnd(ctx)
	defer cancel()
	list, err := t.Pids(clean)
	if err != nil {
		return 0, err
	}
	for _, each := range list {
		if signalMarked(int(each.Pid), marker+id, signal) {
			found++
		}
	}
	return found, nil
}

// signalMarked sends a signal to a process that has a variable in its environment, and reports whether it has. The process is held by a descriptor
// meanwhile, so that the signal does not go to another one that gets its number.
func signalMarked(pid int, variable string, signal syscall.Signal) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false // it has ended
	}
	defer unix.Close(fd) //nolint:errcheck // it was only opened
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !bytes.Contains(append([]byte{0}, environment...), append(append([]byte{0}, variable...), 0)) {
		return false
	}
	return unix.PidfdSendSignal(fd, signal, nil, 0) == nil
}
