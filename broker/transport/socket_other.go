//go:build !unix

package transport

import "syscall"

// readsNow says that readNow does not read.
const readsNow = false

// readNow finds nothing: a connection is ended without what has arrived.
func readNow(uintptr, []byte) (int, error) { return 0, syscall.EAGAIN }

// writeNow is never called, as readNow does not read.
func writeNow(uintptr, []byte) (int, error) { return 0, syscall.EAGAIN }

// hungUp does not know whether the peer of a socket sends nothing more.
func hungUp(uintptr) bool { return false }
