// Package login keeps with whom a person talks: Colony's contexts, each an address of a CO and the token that it
// wants, and the commands that change them.
package login

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/signin"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
)

// A Context is a CO and what it is shown.
type Context struct {
	URL   string `yaml:"url" json:"url"`           // of the API, such as https://co.example
	Token string `yaml:"token,omitempty" json:"-"` // its text; empty: none
	// CA is certificates (PEM) that the CO's own may come from, besides those that the system trusts. Empty: none.
	CA string `yaml:"ca,omitempty" json:"-"`
	// Session renews the token of a person that has signed in with an OpenID provider. Nil: the token is Colony's
	// own.
	Session *signin.Session `yaml:"session,omitempty" json:"-"`
}

// Contexts are the content of a user's file.
type Contexts struct {
	Current  string             `yaml:"current,omitempty"` // the name of the context that commands use; empty: none
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

const (
	filePerm = 0o600
	dirPerm  = 0o700
	// lockWait is how long a change of the file waits for that of another command.
	lockWait = 30 * time.Second
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

// update changes the file; commands that do it at once do it one after the other.
func update(change func(*Contexts) error) error {
	file, err := path()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), dirPerm); err != nil {
		return fmt.Errorf("file of contexts: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait) // also where the command was cancelled: what it keeps would be lost
	defer cancel()
	lock, err := acquire(ctx, file+".lock")
	if err != nil {
		return fmt.Errorf("file of contexts: %w", err)
	}
	defer lock.Close()
	all, err := load()
	if err != nil {
		return err
	}
	if err := change(&all); err != nil {
		return err
	}
	return all.save(file)
}

// acquire takes a lock. Where another command holds it, it waits as long as ctx lasts.
func acquire(ctx context.Context, path string) (*filelock.Lock, error) {
	for {
		lock, err := filelock.Acquire(path)
		if !errors.Is(err, filelock.ErrHeld) {
			return lock, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("another command uses it: end that, and try again: %w", err)
		}
	}
}

func (c Contexts) save(file string) error {
	b, err := configfile.Marshal(c)
	if err != nil {
		return err
	}
	return atomicfile.Write(disk.OS, file, b, filePerm)
}

// ErrNoCurrent is the error of Resolve where the current context does not exist.
var ErrNoCurrent = errors.New("the current context does not exist")

// Resolve gives env the address and the token of the current context. Where explicit says that the user has named an
// address, that stays, with the token of the context of this address: a token is sent nowhere else. The variable
// COLONY_TOKEN goes before any other token, and the certificates that env has before those of a context. The error is ErrNoCurrent where the current context does not exist.
func Resolve(env *command.Env, explicit bool) error {
	env.Token = os.Getenv("COLONY_TOKEN")
	given := env.Token != ""
	if explicit && given {
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
		return fmt.Errorf("%w: %q: choose one with colony context use", ErrNoCurrent, all.Current)
	}
	if !explicit && ok {
		env.URL = current.URL
	}
	take := func(name string, c Context) {
		if env.CA == "" {
			env.CA = c.CA
		}
		if given {
			return
		}
		env.Token, env.Renew = c.Token, nil
		if c.Session != nil {
			r := &renewer{name: name, http: httpOf(env, c), c: c}
			env.Renew = r.token
		}
	}
	if ok && client.SameBase(current.URL, env.URL) {
		take(all.Current, current)
		return nil
	}
	var of []string
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		if c := all.Contexts[name]; client.SameBase(c.URL, env.URL) {
			take(name, c)
			of = append(of, name)
		}
	}
	if len(of) > 1 && !given {
		env.Token, env.Renew = "", nil
		return command.Usage(fmt.Errorf("the contexts %s are all of %s: choose one with colony context use", strings.Join(of, ", "), env.URL))
	}
	return nil
}
