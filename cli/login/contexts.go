// Package login keeps with whom a person talks: Colony's contexts, each an address of a CO and the token that it
// wants, and the commands that change them.
package login

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/disk"
)

// A Context is a CO and what it is shown.
type Context struct {
	URL   string `yaml:"url" json:"url"`
	Token string `yaml:"token,omitempty" json:"-"`
}

// Contexts are the content of a user's file.
type Contexts struct {
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

const (
	filePerm = 0o600
	dirPerm  = 0o700
)

// path returns where the file is: colony/contexts.yaml in the user's directory of configurations.
func path() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("file of contexts: %w", err)
	}
	return filepath.Join(dir, "colony", "contexts.yaml"), nil
}

// load reads the file; where there is none there are no contexts. A file that others may read is refused: it holds tokens.
func load() (Contexts, error) {
	c := Contexts{Contexts: map[string]Context{}}
	file, err := path()
	if err != nil {
		return c, err
	}
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("file of contexts: %w", err)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return c, fmt.Errorf("%s has mode %#o: others may read its tokens; set it to 0600, and revoke the tokens if they did", file, perm)
	}
	if err := configfile.Load(file, &c); err != nil {
		return c, err
	}
	if c.Contexts == nil {
		c.Contexts = map[string]Context{}
	}
	return c, nil
}

func (c Contexts) save() error {
	file, err := path()
	if err != nil {
		return err
	}
	b, err := configfile.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), dirPerm); err != nil {
		return fmt.Errorf("file of contexts: %w", err)
	}
	return atomicfile.Write(disk.OS, file, b, filePerm)
}

// Resolve gives env the address and the token of the current context. Where explicit says that the user has named an
// address, that stays, with the token of the context of this address: a token is sent nowhere else. The variable
// COLONY_TOKEN goes before any other token.
func Resolve(env *command.Env, explicit bool) error {
	env.Token = os.Getenv("COLONY_TOKEN")
	if explicit && env.Token != "" {
		return nil
	}
	if _, err := os.UserConfigDir(); err != nil {
		return nil // a service without a home has no contexts
	}
	all, err := load()
	if err != nil {
		return err
	}
	current, ok := all.Contexts[all.Current]
	if all.Current != "" && !ok {
		return fmt.Errorf("the current context %q does not exist: choose one with colony context use", all.Current)
	}
	if !explicit && ok {
		env.URL = current.URL
	}
	if env.Token != "" {
		return nil
	}
	if ok && client.SameBase(current.URL, env.URL) {
		env.Token = current.Token
		return nil
	}
	for _, c := range all.Contexts {
		if client.SameBase(c.URL, env.URL) {
			env.Token = c.Token
		}
	}
	return nil
}
