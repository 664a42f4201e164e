package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/signin"
	"github.com/colonyfleet/colony/co/access"
)

const (
	// renewBefore is how long before its end a token is renewed.
	renewBefore = time.Minute
	// renewWait bounds a renewal, with the wait for one of another command.
	renewWait = 30 * time.Second
)

// person signs a person in with the provider of the CO.
func person(ctx context.Context, env *command.Env, way signin.Way) (*signin.Session, error) {
	env.Token, env.Renew = "", nil
	var how access.SignIn
	if err := env.Call(ctx, http.MethodGet, "/sign-in", nil, &how); err != nil {
		if client.IsNotFound(err) {
			return nil, command.Usage(fmt.Errorf("%s has no OpenID provider to sign in with: write a token to standard input, or name its file with --token-file", env.URL))
		}
		return nil, err
	}
	text, s, err := signin.In(ctx, signin.Options{How: how, CO: env.URL, HTTP: env.Client().HTTP, Out: env.Err, Way: way, Open: open})
	env.Token = text
	return &s, err
}

// open opens an address in a browser, where there is a desktop for one. A person can also open it by hand.
func open(address string) {
	program := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		program = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return
	}
	if cmd := exec.Command(program, address); cmd.Start() == nil {
		_ = cmd.Process.Release()
	}
}

// A renewer keeps the token of a context fresh. Its method may be called concurrently.
type renewer struct {
	name string // of the context
	http *http.Client

	mu sync.Mutex // protects what follows
	c  Context
}

// fresh reports whether the token of a context need not be renewed yet.
func (c Context) fresh() bool { return c.Session == nil || time.Until(c.Session.Ends) > renewBefore }

// token returns a token that counts for a while. Where it cannot be renewed just now, one that has not ended will do.
func (r *renewer) token(ctx context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.c.fresh() {
		return r.c.Token, nil
	}
	err := r.renew(ctx)
	if errors.Is(err, signin.ErrSignedOut) {
		err = &client.SignedOut{Err: fmt.Errorf("%w: sign in again with colony login --context %s", err, r.name)}
	}
	if err != nil && r.c.Session != nil && time.Now().Before(r.c.Session.Ends) {
		err = nil
	}
	return r.c.Token, err
}

// renew renews the token, or takes what another command has renewed: a provider ends a sign-in whose refresh token is
// shown twice (RFC 9700, section 4.14.2).
func (r *renewer) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewWait)
	defer cancel()
	file, err := path()
	if err != nil {
		return err
	}
	lock, err := acquire(ctx, file+".renewal.lock")
	if err != nil {
		return fmt.Errorf("renew the sign-in: %w", err)
	}
	defer lock.Close()
	all, err := load()
	if err != nil {
		return err
	}
	now, ok := all.Contexts[r.name]
	if !ok || now.Session == nil || !client.SameBase(now.URL, r.c.URL) {
		return fmt.Errorf("%w: another command has removed it", signin.ErrSignedOut)
	}
	r.c = now
	if now.fresh() {
		return nil
	}
	text, session, err := signin.Renew(ctx, r.http, *now.Session)
	if err != nil {
		return err
	}
	ours := false
	err = update(func(all *Contexts) error {
		r.c = all.Contexts[r.name]
		if ours = r.c.Session != nil && r.c.Session.Refresh == now.Session.Refresh; ours {
			r.c.Token, r.c.Session = text, &session
			all.Contexts[r.name] = r.c
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep the renewed sign-in: %w", err)
	}
	if ours {
		return nil
	}
	// Another command logged out, or in, meanwhile: the renewed session is in no context, and must not live on at the
	// provider.
	err = signin.Out(ctx, r.http, session)
	if r.c.Session == nil {
		return errors.Join(fmt.Errorf("%w: another command has logged out", signin.ErrSignedOut), err)
	}
	return err
}

// Out returns "colony logout".
func Out(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "logout [CONTEXT]", Short: "Forget the token of a context", Args: cobra.MaximumNArgs(1),
		Long: `Forget the token of a context, the current one where none is named, and keep the address of its
CO. A sign-in with an OpenID provider is ended there, too, so that it cannot be renewed. A token
that others have seen counts until it ends; colony token revoke ends one of Colony's own before.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := load()
			if err != nil {
				return err
			}
			name := all.Current
			if len(args) > 0 {
				name = args[0]
			}
			if name == "" {
				return command.Usage(errors.New("there is no current context: name one, colony context list shows them"))
			}
			was, err := forget(cmd.Context(), env, name, func(all *Contexts, was Context) {
				all.Contexts[name] = Context{URL: was.URL, CA: was.CA}
			})
			if err == nil {
				env.Printf("logged out of %s", was.URL)
			}
			return err
		},
	}
}

// forget changes a context so that it has no token any more, and ends its sign-in with the provider. It returns what it was.
func forget(ctx context.Context, env *command.Env, name string, do func(all *Contexts, was Context)) (was Context, err error) {
	err = change(name, func(all *Contexts) {
		was = all.Contexts[name]
		do(all, was)
	})
	if err != nil || was.Session == nil {
		return was, err
	}
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	if err := signin.Out(ctx, httpOf(env, was), *was.Session); err != nil {
		fmt.Fprintf(env.Err, "colony: the token is forgotten here, and %s was not reached to end the sign-in: %v\n", was.Session.Issuer, err)
	}
	return was, nil
}

// httpOf asks the provider of a context.
func httpOf(env *command.Env, c Context) *http.Client {
	e := command.Env{CA: env.CA}
	if e.CA == "" {
		e.CA = c.CA
	}
	return e.Client().HTTP
}
