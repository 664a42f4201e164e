// Package cli is the command line of Colony: the roles (colony up, co, lo, en)
// and the client of the CO's API. Its exit codes are in the help of the root
// command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/apps"
	auditcmd "github.com/colonyfleet/colony/cli/audit"
	"github.com/colonyfleet/colony/cli/backups"
	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/commands"
	localcmd "github.com/colonyfleet/colony/cli/commands/local"
	"github.com/colonyfleet/colony/cli/data"
	"github.com/colonyfleet/colony/cli/doctor"
	"github.com/colonyfleet/colony/cli/groups"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
	"github.com/colonyfleet/colony/cli/images"
	"github.com/colonyfleet/colony/cli/keys"
	"github.com/colonyfleet/colony/cli/login"
	"github.com/colonyfleet/colony/cli/logs"
	"github.com/colonyfleet/colony/cli/proposals"
	"github.com/colonyfleet/colony/cli/removals"
	"github.com/colonyfleet/colony/cli/rollouts"
	"github.com/colonyfleet/colony/cli/sessions"
	"github.com/colonyfleet/colony/cli/tiers"
	"github.com/colonyfleet/colony/cli/tokens"
	report "github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/misspelt"
)

// The exit codes; the help of the root command lists them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
	exitFailed      = 6
)

// An app has the commands of the root package.
type app struct{ command.Env }

// A failure is a deployment that ended FAILED, or a rollback of one.
type failure struct{ error }

// Main runs the command line args and returns the exit code. version is shown by --version.
func Main(ctx context.Context, version string, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{command.Env{Out: os.Stdout, Err: os.Stderr}}
	root := a.root(version)
	root.SetArgs(args)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted before it was done")
	}
	own, ok := errors.AsType[*command.ExitError](err)
	if err != nil && (!ok || own.Err != nil) {
		fmt.Fprintln(a.Err, "colony:", err)
	}
	if ok {
		return own.Code
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if _, ok := errors.AsType[command.UsageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*client.AddressError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailed
	}
	if _, ok := errors.AsType[command.Failure](err); ok {
		return exitFailed
	}
	if _, ok := errors.AsType[*client.Unreachable](err); ok {
		return exitUnavailable
	}
	if p, ok := errors.AsType[*client.Problem](err); ok {
		switch p.Status {
		case http.StatusNotFound:
			return exitNotFound
		case http.StatusConflict, http.StatusPreconditionFailed:
			return exitConflict
		case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
			return exitUnavailable
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			return exitUsage
		}
	}
	return exitError
}

// local are the commands that call no API: a file of contexts that cannot be read does not keep them from their work.
var local = []string{"up", "down", "co", "lo", "en", "doctor", "lint", "version", "help", "completion"}

// choosing are the commands that choose a context: they work where the current one does not exist.
var choosing = []string{"login", "logout", "context"}

// resolve finds the CO that a command talks to, and its token.
func (a *app) resolve(cmd *cobra.Command) error {
	var family string // the first word after colony
	if words := strings.Fields(cmd.CommandPath()); len(words) > 1 {
		family = words[1]
	}
	if slices.Contains(local, family) {
		return nil
	}
	if file, err := cmd.Flags().GetString("ca"); err != nil || file != "" {
		if err := errors.Join(err, a.ReadCA(file)); err != nil {
			return err
		}
	}
	err := login.Resolve(&a.Env, cmd.Flags().Changed("url") || os.Getenv("COLONY_URL") != "")
	if errors.Is(err, login.ErrNoCurrent) && slices.Contains(choosing, family) {
		return nil
	}
	return err
}

func (a *app) root(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "colony",
		Short: "Run applications on a fleet of industrial gateways",
		Long: `Colony runs applications on gateways behind links that fail: a Central
Orchestrator (CO), a Local Orchestrator (LO) at each site, and an Execution Node
agent (EN) on each gateway. "colony up" runs all three on this machine.

Exit codes: 0 done; 1 error; 2 the command or its input is wrong; 3 not found;
4 conflict; 5 Colony or a part of it does not answer; 6 the deployment failed,
was rolled back, or was not done when the time to wait was over, or not each node did
what it was asked for. A command that is
interrupted before it is done ends with 1; one that runs until it is interrupted,
with 0.

A CO that wants a token gets that of the current context (colony login), or COLONY_TOKEN.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.Format != "table" && a.Format != "json" && a.Format != "yaml" {
				return command.Usage(fmt.Errorf("--output %q: want table, json or yaml", a.Format))
			}
			if a.Timeout <= 0 {
				return command.Usage(fmt.Errorf("--request-timeout %s: want more than 0", a.Timeout))
			}
			return a.resolve(cmd)
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return command.Usage(fmt.Errorf("%w%s (see %s --help)", err, meantFlag(cmd, err), cmd.CommandPath()))
	})
	address := os.Getenv("COLONY_URL")
	if address == "" {
		address = client.DefaultURL
	}
	root.PersistentFlags().StringVar(&a.URL, "url", address, "address of the CO's API (or COLONY_URL)")
	root.PersistentFlags().String("ca", os.Getenv("COLONY_CA"), "file with certificates (PEM) that the CO's own may come from, besides those that the system trusts (or COLONY_CA)")
	root.PersistentFlags().DurationVar(&a.Timeout, "request-timeout", 30*time.Second, "how long the CO may take to answer one request; an import may take 30 times as long")
	root.PersistentFlags().StringVarP(&a.Format, "output", "o", "table", "format of the answer: table, json or yaml")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	ofCO, ofLO := tiers.CO(&a.Env, version), tiers.LO(&a.Env, version)
	ofCO.AddCommand(append(backups.Commands(&a.Env, version), keys.Command(&a.Env), tokens.Local(&a.Env))...)
	ofLO.AddCommand(localcmd.Command(&a.Env))
	root.AddCommand(tiers.Up(&a.Env, version), tiers.Down(&a.Env), ofCO, ofLO, tiers.EN(&a.Env, version))
	root.AddCommand(apps.Command(&a.Env), apps.Lint(&a.Env), a.deployCommand(), a.deploymentCommand(), a.siteCommand(), data.Command(&a.Env), a.nodeCommand(), a.eventsCommand(), a.statusCommand())
	root.AddCommand(commands.Command(&a.Env), logs.Command(&a.Env), sessions.Exec(&a.Env), sessions.Forward(&a.Env), sessions.Command(&a.Env), commands.Restart(&a.Env), commands.Probe(&a.Env), commands.Pull(&a.Env))
	root.AddCommand(images.Command(&a.Env), proposals.Command(&a.Env), rollouts.Fleet(&a.Env), rollouts.Command(&a.Env), rollouts.Explain(&a.Env), removals.Volumes(&a.Env), identitycmd.CA(&a.Env), tokens.Command(&a.Env), groups.Command(&a.Env), auditcmd.Command(&a.Env), login.Command(&a.Env), login.Out(&a.Env), login.Contextual(&a.Env))
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, as --version does",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.Out, "colony version", version)
			return err
		},
	})
	root.AddCommand(doctor.Command(version, func(r report.Report) error {
		if done, err := a.Machine(r); done {
			return err
		}
		return r.WriteText(a.Out)
	}))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	wrapArgs(root)
	a.complete(root)
	return root
}

// wrapArgs makes a wrong number of arguments, or an unknown subcommand, a usage error.
func wrapArgs(cmd *cobra.Command) {
	check := cmd.Args
	if cmd.Name() == "help" {
		check = knownCommand
	}
	if cmd.HasSubCommands() && cmd.RunE == nil {
		// Without this cobra answers an unknown command with the help, and success.
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if check == nil && cmd.HasSubCommands() {
		check = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("there is no command %q here%s", args[0], meant(cmd, args[0]))
			}
			return nil
		}
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if check != nil {
			if err := check(c, args); err != nil {
				if !c.HasSubCommands() && c.Name() != "help" {
					err = wrongCount(c, len(args))
				}
				return command.Usage(fmt.Errorf("%w (see %s --help)", err, c.CommandPath()))
			}
		}
		// Cobra looks at these as well, and makes them an error like any other.
		if err := c.ValidateRequiredFlags(); err != nil {
			return command.Usage(fmt.Errorf("%w (see %s --help)", err, c.CommandPath()))
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

// wrongCount says which arguments a command takes.
func wrongCount(cmd *cobra.Command, got int) error {
	takes := strings.TrimSpace(strings.TrimPrefix(cmd.Use, cmd.Name()))
	if takes == "" {
		return fmt.Errorf("%s takes no arguments, and got %d", cmd.CommandPath(), got)
	}
	return fmt.Errorf("%s got %d arguments, want: %s %s", cmd.CommandPath(), got, cmd.CommandPath(), takes)
}

// meant is a question for the command whose name is like one that there is none of; "":
// none is.
func meant(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		return ": did you mean " + strings.Join(like, " or ") + "?"
	}
	return ""
}

// flagName is the name of a flag in the list of a command's flags.
var flagName = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)

// meantFlag is a question for the flag whose name is like one that a command has not; "": none is.
func meantFlag(cmd *cobra.Command, err error) string {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return ""
	}
	var names []string
	for _, m := range flagName.FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
		names = append(names, m[1])
	}
	first := misspelt.Nearest(name, names)
	if first == "" {
		return ""
	}
	like := "--" + first
	if second := misspelt.Nearest(name, slices.DeleteFunc(names, func(n string) bool { return n == first })); second != "" {
		like += " or --" + second
	}
	return ": did you mean " + like + "?"
}

// knownCommand refuses the name of a command that there is none of.
func knownCommand(cmd *cobra.Command, args []string) error {
	if found, rest, err := cmd.Root().Find(args); err != nil || found == nil || len(rest) > 0 {
		return fmt.Errorf("there is no command %q", strings.Join(args, " "))
	}
	return nil
}
