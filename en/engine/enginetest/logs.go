package enginetest

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/protocol"
)

// The last line of stderr says why a program ended, though it wrote to stdout after that.
func crashReason(t *testing.T, f Fixture) {
	begin(t, f.Engine, web(f, "blame", "3", "disk is full", "bye"))
	if st := await(t, f.Engine, "exited", exited); st.Message != "disk is full" {
		t.Errorf("message %q, want the last line of stderr", st.Message)
	}
}

func shopLog(f func(*logs.Request)) logs.Request {
	r := logs.Request{Deployment: "shop"}
	f(&r)
	return r
}

// read returns the texts of the lines of a request, each after its stream.
func read(t *testing.T, e Engine, r logs.Request) []string {
	t.Helper()
	var out []string
	for entry, err := range e.Logs().Read(t.Context(), r) {
		must(t, err)
		if entry.Deployment != "shop" || entry.Component != "main" || entry.Container != "web" || entry.Gap != nil {
			t.Errorf("entry %+v, want a line of shop/main/web", entry)
		}
		if entry.Line < 1 || entry.Time.IsZero() || entry.NotBefore.After(entry.Time) {
			t.Errorf("entry %+v, want a number from 1 on and a time", entry)
		}
		out = append(out, string(entry.Stream)+": "+entry.Text)
	}
	return out
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	slices.Sort(got) // streams are apart, and may be written within one tick of the clock
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

func readLog(t *testing.T, f Fixture) {
	c := web(f, "blame", "3", "disk is full", "bye")
	begin(t, f.Engine, c)
	await(t, f.Engine, "exited", exited)
	all := func(*logs.Request) {}
	wantLines(t, read(t, f.Engine, shopLog(all)), "stderr: disk is full", "stdout: bye")
	must(t, f.Engine.Start(t.Context(), c))
	await(t, f.Engine, "exited after a restart", func(st engine.Status) bool { return exited(st) && st.Restarts == 1 })
	e := f.Again(t)
	wantLines(t, read(t, e, shopLog(all)), "stderr: disk is full", "stdout: bye", "stderr: disk is full", "stdout: bye")
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Component, r.Container, r.Tail = "main", "web", 2 })), "stderr: disk is full", "stdout: bye")
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Grep, r.Tail = "^disk", 1 })), "stderr: disk is full")
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Streams = []logs.Stream{logs.Stdout} })), "stdout: bye", "stdout: bye")
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Tail = logs.TailNone })))
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Since = time.Now().Add(time.Hour) })))
	wantLines(t, read(t, e, shopLog(func(r *logs.Request) { r.Previous = true })), "stderr: disk is full", "stdout: bye")
}

// The log of a container that was replaced, and of one that was removed, is the previous one.
func previousLog(t *testing.T, f Fixture) {
	c := web(f, "exit", "1", "first")
	begin(t, f.Engine, c)
	await(t, f.Engine, "exited", exited)
	previous := shopLog(func(r *logs.Request) { r.Component, r.Previous = "main", true })
	wantNoLog(t, f.Engine, previous, "has run once")
	must(t, f.Engine.Remove(t.Context(), c.ID))
	wantLines(t, read(t, f.Engine, previous), "stdout: first")
	wantNoLog(t, f.Engine, shopLog(func(*logs.Request) {}), "previous log")
	c.Digest, c.Spec.Command = version2, []string{"exit", "1", "second"}
	must(t, f.Engine.Start(t.Context(), c))
	await(t, f.Engine, "exited", exited)
	e := f.Again(t)
	wantLines(t, read(t, e, previous), "stdout: first")
	wantLines(t, read(t, e, shopLog(func(*logs.Request) {})), "stdout: second")
	list, err := e.Logs().List(t.Context())
	must(t, err)
	if len(list) != 2 || list[0].Name() != "shop/main/web" || list[0].Removed == list[1].Removed {
		t.Errorf("logs %+v, want the present one and that of the removed container", list)
	}
}

// A reader that follows gets the lines of a container from one version to the next, until the
// context ends.
func followLog(t *testing.T, f Fixture) {
	c := web(f, "exit", "1", "first")
	begin(t, f.Engine, c)
	await(t, f.Engine, "exited", exited)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next, stop := iter.Pull2(f.Engine.Logs().Read(ctx, shopLog(func(r *logs.Request) { r.Follow = true })))
	defer stop()
	line := func(want string) {
		t.Helper()
		e, err, ok := next()
		if !ok || err != nil || e.Text != want {
			t.Fatalf("followed %+v %v %v, want %q", e, err, ok, want)
		}
	}
	line("first")
	must(t, f.Engine.Start(t.Context(), c))
	line("first")
	await(t, f.Engine, "exited after a restart", func(st engine.Status) bool { return exited(st) && st.Restarts == 1 })
	must(t, f.Engine.Remove(t.Context(), c.ID))
	c.Digest, c.Spec.Command = version2, []string{"exit", "1", "second"}
	must(t, f.Engine.Start(t.Context(), c))
	line("second")
	cancel()
	if _, err, ok := next(); !ok || !errors.Is(err, context.Canceled) {
		t.Errorf("after its end the context gave %v %v, want its error", err, ok)
	}
}

func wantNoLog(t *testing.T, e Engine, r logs.Request, hint string) {
	t.Helper()
	for _, err := range e.Logs().Read(t.Context(), r) {
		wantKind(t, err, protocol.NotFound)
		if !strings.Contains(err.Error(), hint) {
			t.Errorf("error %q, want one that says %q", err, hint)
		}
		return
	}
	t.Errorf("no error for %+v", r)
}

// A request for a log that does not exist is answered with a list of those that do.
func noLog(t *testing.T, f Fixture) {
	wantNoLog(t, f.Engine, shopLog(func(*logs.Request) {}), "none of any deployment")
	begin(t, f.Engine, web(f, "wait"))
	wantNoLog(t, f.Engine, logs.Request{Deployment: "news"}, "deployments shop")
	wantNoLog(t, f.Engine, shopLog(func(r *logs.Request) { r.Component = "other" }), "shop/main/web")
	for _, r := range []logs.Request{
		{},
		{Deployment: "shop", Container: "web"},
		{Deployment: "shop", Tail: -2},
		{Deployment: "shop", Tail: logs.MaxTail + 1},
		{Deployment: "shop", Grep: "("},
		{Deployment: "shop", Streams: []logs.Stream{"stdin"}},
		{Deployment: "shop", Previous: true, Follow: true},
	} {
		for entry, err := range f.Engine.Logs().Read(t.Context(), r) {
			wantKind(t, err, protocol.Invalid)
			if entry.Text != "" {
				t.Errorf("entry %+v with an error", entry)
			}
		}
		if r.Validate() == nil {
			t.Errorf("request %+v is valid", r)
		}
	}
}
