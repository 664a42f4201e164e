// Package e2e holds the scenarios that Colony is for, played on the built
// binaries with a real PostgreSQL, a real containerd and real containers. They
// are the documentation of behaviour: read the tests.
package e2e
