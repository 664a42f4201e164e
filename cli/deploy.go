package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
)

type deployFlags struct {
	site, name, profile, node string
	nodes, set                []string
	replicas, attempts        uint32
	backoff                   time.Duration
	minHealthy                time.Duration
	noRollback, wait, anyTime bool
	timeout, healthy          time.Duration
}

func (a *app) deployCommand() *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "deploy APP[@VERSION] --site SITE",
		Short: "Deploy an application to a site, or update what runs there under the same name",
		Long: `Deploy an application to a site. Where the site has a deployment of that name,
it is updated: the version, parameters and flags of placement that are not given keep
their values. A new deployment without a version gets the latest active one.
--replicas 0, --nodes "" and --node "" undo what was said before.

With --wait the command shows the way to INSTALLED, and ends when the deployment has
been INSTALLED for --healthy-for without a change of any container. It ends with exit
code 6 where the deployment ends FAILED or is rolled back instead.`,
		Example: `  colony deploy hello --site local --set addressee=Factory --wait
  colony deploy hello@1.1.0 --site plant --nodes line=3,role=gateway --replicas 2`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := f.request(args[0], cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return a.deploy(cmd.Context(), req, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.site, "site", "", "the site (required)")
	_ = cmd.MarkFlagRequired("site")
	fl.StringVar(&f.name, "name", "", "name of the deployment (default: the app's)")
	fl.StringVar(&f.profile, "profile", "", "deployment profile (default: the first that Colony can run)")
	fl.StringVar(&f.node, "node", "", "only this node; \"\": any node again")
	fl.StringSliceVar(&f.nodes, "nodes", nil, "only nodes with these labels, as key=value; \"\": any node again")
	fl.Uint32Var(&f.replicas, "replicas", 0, "on so many of the nodes that match; 0: on all of them again (default: all of them)")
	fl.StringArrayVar(&f.set, "set", nil, "set a parameter, as name=value; [a, b] is a list, any other value is kept as it stands")
	fl.Uint32Var(&f.attempts, "attempts", 0, "how often a version is tried before it is given up (default 3)")
	fl.DurationVar(&f.minHealthy, "min-healthy", 0, "how long a version must be up on a node before no later failure ends it (default that of the node, 2m)")
	fl.DurationVar(&f.backoff, "backoff", 0, "wait before the second attempt, doubled for each further one (default 10s)")
	fl.BoolVar(&f.noRollback, "no-rollback", false, "leave a version that was given up FAILED")
	fl.BoolVar(&f.anyTime, "any-time", false, "carry updates out outside of the site's maintenance windows, too; --any-time=false: in them alone again")
	fl.BoolVar(&f.wait, "wait", false, "wait until it has been INSTALLED for --healthy-for")
	fl.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait")
	healthyFlag(cmd, &f.healthy)
	return cmd
}

// request returns what the flags ask for; given reports whether a flag is there, so that
// its zero value undoes what was said before.
func (f deployFlags) request(target string, given func(flag string) bool) (api.NewDeployment, error) {
	app, version, _ := strings.Cut(target, "@")
	req := api.NewDeployment{Site: f.site, Name: f.name, App: app, Change: api.Change{
		Version: version, Profile: f.profile,
	}}
	if given("node") {
		req.Node = form.Some(f.node)
	}
	if given("replicas") {
		req.Replicas = form.Some(f.replicas)
	}
	if given("nodes") {
		req.Nodes = form.Some(map[string]string{})
	}
	for _, kv := range f.nodes {
		if kv == "" && len(f.nodes) == 1 {
			break
		}
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return req, command.Usage(fmt.Errorf("--nodes %q: want key=value", kv))
		}
		req.Nodes.Value[k] = v
	}
	for _, kv := range f.set {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return req, command.Usage(fmt.Errorf("--set %q: want name=value", kv))
		}
		if req.Parameters == nil {
			req.Parameters = map[string]any{}
		}
		req.Parameters[k] = command.ParameterValue(v)
	}
	if f.backoff < 0 {
		return req, command.Usage(fmt.Errorf("--backoff %s: want 0 or more", f.backoff))
	}
	if f.minHealthy < 0 {
		return req, command.Usage(fmt.Errorf("--min-healthy %s: want 0 or more", f.minHealthy))
	}
	if f.attempts > 0 || f.backoff > 0 || f.minHealthy > 0 || f.noRollback || given("any-time") {
		req.Policy = &api.Policy{Attempts: f.attempts}
		if f.minHealthy > 0 {
			req.Policy.MinHealthy = f.minHealthy.String()
		}
		if f.backoff > 0 {
			req.Policy.Backoff = f.backoff.String()
		}
		if f.noRollback {
			req.Policy.Rollback = new(false)
		}
		if given("any-time") {
			req.Policy.AnyTime = new(f.anyTime)
		}
	}
	return req, nil
}

// deploy creates the deployment, or updates the one that has the name.
func (a *app) deploy(ctx context.Context, req api.NewDeployment, f deployFlags) error {
	c := a.Client()
	mark, err := lastEvent(ctx, c)
	if err != nil {
		return err
	}
	name := req.Name
	if name == "" {
		name = req.App
	}
	path := "/deployments/" + url.PathEscape(req.Site) + "/" + url.PathEscape(name)
	var before, d fleet.Deployment
	err = c.Call(ctx, http.MethodGet, path, nil, &before)
	amend := err == nil && !before.Archived && before.App == req.App
	if amend {
		// What the request does not name stays as it is, also if another writer changes it at the
		// same time, so that the request is not bound to what was read.
		err = c.Write(ctx, client.Amendment{Method: http.MethodPatch, Path: path, Body: req.Change}, &d)
		amend = !client.IsNotFound(err) // it is on nodes, and the deployments repo does not have it
	}
	if !amend && (err == nil || client.IsNotFound(err)) {
		err = c.Call(ctx, http.MethodPost, "/deployments", req, &d)
	}
	if err != nil {
		return err
	}
	for _, note := range d.Notes {
		fmt.Fprintln(a.Err, "warning: "+note)
	}
	if f.wait {
		return a.waitInstalled(ctx, change{before: before, asked: d, mark: mark, healthy: f.healthy}, f.timeout)
	}
	if done, err := a.Machine(d); done {
		return err
	}
	fmt.Fprintf(a.Out, "%s/%s: %s %s, commit %.12s\n", d.Site, d.Name, d.App, d.AppVersion, d.Commit)
	return nil
}

// A change is what waitInstalled waits for.
type change struct {
	before fleet.Deployment // as it was before, empty where there was none
	asked  fleet.Deployment // as the API answered
	mark   int64            // the newest event before the change
	// healthy is how long it must be INSTALLED, and its containers unchanged.
	healthy time.Duration
}

// healthyFlag adds the option that says for how long a deployment must be healthy.
func healthyFlag(cmd *cobra.Command, healthy *time.Duration) {
	cmd.Flags().DurationVar(healthy, "healthy-for", 10*time.Second, "with --wait: how long it must be INSTALLED, without a restart, before that counts")
}

// recorded reports whether now is the record after the change, and not the one
// from before it: the record follows the repo a moment later.
func (ch change) recorded(now fleet.Deployment) bool {
	return now.Commit == ch.asked.Commit || now.Commit != ch.before.Commit && !now.Archived
}

// held returns an error where the change would remove what runs and waits for a person.
func (ch change) held(now fleet.Deployment) error {
	if now.Held == "" || now.Held == ch.before.Held {
		return nil
	}
	return fmt.Errorf("%s/%s: the change would remove what runs, so it is held and everything stays as it is: "+
		"see colony proposal show %[3]s; agree with colony proposal confirm %[3]s, or change the deployment again", now.Site, now.Name, now.Held)
}

// waitInstalled shows the events of a deployment until it is stable at the
// version that was requested, or has failed and is not tried any more.
func (a *app) waitInstalled(ctx context.Context, ch change, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, d := a.Client(), ch.asked
	path := "/deployments/" + url.PathEscape(string(d.Site)) + "/" + url.PathEscape(string(d.Name))
	var failed error
	var reason string // as it was read last
	var window verdict.HealthWindow
	settled := func() bool {
		// The order matters: what the site has adopted, it has acted on, and what came
		// of that is in the record that is read afterwards.
		var first, now fleet.Deployment // two: fields that the second answer lacks would keep the values of the first
		if err := c.Call(ctx, http.MethodGet, path, nil, &first); err != nil {
			return false
		}
		if failed = ch.held(first); failed != nil {
			return true
		}
		if !ch.recorded(first) {
			return false
		}
		var site fleet.Site
		if err := c.Call(ctx, http.MethodGet, "/sites/"+url.PathEscape(string(d.Site)), nil, &site); err != nil {
			return false
		}
		if err := c.Call(ctx, http.MethodGet, path, nil, &now); err != nil {
			return false
		}
		reason = now.Reason
		done, err := verdict.Judge(now, site)
		if !done {
			window = verdict.HealthWindow{}
		}
		if done = done && (err != nil || window.Passed(now, time.Now(), ch.healthy)); done {
			d, failed = now, err
		}
		return done
	}
	if err := a.followUntil(ctx, d, ch.mark, settled); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return failure{fmt.Errorf("%s/%s has not been INSTALLED for %s within %s%s; see: colony deployment show %[1]s/%[2]s", d.Site, d.Name, ch.healthy, timeout, because(reason))}
		}
		return err
	}
	if failed != nil {
		return failure{failed}
	}
	if done, err := a.Machine(d); done {
		return err
	}
	fmt.Fprintf(a.Out, "%s/%s: %s %s is INSTALLED on %d of %d nodes%s\n", d.Site, d.Name, d.App, d.AppVersion, d.Installed, d.DesiredNodes, because(d.Reason))
	return nil
}

// because appends the reason of a deployment to a sentence, where there is one.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// followUntil shows the events of a deployment from mark on until settled
// reports true. It asks again now and then even without an event: the record may
// change in a way that makes none, as when a deployment is updated to what it is.
func (a *app) followUntil(ctx context.Context, d fleet.Deployment, mark int64, settled func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events, failed := make(chan fleet.Event), make(chan error, 1)
	go func() {
		defer close(events)
		query := url.Values{"site": {string(d.Site)}, "deployment": {string(d.Name)}}
		failed <- a.Client().Events(ctx, query, mark, func(e fleet.Event) bool {
			select {
			case events <- e:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !settled() {
		select {
		case e, ok := <-events:
			if !ok {
				return <-failed
			}
			a.progress(e)
		case <-tick.C:
		}
	}
	cancel(nil)
	for range events { // until the reader has ended
	}
	return nil
}

// progress shows an event on the error stream, so that the answer stays clean.
func (a *app) progress(e fleet.Event) { fmt.Fprintln(a.Err, eventLine(e)) }
