// Command colony-en is the agent of a gateway: the tier EN and nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/colonyfleet/colony/cli/doctor/node"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/configfile"
)

// version is the release in the file VERSION, with the commit where it is another one.
// The Makefile has the linker set it; a plain go build leaves dev.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "colony-en:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, diag io.Writer) error {
	flags := flag.NewFlagSet("colony-en", flag.ExitOnError)
	config := flags.String("config", "/etc/colony/en.yaml", "configuration file; its keys are in docs/configuration.md")
	level := slog.LevelInfo
	flags.TextVar(&level, "log-level", level, "debug, info, warn or error")
	show := flags.Bool("version", false, "print the version and end")
	asJSON := flags.Bool("json", false, "with doctor: write the report as JSON")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "Usage: colony-en [flags]          run the agent\n       colony-en doctor [flags]   check the agent and its machine, and say how to fix what is wrong\n")
		flags.PrintDefaults()
	}
	check := len(args) > 0 && args[0] == "doctor"
	if check {
		args = args[1:]
	}
	_ = flags.Parse(args) // it ends the process on an error
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("there is no command %q: want doctor before the flags, or none to run the agent", strings.Join(flags.Args(), " "))
	case check:
		return node.Main(ctx, *config, version, *asJSON, out)
	}
	if *show {
		_, err := fmt.Fprintln(out, "colony-en", version)
		return err
	}
	o := en.DefaultOptions()
	if err := configfile.Load(*config, &o); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // a gateway has more idle processor than memory
	}
	o.Version, o.Logger = version, slog.New(slog.NewJSONHandler(diag, &slog.HandlerOptions{Level: level}))
	agent, err := en.New(o)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", *config, err)
	}
	return agent.Run(ctx)
}
