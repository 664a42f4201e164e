// Package down holds the tests of the way from the CO to a site: a real CO on
// PostgreSQL and a real LO, with a link between them that the tests take away.
package down
