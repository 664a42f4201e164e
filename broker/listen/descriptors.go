package listen

import (
	"math"

	"github.com/colonyfleet/colony/internal/descriptors"
)

// The descriptors that Connections leaves for files, and for what else the process has open.
const (
	leastLeft = 32
	mostLeft  = 1024
)

// Connections is how many connections may be open at once so that the process can still open files, such as those of
// stored messages. It is the number of descriptors that the process may have less an eighth of them; the eighth is at
// least 32 and at most 1,024.
func Connections() int { return connections(descriptors.Limit()) }

func connections(limit uint64) int {
	if limit > math.MaxInt32 { // none are counted
		return math.MaxInt
	}
	n := int(limit)
	return max(1, n-min(max(n/8, leastLeft), mostLeft))
}
