// Package link tests the way from a site's nodes to the CO's database, with a real CO, a real LO, a
// real PostgreSQL and simulated nodes. It uses a link that is narrow, slow and lossy, and an idle
// one, and kills both ends repeatedly.
//
// Each test has a short form, which `make test` runs, and a long one, behind a flag of its own.
package link
