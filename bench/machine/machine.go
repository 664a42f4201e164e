// Package machine says on what a benchmark ran.
package machine

import (
	"os"
	"strings"
)

// Processor returns the model of the machine's processor, as Linux names it.
func Processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	_, rest, _ := strings.Cut(string(b), "model name\t: ")
	model, _, _ := strings.Cut(rest, "\n")
	return model
}
