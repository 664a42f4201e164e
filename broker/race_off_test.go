//go:build !race

package broker_test

const raceFactor = 1
