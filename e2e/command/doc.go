// Package command has scenarios of commands: a real LO and real agents, whose CO is played by the test with the keys of a test.
package command
