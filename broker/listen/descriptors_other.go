//go:build !unix

package listen

import "math"

// descriptors is how many the process may have: as many as there is memory for.
func descriptors() uint64 { return math.MaxUint64 }
