// Command co measures the CO's record on a real PostgreSQL, with a fleet in it. It measures the time and the pages of each read of the API, and
// how they grow with the fleet; the time of desired states and of writes to the deployments repo; and how many events a second are committed,
// with their processor time. It prints tables in Markdown, and never fails on a number.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/colonyfleet/colony/bench/machine"
	"github.com/colonyfleet/colony/co/db/dbtest"
)

// A load says how much is measured.
type load struct {
	fleet   dbtest.Size
	repeats int            // of each read
	ingest  time.Duration  // of each case
	sites   []int          // that send at the same time
	watch   int            // streams of server-sent events
	cases   *regexp.Regexp // of the names of the cases of ingest that are measured
	commits int            // of the deployments repo that is written to
}

var full = load{
	fleet: dbtest.Size{Sites: 10_000, Nodes: 100, Deployments: 5, Events: 2_000_000}, repeats: 50,
	ingest: 8 * time.Second, sites: []int{1, 64, 1000, 8000}, watch: 1000, commits: 100_000,
}

var short = load{
	fleet: dbtest.Size{Sites: 100, Nodes: 20, Deployments: 5, Events: 2000}, repeats: 3,
	ingest: 200 * time.Millisecond, sites: []int{1, 64}, watch: 10, commits: 200,
}

func main() {
	quick := flag.Bool("short", false, "a few seconds with a small fleet, to see that it runs")
	scale := flag.Float64("scale", 1, "the part of the fleet of 10,000 sites that is seeded")
	only := flag.String("only", "", "reads, ingest, desired or writes; empty: all")
	cases := flag.String("cases", "", "a pattern for the cases of ingest: 1000x200 is 1,000 sites with batches of 200; empty: all")
	commits := flag.Int("commits", 0, "how many commits the deployments repo of -only writes has; 0: 100,000")
	dir := flag.String("dir", "", "where the database lies; empty: a temporary directory")
	flag.Parse()
	l := full
	if *quick {
		l = short
	}
	l.fleet, l.commits = l.fleet.Scale(*scale), cmp.Or(*commits, l.commits)
	var err error
	if l.cases, err = regexp.Compile(*cases); err != nil {
		fmt.Fprintf(os.Stderr, "-cases %q is not a regular expression: %v\n", *cases, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, l, *only, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures, and writes the tables.
func run(ctx context.Context, l load, only, dir string, out io.Writer) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "colony-bench-co-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }() // a temporary directory
		if err := os.Chmod(dir, 0o755); err != nil {                 // the server's user passes through
			return err
		}
	}
	fmt.Fprintf(out, "%d cores, %s, %s.\n\n", runtime.NumCPU(), machine.Processor(), runtime.Version())
	tenth := l
	tenth.fleet = l.fleet.Scale(0.1)
	if only == "" || only == "desired" {
		if err := desiredOnly(ctx, filepath.Join(dir, "desired"), l, out); err != nil || only == "desired" {
			return err
		}
	}
	if only == "" || only == "writes" {
		if err := measureWrites(ctx, l, filepath.Join(dir, "writes"), out); err != nil || only == "writes" {
			return err
		}
	}
	var small, large []measured
	if only != "ingest" {
		if small, err = one(ctx, filepath.Join(dir, "tenth"), tenth, "reads", out); err != nil {
			return err
		}
	}
	large, err = one(ctx, filepath.Join(dir, "whole"), l, only, out)
	if only != "ingest" {
		writeReads(out, l.fleet, large, small)
	}
	return err
}

// one measures a fleet on a server of its own.
func one(ctx context.Context, dir string, l load, only string, out io.Writer) (reads []measured, err error) {
	s, err := startServer(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	began := time.Now()
	if err := s.seed(ctx, l.fleet); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d sites seeded in %s\n", l.fleet.Sites, time.Since(began).Round(time.Second))
	if only != "ingest" {
		if reads, err = measureReads(ctx, s, l); err != nil {
			return nil, err
		}
	}
	if only == "reads" {
		return reads, nil
	}
	return reads, measureIngest(ctx, s, l, out)
}

// desiredOnly measures the desired state on a server without another fleet.
func desiredOnly(ctx context.Context, dir string, l load, out io.Writer) (err error) {
	s, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return measureDesired(ctx, s, l, dir, out)
}

// percentile returns the value below which a part of the sorted values lies.
func percentile(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*part))]
}

func sorted(list []time.Duration) []time.Duration {
	slices.Sort(list)
	return list
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
