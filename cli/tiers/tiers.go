// Package tiers has the commands that run a tier until the process is asked to stop, or
// all of them on one machine.
package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/lo"
)

// stopTimeout bounds the end of a role.
const stopTimeout = 15 * time.Second

// A tier is a CO, an LO or an EN.
type tier interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Failed() <-chan error
}

// roleFlags are the flags that every role has; the rest is in its configuration file.
type roleFlags struct {
	config, level string
}

func (f *roleFlags) add(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVar(&f.config, "config", "", "configuration file (required; see docs/configuration.md)")
	cmd.Flags().StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

// logger writes JSON lines.
func logger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, command.Usage(fmt.Errorf("--log-level %q: want debug, info, warn or error", level))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// CO returns "colony co".
func CO(env *command.Env, version string) *cobra.Command {
	var f roleFlags
	return f.add(&cobra.Command{
		Use: "co", Short: "Run a Central Orchestrator, save it and restore it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := co.DefaultOptions()
			return run(cmd.Context(), env, f, &o, func(log *slog.Logger) (tier, error) {
				o.Logger, o.Version = log, version
				return co.New(o)
			})
		},
	})
}

// LO returns "colony lo".
func LO(env *command.Env, version string) *cobra.Command {
	var f roleFlags
	return f.add(&cobra.Command{
		Use: "lo", Short: "Run the Local Orchestrator of a site, and work with its nodes on its machine",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := lo.DefaultOptions()
			return run(cmd.Context(), env, f, &o, func(log *slog.Logger) (tier, error) {
				o.Logger, o.Version = log, version
				return lo.New(o)
			})
		},
	})
}

// EN returns "colony en".
func EN(env *command.Env, version string) *cobra.Command {
	var f roleFlags
	return f.add(&cobra.Command{
		Use: "en", Short: "Run the agent of a gateway (colony-en is the same, smaller)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := en.DefaultOptions()
			return run(cmd.Context(), env, f, &o, func(log *slog.Logger) (tier, error) {
				o.Logger, o.Version = log, version
				return en.New(o)
			})
		},
	})
}

// run reads the configuration into options, makes the tier, and runs it until
// it fails or the process is asked to stop.
func run(ctx context.Context, env *command.Env, f roleFlags, options any, make func(*slog.Logger) (tier, error)) error {
	if err := configfile.Load(f.config, options); err != nil {
		return command.Usage(err)
	}
	log, err := logger(env.Err, f.level)
	if err != nil {
		return err
	}
	t, err := make(log)
	if err != nil {
		return command.Usage(err)
	}
	if err := t.Start(ctx); err != nil {
		return command.UntilInterrupted(err)
	}
	select {
	case <-ctx.Done():
	case err = <-t.Failed():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, t.Stop(stopCtx))
}
