package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The tests are also the autopaho bridge that they measure, see newAutopaho.
	if len(os.Args) > 1 && os.Args[1] == autopahoText {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := runAutopaho(ctx, os.Args[2:]); err != nil {
			say(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// atOnce is how many trials share the machine.
const atOnce = 6

// Every scenario in its short form. Colony must lose, double and reorder nothing; the results of
// the others are printed and fail no test. The bridge with default settings is left to make
// bench-link: it mostly waits.
func TestLinks(t *testing.T) {
	t.Parallel()
	b := short()
	b.program, b.messages, b.flow = "../../bin/colony", 600, 600
	sorts, err := pickKinds("colony,colony-data,bridge-tuned,autopaho-file,autopaho-memory")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.check(sorts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	turn := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, k := range sorts { // Colony's first
		for _, s := range scenarios() {
			wg.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				r, err := b.measure(t.Context(), s, k)
				if err != nil {
					t.Errorf("scenario %d on %s: %v", s.number, k.name, err)
					return
				}
				t.Logf("%d %s: %s", s.number, s.name, strings.Join(r.cells(), " | "))
				if strings.HasPrefix(k.name, "colony") {
					judge(t, b, r)
				}
			})
		}
	}
	wg.Wait()
}

func judge(t *testing.T, b *bench, r *result) {
	t.Helper()
	if !r.faultless() {
		t.Errorf("scenario %d, %s: of %d acknowledged messages %d are lost, %d still on their way, %d doubled, %d out of order; absent are %s\n%s",
			r.scenario.number, r.scenario.name, r.accepted, r.lost, r.late, r.doubled, r.disordered, strings.Join(r.absent, ", "), r.logs)
	}
	if r.accepted < b.messages {
		t.Errorf("scenario %d, %s: %d messages were acknowledged, want %d", r.scenario.number, r.scenario.name, r.accepted, b.messages)
	}
}

// What a publisher encodes is what the consumer of the peers reads.
func TestReport(t *testing.T) {
	t.Parallel()
	for _, seq := range []uint32{1, 2, 70_000} {
		n, got, err := parseReport(report(17, seq))
		if err != nil || n != 17 || got != seq {
			t.Errorf("report %d of node 17 reads as %d of node %d, %v", seq, got, n, err)
		}
	}
}
