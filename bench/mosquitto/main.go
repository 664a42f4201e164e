// Command mosquitto runs the tests that Mosquitto's source package has for its broker,
// test/broker/*.py, against Colony's broker. It takes Mosquitto's place in them: called by
// the name mosquitto it reads Mosquitto's arguments and the part of its configuration file
// that a broker of Colony has too. What fails for a reason stands in broker/DESIGN.md, with
// the reason; the run fails where the outcome of a test is another one.
//
// scripts/mosquitto-suite fetches the source and calls it. Nothing of Mosquitto is part of
// this repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitCode(err))
	}
}

func run(ctx context.Context) error {
	if filepath.Base(os.Args[0]) == "mosquitto" {
		return serve(ctx, os.Args[1:])
	}
	var s suite
	var pattern string
	flag.StringVar(&s.source, "source", "", "the unpacked source package of Mosquitto; its test folder is written to")
	flag.StringVar(&s.reasons, "reasons", "broker/DESIGN.md", "the file with the table of tests that fail for a reason")
	flag.StringVar(&pattern, "run", "", "run only the tests whose names this regular expression matches")
	flag.IntVar(&s.jobs, "jobs", 4, "how many tests run at once")
	flag.BoolVar(&s.verbose, "v", false, "show what the failed tests print")
	flag.Parse()
	if s.source == "" || s.jobs < 1 {
		return fmt.Errorf("bench/mosquitto: -source is needed, and -jobs of 1 or more: see scripts/mosquitto-suite")
	}
	var err error
	if s.only, err = regexp.Compile(pattern); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	return s.run(ctx)
}
