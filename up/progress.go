package up

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// A progress prints one line for each step, with how long the step took. Its methods
// may be called concurrently.
type progress struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
	step  string
}

func newProgress(out io.Writer) *progress { return &progress{out: out} }

// begin announces a step.
func (p *progress) begin(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step, p.began = fmt.Sprintf(format, args...), time.Now()
	fmt.Fprintf(p.out, "  %-58s", p.step+" ...")
}

// done prints that the step succeeded.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, " ok  %5.1f s\n", time.Since(p.began).Seconds())
	p.step = ""
}

// run announces a step, does it and prints its outcome.
func (p *progress) run(ctx context.Context, what string, step func(context.Context) error) error {
	p.begin("%s", what)
	if err := step(ctx); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		how := " FAILED"
		if ctx.Err() != nil {
			how = " interrupted"
		}
		fmt.Fprintln(p.out, how)
		p.step = ""
		return fmt.Errorf("%s: %w", what, err)
	}
	p.done()
	return nil
}

// say writes a line of its own.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}
