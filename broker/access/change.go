package access

// A Change is that a client has connected, or that its connection has ended.
type Change struct {
	ConnectInfo
	// Identity is the client's identity. ClientID is the one that it uses.
	Identity Identity
	// Connected says that it has connected; otherwise Ended says why the connection ended, and Clean that the client
	// disconnected.
	Connected, Clean bool
	Ended            error
}
