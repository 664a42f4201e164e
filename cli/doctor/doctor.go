// Package doctor is the command colony doctor: the checks of a CO and of an LO, and those
// of an EN, which package node has.
package doctor

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/cli/doctor/node"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
	"github.com/colonyfleet/colony/lo"
)

// CO returns the checks of a CO. A new one is a function and an entry here.
func CO(o co.Options) []doctor.Check {
	running := host.Running(o.HTTP, filepath.Join(o.StateDir, "deployments", "lock"))
	mqtt := o.MQTT
	if len(o.Broker.URLs) > 0 {
		mqtt = "" // it does not listen then
	}
	proof := node.Proof{Key: "identity", Set: o.Identity.Enrol != "", External: len(o.Broker.URLs) > 0, Dir: store.Dir(o.StateDir), Name: identity.OfCO()}
	secrets := append(append(keys(o.Listeners), o.Broker.PasswordFile, o.Git.CredentialFile, o.Access.Key, o.RegistryObjects.CredentialFile), proof.Secrets()...)
	return []doctor.Check{
		{Name: "configuration", Run: node.Configuration(o.Validate)},
		{Name: "disk", Run: host.Disk(o.StateDir, 0)},
		{Name: "clock", Run: host.Clock(o.StateDir)},
		{Name: "permissions", Run: host.Permissions(o.StateDir, secrets...)},
		{Name: "identity", Run: node.Identity(proof)},
		{Name: "certificate", Run: certificate(o)},
		{Name: "kernel", Run: host.Kernel(false)},
		{Name: "database", Run: database(o.DatabaseURL)},
		{Name: "git", Run: deployments(o.Git)},
		{Name: "objects", Run: objectStorage(o.RegistryObjects)},
		{Name: "broker", Run: host.Broker("the external broker", "broker.urls", o.Broker.URLs)},
		{Name: "ports", Run: host.Ports(running, addresses(o.Listeners, own(o.HTTP, mqtt, o.Identity.Enrol, o.Identity.MQTT, o.Identity.HTTP)...)...)},
		{Name: "sites", Run: listed(o, running, "/api/v1/unenrolled-sites", judgeUnenrolled)},
		{Name: "pending", Run: listed(o, running, "/api/v1/pending-nodes", judgeWaiting)},
		{Name: "revocations", Run: listed(o, running, "/api/v1/pending-revocations", judgePending)},
		{Name: "parts", Run: parts(o, running)},
		{Name: "damage", Run: host.Damaged(o.StateDir)},
	}
}

// LO returns the checks of an LO. A new one is a function and an entry here.
func LO(o lo.Options) []doctor.Check {
	running := host.Running(o.HTTP, filepath.Join(o.StateDir, "journal", "lock"))
	proof := node.Proof{
		Key: "co.enrol", Set: len(o.CO.Enrol) > 0, Dir: store.Dir(o.StateDir), Name: identity.OfLO(o.Site),
		TokenFile: o.TokenFile(), Token: "colony site add " + string(o.Site), Open: o.Identity.MQTT == "", Keys: o.Identity.Key,
	}
	need := o.JournalBytes + o.CacheBytes + o.RetainedBytes
	return []doctor.Check{
		{Name: "configuration", Run: node.Configuration(o.Validate)},
		{Name: "disk", Run: func(ctx context.Context) []doctor.Finding {
			return host.Disk(o.StateDir, need-host.Size(ctx, o.StateDir))(ctx)
		}},
		{Name: "clock", Run: host.Clock(o.StateDir)},
		{Name: "permissions", Run: host.Permissions(o.StateDir, append(keys(o.Listeners), proof.Secrets()...)...)},
		{Name: "identity", Run: node.Identity(proof)},
		{Name: "kernel", Run: host.Kernel(false)},
		{Name: "ports", Run: host.Ports(running, addresses(o.Listeners, own(o.HTTP, o.MQTT, o.Identity.Enrol, o.Identity.MQTT, o.Identity.HTTP)...)...)},
		{Name: "co", Run: host.Broker("the broker of the CO", "co.mqtt", o.CO.MQTT)},
		{Name: "enrolment", Run: host.Broker("the enrolment at the CO", "co.enrol", node.Enrolment(o.CO.Enrol))},
		{Name: "api", Run: host.HTTP("the API of the CO", "co.http", health(o))},
		{Name: "registry", Run: proof.HTTP("the registry of the CO", "co.http", below(o.CO.HTTP, "/v2/"), identity.OfCO())},
		{Name: "backlog", Run: backlog(o, running)},
		{Name: "damage", Run: host.Damaged(o.StateDir)},
	}
}

// own are the addresses that have keys of their own.
func own(http, mqtt, enrol, machines, https string) []host.Address {
	return []host.Address{
		{Key: "http", Address: http},
		{Key: "mqtt", Address: mqtt},
		{Key: "identity.enrol", Address: enrol},
		{Key: "identity.mqtt", Address: machines},
		{Key: "identity.http", Address: https},
	}
}

// addresses are those that a tier listens on by TCP, with their keys.
func addresses(listeners []listen.Spec, out ...host.Address) []host.Address {
	for _, l := range listeners {
		if l.Network != listen.Unix {
			out = append(out, host.Address{Key: "listeners " + l.Name, Address: l.Address})
		}
	}
	return out
}

// keys are the files of the listeners' private keys.
func keys(listeners []listen.Spec) []string {
	var out []string
	for _, l := range listeners {
		out = append(out, l.Key)
	}
	return out
}

// Command returns colony doctor. show writes a report in the format that the user chose.
func Command(version string, show func(doctor.Report) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a tier and its machine, and say how to fix what is wrong",
		Long: `Check the configuration of a tier, its machine and what it needs of others: disk,
clock, permissions, versions, ports, the tier above, what waits to be sent, and state
that was set aside because it was damaged. Run it on the machine of the tier, as the
user that the tier runs as, whether the tier runs or not: it changes nothing.

It ends with 1 if a check failed; warnings do not count. -o json is for programs.`,
	}
	for _, t := range []struct {
		use, short string
		checks     func(config string) ([]doctor.Check, error)
	}{
		{"co", "Check a Central Orchestrator", loadCO},
		{"lo", "Check the Local Orchestrator of a site", loadLO},
		{"en", "Check the agent of a gateway (colony-en doctor is the same)", loadEN},
	} {
		var config string
		sub := &cobra.Command{
			Use: t.use, Short: t.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				checks, err := t.checks(config)
				if err != nil {
					checks = []doctor.Check{{Name: "configuration", Run: node.Unreadable(err)}}
				}
				r := doctor.Run(cmd.Context(), t.use, version, checks)
				if err := show(r); err != nil {
					return err
				}
				return r.Err()
			},
		}
		sub.Flags().StringVar(&config, "config", "", "configuration file of the tier (required; see docs/configuration.md)")
		_ = sub.MarkFlagRequired("config")
		cmd.AddCommand(sub)
	}
	return cmd
}

func loadCO(config string) ([]doctor.Check, error) {
	o := co.DefaultOptions()
	err := configfile.Load(config, &o)
	o.Logger = slog.New(slog.DiscardHandler)
	return CO(o), err
}

func loadLO(config string) ([]doctor.Check, error) {
	o := lo.DefaultOptions()
	err := configfile.Load(config, &o)
	o.Logger = slog.New(slog.DiscardHandler)
	return LO(o), err
}

func loadEN(config string) ([]doctor.Check, error) {
	o, err := node.Load(config)
	return node.Checks(o), err
}
