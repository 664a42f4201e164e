// Package shortrun runs a benchmark in its short form, for the test of the benchmark.
package shortrun

import (
	"bytes"
	"context"
	"os/exec"
	"testing"
	"time"
)

// Output builds the program of the working directory, runs it with -short and further
// arguments, for five minutes at the most, and returns what it prints. It fails the test
// where the program fails, with what it wrote to the error output.
func Output(t *testing.T, args ...string) []byte {
	t.Helper()
	program := t.TempDir() + "/bench"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-short"}, args...)...)
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	return out
}
