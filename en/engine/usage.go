package engine

import (
	"context"
	"time"
)

// A Meter measures what containers use. It may be used concurrently.
type Meter interface {
	// Usage returns what containers use that run, in the order of ids; one that does not run, or does not exist, is
	// left out. It costs little: an agent asks at each scrape of its metrics, for all containers.
	Usage(ctx context.Context, ids []ID) ([]Usage, error)
}

// A Usage is what a container uses. Counts are since its last start.
type Usage struct {
	ID ID
	// CPU is the time of processors that it has used.
	CPU time.Duration
	// Memory is what it uses now, in bytes, without file pages that were not used for a while.
	Memory uint64
	// MemoryLimit is how much it may use, in bytes; 0: there is no limit.
	MemoryLimit uint64
	// Read and Written are bytes of block devices. They mean nothing unless HasIO is set.
	Read, Written uint64
	HasIO         bool
	// Received and Sent are bytes of its network. They mean nothing unless HasNetwork is set: a
	// container on the host's network, or on that of another container, has none of its own.
	Received, Sent uint64
	HasNetwork     bool
}
