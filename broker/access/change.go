package access

// A Change is that a client has connected, or that its connection has ended.
type Change struct {
	ConnectInfo
	// Identity is who the client is. ClientID is the one that it has.
	Identity Identity
	// Connected says that it has connected; otherwise Ended says why the connection ended, and Clean that the client
	// disconnected.
	Connected, Clean bool
	Ended            error
}
