//go:build !unix

package descriptors

import "math"

// Limit is how many descriptors the process may have: as many as there is memory for.
func Limit() uint64 { return math.MaxUint64 }
