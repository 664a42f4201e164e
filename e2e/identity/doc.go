// Package identity plays machines that prove who they are: a CO, an LO and agents as they are
// wired, with certificates that they get by the way that production uses. It has tests alone.
package identity
