// Package campaign tests what must be true of a whole fleet: a CO, an LO, an agent and containers,
// each a separate process. Meanwhile its disks rot, its clocks are wrong, its parts are killed in
// the middle of changes, and its tiers are of different releases.
//
// Each test has a short form, which `make test` runs, and a long one, behind a flag of its own,
// which `make chaos` runs. What is random follows from a seed that the test prints, so that a
// failure can be played again.
package campaign
