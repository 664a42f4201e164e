// Package state is what a broker stores of sessions that outlive their connections: the
// queue of a session, the changes of state as records of a log, the state itself as a
// checkpoint, and the clock that expiry is counted by. It does no I/O.
package state
