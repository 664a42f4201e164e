//go:build unix

package listen

import (
	"math"
	"syscall"
)

// descriptors is how many the process may have.
func descriptors() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return math.MaxUint64
	}
	return uint64(l.Cur)
}
