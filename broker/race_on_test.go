//go:build race

package broker_test

// raceFactor is how much more memory the race detector makes a program take.
const raceFactor = 5
