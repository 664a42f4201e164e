// Package backups has the commands that save a CO and restore it.
package backups

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/backup"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/configfile"
)

type flags struct {
	config     string
	noRegistry bool
	noRoot     bool
}

func (f *flags) add(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&f.config, "config", "", "configuration file of the CO (required)")
	cmd.Flags().BoolVar(&f.noRegistry, "no-registry", false, "leave out the OCI registry, which holds all packages and images that were pushed to the CO")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

func (f *flags) source(env *command.Env, version string) (backup.Source, error) {
	o := co.DefaultOptions()
	if err := configfile.Load(f.config, &o); err != nil {
		return backup.Source{}, command.Usage(err)
	}
	return backup.Source{
		Root: store.At(nil, store.Dir(o.StateDir)), NoRoot: f.noRoot, DatabaseURL: o.DatabaseURL, StateDir: o.StateDir, Registry: o.RegistryDir, Checkpoints: o.AuditCheckpoints(), Remote: o.Git.Remote, Config: f.config, Keys: o.Signing.Dir, KeyFiles: keys.Files(), Version: version, NoRegistry: f.noRegistry || o.RegistryObjects.Given(),
	}, nil
}

// Commands returns "backup" and "restore" of "colony co".
func Commands(env *command.Env, version string) []*cobra.Command {
	return []*cobra.Command{create(env, version), restore(env, version)}
}

func create(env *command.Env, version string) *cobra.Command {
	var f flags
	cmd := f.add(&cobra.Command{
		Use: "backup DIRECTORY", Short: "Save the CO into a directory", Args: cobra.ExactArgs(1),
		Long: `Save what the CO cannot get back from anywhere else into a directory, which is made
and must be empty: one consistent dump of its database, its OCI registry, its
configuration, its signing keys (the root key where it lies beside them), the root of
the fleet's certificates with its key, and the deployments repo where that is a path of
this machine. The CO may run meanwhile. The directory holds what the configuration holds,
also its passwords, and private keys: only its owner may read it, and its owner can
command the fleet, and be each of its machines.

With --no-root the root of the certificates stays out. Keep what colony ca export saves,
then: without it no machine of the fleet gets in again.

A registry in object storage (registryObjects) is backed up there.

It needs pg_dump of PostgreSQL, not older than the server.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.source(env, version)
			if err != nil {
				return err
			}
			m, err := backup.Create(cmd.Context(), s, args[0])
			if err != nil {
				return err
			}
			if done, err := env.Machine(m); done {
				return err
			}
			return env.Fields("Backup", args[0], "Database schema", strconv.Itoa(m.Schema), "PostgreSQL", strconv.Itoa(m.Postgres),
				"Deployments repo", saved(m.Repo, m.Remote+" is elsewhere, or empty: back it up there"), "OCI registry", saved(m.Registry, "left out: where it is in object storage, back it up there"), "Signing keys", saved(len(m.Keys) > 0, "there are none"),
				"Root of the certificates", saved(m.Root, noRoot(m)))
		},
	})
	cmd.Flags().BoolVar(&f.noRoot, "no-root", false, "leave out the root of the fleet's certificates: a restore on another machine then needs what colony ca export saved")
	return cmd
}

func saved(inside bool, otherwise string) string {
	if inside {
		return "saved"
	}
	return otherwise
}

// noRoot says why there is no root of the certificates in a backup.
func noRoot(m backup.Manifest) string {
	if m.RootFingerprint == "" {
		return "there is none"
	}
	return "left out: keep what colony ca export saves"
}

func restore(env *command.Env, version string) *cobra.Command {
	var f flags
	var c backup.Choices
	cmd := f.add(&cobra.Command{
		Use: "restore DIRECTORY", Short: "Restore the CO from a backup", Args: cobra.ExactArgs(1),
		Long: `Put a backup into the database and the directories that the configuration names.
The CO must not run, and the database must be empty, or be replaced with --replace;
where that fails it is left as it was. A deployments repo that has commits is left as
it is: the CO follows it. Files of the OCI registry are added to those that are there, and
signing keys are restored where signing.dir has none. The root of the fleet's certificates
is restored where there is none; where there is another one, or the backup was made with
--no-root and there is none, nothing is restored: the machines would be locked out.
The configuration is not put back: it is co.yaml in the backup. The tokens of people and
programs are revoked, as the backup does not know which of them were since: make new ones with
colony co token, or keep them with --keep-tokens.

After the start the CO goes on above what its sites hold, one event for each of them
says so (desired_epoch_raised), and what git has and the backup has not follows by itself.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.source(env, version)
			if err != nil {
				return err
			}
			r, err := backup.Restore(cmd.Context(), s, args[0], c)
			if err != nil {
				return err
			}
			if done, err := env.Machine(r); done {
				return err
			}
			repo := "restored"
			if r.RepoExisted || !r.Repo {
				repo = "left as it is"
			}
			root := noRoot(r.Manifest)
			switch {
			case r.RootExisted:
				root = "left as it is"
			case r.Root:
				root = "restored"
			}
			return env.Fields("Restored", args[0]+" of "+r.Created.Local().Format(time.DateTime), "Database schema", strconv.Itoa(r.Schema),
				"Deployments repo", repo, "Signing keys", restoredKeys(r), "Root of the certificates", root, "Tokens revoked", strconv.Itoa(r.TokensRevoked), "Requests dropped", strconv.Itoa(r.RequestsDropped), "Next", "start the CO")
		},
	})
	cmd.Flags().BoolVar(&c.Replace, "replace", false, "remove what the database holds now")
	cmd.Flags().BoolVar(&c.KeepTokens, "keep-tokens", false, "let the API's tokens count that counted when the backup was made, also those that were revoked since")
	return cmd
}

func restoredKeys(r backup.Restored) string {
	switch {
	case len(r.Keys) == 0:
		return "there are none"
	case r.KeysExisted:
		return "left as they are"
	default:
		return "restored"
	}
}
