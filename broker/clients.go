package broker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/internal/refusals"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/layers"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/term"
	"github.com/colonyfleet/colony/protocol"
)

// A ClientInfo is what the broker knows of one client.
type ClientInfo = access.ClientInfo

// Clients returns all clients that have a connection or a session that is stored, by client id.
func (b *Broker) Clients() []ClientInfo {
	connected := b.connected()
	at := make(map[string]int, len(connected))
	out := make([]ClientInfo, 0, len(connected))
	for _, s := range connected {
		at[s.client] = len(out)
		out = append(out, ClientInfo{
			Client: s.client, Identity: s.id.Name, Connected: s.begun, Listener: s.conn.listener.Name, Remote: s.conn.remote(), MQTT: s.version(),
			KeepAlive: int(s.keepAlive), Received: s.received.Load(), Sent: s.sent.Load(), Waiting: s.conn.Pending(),
			Subscriptions: int(s.subscribed.Load()),
		})
	}
	if b.store != nil {
		for _, stored := range b.store.All() {
			i, known := at[stored.Client()]
			if !known {
				i = len(out)
				out = append(out, ClientInfo{Client: stored.Client(), Identity: stored.Owner().Name})
			}
			info := stored.Info()
			c := &out[i]
			c.Stored, c.Expiry, c.Away, c.Subscriptions = true, info.Expiry, info.Away, info.Subscriptions
			c.Queued, c.QueuedBytes = info.Messages, info.Bytes
		}
	}
	slices.SortFunc(out, func(x, y ClientInfo) int { return cmp.Compare(x.Client, y.Client) })
	return out
}

// Disconnect ends the connection of a client with the reason 0x98, administrative action, and with
// endSession its session too. A client may connect again at once. The error is of kind NotFound if
// the client has neither, or only a session while endSession is false.
func (b *Broker) Disconnect(client string, endSession bool) error {
	return b.release(client, endSession, func(string) bool { return true })
}

// DisconnectOf is Disconnect for a client of an identity: the connection and the session that another identity has
// with its client id by now stay, and are as if there were none.
func (b *Broker) DisconnectOf(identity, client string, endSession bool) error {
	return b.release(client, endSession, func(owner string) bool { return owner == identity })
}

// release ends what a client has, of the owners that are meant.
func (b *Broker) release(client string, endSession bool, meant func(owner string) bool) error {
	late := time.NewTimer(takeover)
	defer late.Stop()
	for found := false; ; found = true {
		b.mu.RLock()
		s := b.sessions[client]
		b.mu.RUnlock()
		if s != nil && meant(s.id.Name) && (endSession || !found) {
			code := packets.ErrAdministrativeAction
			code.Reason = "disconnected by an operator"
			b.disconnect(s.conn, code)
			select {
			case <-s.done:
				continue
			case <-late.C:
				return protocol.Errorf(protocol.Unavailable, "client %s: its connection has not ended within %s: try again", client, takeover)
			}
		}
		var stored *sessions.Session
		if b.store != nil {
			if stored = b.store.Get(client); stored != nil && !meant(stored.Owner().Name) {
				stored = nil
			}
		}
		switch {
		case stored != nil && endSession:
			if !b.store.EndIfAway(stored) { // it has a connection again
				continue
			}
		case stored != nil && !found:
			return protocol.Errorf(protocol.NotFound, "client %s: it has no connection, but a session of %s: colony site broker kick --session (session=true in the API) ends that", client, stored.Owner().Name)
		case !found:
			return protocol.Errorf(protocol.NotFound, "client %s: it has neither a connection nor a session: see the list of clients", client)
		}
		return nil
	}
}

// Recheck ends the connections that may not last any more as Access says, such as those whose
// certificates were revoked, with the reason 0x87, not authorized. It returns how many.
func (b *Broker) Recheck() (ended int) {
	for _, s := range b.connected() {
		if err := term.Check(b.o.Access, s.conn.listener.Name, layers.TLS(s.conn.Raw())); err != nil {
			b.log.Warn("connection ended: it may not last any more", "client", refusals.Shortened(s.client), "listener", s.conn.listener.Name, "remote", s.conn.remote(), "err", err)
			code := packets.ErrNotAuthorized
			code.Reason = "its account, or what it may do, has changed"
			b.disconnect(s.conn, code)
			ended++
		}
	}
	return ended
}

// connected returns the sessions that have a connection.
func (b *Broker) connected() []*session {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Values(b.sessions))
}
