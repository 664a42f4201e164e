// Package keys has the commands for the keys with which a CO signs what its sites run.
package keys

import (
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/protocol/sign"
)

// Command returns "colony co keys".
func Command(env *command.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make and rotate the keys with which a CO signs what its sites run", Args: cobra.NoArgs}
	cmd.AddCommand(create(env), show(env), rotate(env), retire(env), rotateRoot(env))
	return cmd
}

func create(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "init DIRECTORY", Short: "Make a directory of keys", Args: cobra.ExactArgs(1),
		Long: `Make a directory with a root key, a signing key, and the key set that the root key signs.
Where all that is there nothing is changed. Set signing.dir of the CO to the directory, and
rootKeyFile of each LO and EN to a copy of its root.pub. The root key (root.key) is needed to
rotate only: it may be moved to a place that is offline. Keep a backup of it: without it a lost
signing key is a visit to each machine.`,
		RunE: func(_ *cobra.Command, args []string) error {
			made, err := keys.Init(args[0])
			if err != nil {
				return err
			}
			if !made {
				env.Printf("%s: the keys are there already, and were left as they are", args[0])
			}
			return describe(env, args[0])
		},
	}
}

func show(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show DIRECTORY", Short: "Show the ids of the keys of a directory", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return describe(env, args[0]) },
	}
}

func rotate(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "rotate DIRECTORY", Short: "Make a new signing key; the former ones go on to count", Args: cobra.ExactArgs(1),
		Long: `Make a new signing key, and a key set with it and the former ones, signed by the root key.
Restart the CO then, each replica with the same files: it signs anew what its sites hold.
Nothing is compiled, and no container restarts. Once every site has followed,
"colony co keys retire" ends the former keys. A key that was stolen is retired at once.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := keys.Rotate(args[0]); err != nil {
				return err
			}
			return describe(env, args[0])
		},
	}
}

func retire(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "retire DIRECTORY", Short: "End all signing keys but the present one", Args: cobra.ExactArgs(1),
		Long: `Make a key set with the present signing key alone, signed by the root key. Restart the CO
then, each replica with the same files. What the former keys signed is adopted nowhere any
more by a machine that has the new key set; what runs goes on.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := keys.Retire(args[0]); err != nil {
				return err
			}
			return describe(env, args[0])
		},
	}
}

func rotateRoot(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "rotate-root DIRECTORY", Short: "Make a new root key, which the present one signs", Args: cobra.ExactArgs(1),
		Long: `Make a new root key (root.key, root.pub) in the place of the present one, which signs it, and a
key set that is signed by the new one and has the chain of all root keys. Restart the CO then, each
replica with the same files. LOs and ENs that have any of these root keys follow by themselves,
also where they slept through several rotations; the signing keys stay, and no container restarts.
Replace the copy of root.key that is offline, and give new machines the new root.pub. The former
root key signs nothing any more at a machine that has followed.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := keys.RotateRoot(args[0]); err != nil {
				return err
			}
			return describe(env, args[0])
		},
	}
}

// A view is what is shown of a directory of keys.
type view struct {
	Root      string   `json:"root"` // path of the public root key
	Number    uint64   `json:"keySet"`
	Signing   string   `json:"signing"`
	InForce   []string `json:"inForce"`
	Directory string   `json:"directory"`
}

func describe(env *command.Env, dir string) error {
	s, err := keys.Open(dir)
	if err != nil {
		return err
	}
	v := view{Root: filepath.Join(dir, keys.RootPublic), Number: s.Trust.Number(), Signing: hex.EncodeToString(sign.KeyID(s.Signer.Public())), Directory: dir}
	for _, k := range s.Trust.Signing() {
		v.InForce = append(v.InForce, hex.EncodeToString(sign.KeyID(k)))
	}
	if done, err := env.Machine(v); done {
		return err
	}
	return env.Fields("Directory", dir, "Root key for LOs and ENs", v.Root, "Key set", strconv.FormatUint(v.Number, 10),
		"Signing key", v.Signing, "Keys in force", strings.Join(v.InForce, ", "))
}
