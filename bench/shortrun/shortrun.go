// Package shortrun runs a benchmark in its short form, for the test of the benchmark.
package shortrun

import (
	"bytes"
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// grace is how long before the end of the test a program has to say where it is, in time for the test to pass that on.
const grace = 20 * time.Second

// Output builds the program of the working directory, runs it with -short and further
// arguments, for as long as the test may take, and returns what it prints. It fails the test where the program fails, with
// what it wrote to the error output: where it takes too long, that is what its goroutines wait for.
func Output(t *testing.T, args ...string) []byte {
	t.Helper()
	program := t.TempDir() + "/bench"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-grace))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-short"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = grace / 2
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	return out
}
