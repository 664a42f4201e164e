// Package link holds what must be true of the way from a site's nodes to the
// CO's database, played with a real CO, a real LO and a real PostgreSQL by
// simulated nodes: over a link that is narrow, slow and lossy, over one that is
// idle, and while both ends are killed again and again.
//
// Each test has a short form, which `make test` runs, and a long one, behind a
// flag of its own.
package link
