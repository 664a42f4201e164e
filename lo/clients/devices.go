package clients

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/devices"
	"github.com/colonyfleet/colony/protocol"
)

// A Broker is that of a site.
type Broker interface {
	// Clients returns the connected clients.
	Clients() []access.ClientInfo
	// DisconnectOf disconnects a client of an identity, and ends its session on demand; NotFound
	// where there is none.
	DisconnectOf(identity, client string, endSession bool) error
}

// Devices puts the accounts of a site's devices into force on the site's broker. Its methods may be called
// concurrently.
type Devices struct {
	access *devices.Access
	log    *slog.Logger

	mu     sync.Mutex // guards what follows
	broker Broker     // nil until Serve: there are no connections
	known  bool       // accounts were set
}

// NewDevices returns Devices that set the accounts of a.
func NewDevices(a *devices.Access, log *slog.Logger) *Devices { return &Devices{access: a, log: log} }

// Set puts accounts into force, and disconnects the clients that would not be let in as they were. One that
// is wrong is left out and logged.
func (d *Devices) Set(ctx context.Context, accounts []protocol.DeviceAccount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change, faults := d.access.Set(accounts)
	for _, f := range faults {
		d.log.ErrorContext(ctx, "a device account is not in force: correct the site's file", "err", f)
	}
	d.known = true
	if change.Ids || len(change.Outdated) > 0 {
		d.release(ctx, change.Outdated)
	}
}

// Serve has the clients of a broker released that accounts do not let in any more, from now on. It begins with the
// sessions that the broker stored in an earlier run, where accounts were set.
func (d *Devices) Serve(ctx context.Context, b Broker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broker = b
	if d.known {
		d.release(ctx, nil)
	}
}

// release disconnects the clients of users, and ends the sessions that their users may not have any more, so that
// nothing waits for an account that was removed, and its client ids are free. d.mu is held.
func (d *Devices) release(ctx context.Context, users []string) {
	if d.broker == nil {
		return
	}
	for _, c := range d.broker.Clients() {
		end := c.Stored && !d.access.MayHold(c.Identity, c.Client)
		if !end && !slices.Contains(users, c.Identity) {
			continue
		}
		// Another user may have the client id by now.
		switch err := d.broker.DisconnectOf(c.Identity, c.Client, end); {
		case protocol.KindOf(err) == protocol.NotFound:
		case err != nil:
			d.log.WarnContext(ctx, "a client whose device account was changed is still connected, or has its session", "client", c.Client, "err", err)
		case end:
			d.log.InfoContext(ctx, "session ended: its device account was removed, or may not have its client id any more", "client", c.Client, "user", c.Identity, "messages", c.Queued)
		}
	}
}
