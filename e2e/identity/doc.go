// Package identity tests machines with certificates: a CO, an LO and agents as they are wired, with
// certificates that they get as in production. It has tests alone.
package identity
