package access

import "time"

// A ClientInfo is what the broker knows of one client: of its connection, its session, or
// both.
type ClientInfo struct {
	Client   string // client id
	Identity string // name of its identity

	// Of the connection; zero while there is none.
	Connected        time.Time
	Listener, Remote string // name of the broker's listener, and the client's address
	MQTT             byte   // 5, or 4 for MQTT 3.1.1
	KeepAlive        int    // seconds; 0: none
	Received, Sent   int64  // messages on this connection
	Waiting          int64  // bytes that wait in memory for the client

	// Of the session.
	Subscriptions int
	Stored        bool      // it outlives its connection
	Expiry        uint32    // seconds after the end of the connection; 1<<32-1: never
	Away          time.Time // since when there is no connection; zero: there is one
	Queued        int       // messages that wait in it, the unacknowledged ones among them
	QueuedBytes   int64     // size of the messages that wait for it
}
