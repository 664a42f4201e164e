package tpm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
)

// timeout is how long an emulator may take for a command. The kernel has its own bounds for devices.
const timeout = time.Minute

// connect opens a device, or connects to the Unix socket of an emulator.
func connect(path string) (transport.TPMCloser, error) {
	// The errors are worded and not wrapped: fs.ErrNotExist of a device would be taken for that of a key.
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no %s: the machine has no TPM 2.0, its firmware has it switched off, or the kernel has no driver for it", path)
	case err != nil:
		return nil, fmt.Errorf("TPM: %v", err)
	case info.Mode()&fs.ModeSocket != 0:
		c, err := net.DialTimeout("unix", path, timeout)
		if err != nil {
			return nil, fmt.Errorf("socket of the TPM: %v", err)
		}
		return transport.FromReadWriteCloser(emulator{c}), nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s may not be opened: add the user of this program to the group that has it, most often tss", path)
	case err != nil:
		return nil, fmt.Errorf("TPM: %v", err)
	}
	return transport.FromReadWriteCloser(f), nil
}

// emulator bounds each command and its answer.
type emulator struct{ net.Conn }

// Write sends a command, for whose answer the time counts from now on.
func (e emulator) Write(b []byte) (int, error) {
	if err := e.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	return e.Conn.Write(b)
}

var _ io.ReadWriteCloser = emulator{}
