package httpserver

import (
	"net"

	"golang.org/x/net/netutil"

	"github.com/colonyfleet/colony/internal/descriptors"
)

const (
	// leastConns and mostConns bound the connections of a listener, for any number of descriptors of the
	// process.
	leastConns, mostConns = 64, 1 << 14
	// share is the part of the descriptors of the process that one listener may take.
	share = 4
)

// Bound returns a listener that has no more connections open at a time than a quarter of the descriptors of the process, so that clients of HTTP cannot take those
// which a broker, a database and files need. Further clients wait in the system's queue. It goes below a listener of TLS: the server knows a connection
// of TLS by its type.
func Bound(l net.Listener) net.Listener { return bound(l, connections(descriptors.Limit())) }

func bound(l net.Listener, most int) net.Listener { return netutil.LimitListener(l, most) }

func connections(limit uint64) int {
	return int(min(max(limit/share, leastConns), mostConns))
}
