//go:build unix

package descriptors

import (
	"math"
	"syscall"
)

// Limit is how many descriptors the process may have.
func Limit() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return math.MaxUint64
	}
	return uint64(l.Cur)
}
