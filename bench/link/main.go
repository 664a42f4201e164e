// Command link measures how many acknowledged messages are lost, doubled or reordered when the link
// of a site fails: on Colony's link, on a Mosquitto bridge and on an autopaho queue, with the same
// load, the same faults and a checker that knows every message that was acknowledged. Run it with
// make bench-link; go test plays a short form.
//
// Colony's messages are counted in PostgreSQL, where the CO stores them permanently; the others at
// a subscriber of the far broker with a session of its own. Times are never judged: the table shows
// losses, duplicates and reorderings.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-link:", err)
		os.Exit(1)
	}
}

// normal returns the settings of a full run.
func normal() *bench {
	return &bench{
		messages: 50_000, nodes: 100, window: 100, flow: 2_000, flap: 500 * time.Millisecond, stall: 15 * time.Second,
		patience: 20 * time.Second, slowPatience: 40 * time.Second, slowPing: 90 * time.Second, limit: time.Minute,
	}
}

// short returns the settings of a run of seconds per trial.
func short() *bench {
	b := normal()
	b.messages, b.nodes, b.flow, b.flap, b.stall = 1_000, 20, 1_000, 20*time.Millisecond, 2*time.Second
	b.patience, b.slowPatience, b.slowPing, b.limit = 15*time.Second, 35*time.Second, 60*time.Second, 30*time.Second
	return b
}

// run is the program without its surroundings.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == autopahoText {
		return runAutopaho(ctx, args[1:])
	}
	f := flag.NewFlagSet("bench-link", flag.ContinueOnError)
	which := f.String("scenario", "all", "numbers of scenarios, such as 1,4")
	links := f.String("link", "all", "names of links, such as colony,bridge-tuned")
	messages := f.Int("messages", 0, "messages of a trial (50,000; short: 1,000)")
	brief := f.Bool("short", false, "few messages and short faults")
	program := f.String("colony", "bin/colony", "the built program")
	markdown := f.String("markdown", "", "file that gets the tables too")
	if err := f.Parse(args); err != nil {
		return err
	}
	b := normal()
	if *brief {
		b = short()
	}
	if *messages > 0 {
		b.messages = *messages
	}
	todo, err := pickScenarios(*which)
	if err != nil {
		return err
	}
	sorts, err := pickKinds(*links)
	if err != nil {
		return err
	}
	if b.program, err = filepath.Abs(*program); err != nil {
		return fmt.Errorf("find colony: %w", err)
	}
	results, err := b.run(ctx, todo, sorts, out)
	if *markdown != "" && len(results) > 0 {
		var text strings.Builder
		writeMachine(&text, b)
		writeTable(&text, results)
		err = errors.Join(err, os.WriteFile(*markdown, []byte(text.String()), 0o644))
	}
	return err
}

// run plays the scenarios on the links and prints a line each and the tables.
func (b *bench) run(ctx context.Context, todo []scenario, sorts []kind, out io.Writer) (results []*result, err error) {
	if err := b.check(sorts); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	writeMachine(out, b)
	for _, s := range todo {
		for _, k := range sorts {
			began := time.Now()
			r, err := b.measure(ctx, s, k)
			if err != nil {
				return results, err
			}
			results = append(results, r)
			fmt.Fprintf(out, "%s  %s  (%.0f s)\n", s.name, strings.Join(r.cells(), " | "), time.Since(began).Seconds())
		}
	}
	writeTable(out, results)
	return results, nil
}

// check says what is missing on this machine for such links.
func (b *bench) check(sorts []kind) error {
	if _, err := os.Stat(b.program); err != nil {
		return fmt.Errorf("%w: build it with make build", err)
	}
	if slices.ContainsFunc(sorts, func(k kind) bool { return !strings.HasPrefix(k.name, "colony") }) {
		_, err := needMosquitto()
		return err
	}
	return nil
}

func pickScenarios(which string) (picked []scenario, err error) {
	all := scenarios()
	if which == "all" {
		return all, nil
	}
	for word := range strings.SplitSeq(which, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > len(all) {
			return nil, fmt.Errorf("-scenario %q: want numbers from 1 to %d, or all", word, len(all))
		}
		picked = append(picked, all[n-1])
	}
	return picked, nil
}

func pickKinds(names string) (picked []kind, err error) {
	all := kinds()
	if names == "all" {
		return all, nil
	}
	for word := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(k kind) bool { return k.name == word })
		if i < 0 {
			var known []string
			for _, k := range all {
				known = append(known, k.name)
			}
			return nil, fmt.Errorf("-link %q: want %s, or all", word, strings.Join(known, ", "))
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// moduleVersion is the version of a module in this program.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return path + " " + m.Version
			}
		}
	}
	return "unknown"
}
