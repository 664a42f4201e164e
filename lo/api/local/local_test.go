package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// serve serves a listener, and returns a client of it and what was changed.
func serve(t *testing.T, l net.Listener) (client *http.Client, changed *[]nodes.Change) {
	t.Helper()
	changed = &[]nodes.Change{}
	s := New(Options{
		Listener: l, Nodes: func() any { return []string{"gw-1"} }, Logger: slog.New(slog.DiscardHandler),
		Restrict: func(_ context.Context, node protocol.NodeID, c nodes.Change) (string, error) {
			if node != "gw-1" {
				return "", protocol.Errorf(protocol.NotFound, "the site has no node %s", node)
			}
			*changed = append(*changed, c)
			return "so it is", nil
		},
	})
	done := make(chan error, 1)
	go func() { done <- s.Run() }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}, changed
}

func post(t *testing.T, client *http.Client, path, body string) (a Answer) {
	t.Helper()
	r, err := client.Post("http://lo"+NodesPath+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	if ok := r.StatusCode == http.StatusOK; ok != (a.Error == "") {
		t.Errorf("%s: status %d with %+v", path, r.StatusCode, a)
	}
	return a
}

func TestSocket(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	client, changed := serve(t, l)
	if a := post(t, client, "/gw-1/hold", `{"reason":"a batch runs","forMillis":7200000}`); a.Said != "so it is" {
		t.Errorf("a hold: %+v", a)
	}
	want := nodes.Change{Do: command.Hold, Reason: "a batch runs", For: 2 * time.Hour, Actor: fmt.Sprintf("uid %d", os.Getuid())}
	if len(*changed) != 1 || (*changed)[0] != want {
		t.Errorf("changed %+v, want %+v", *changed, want)
	}
	if a := post(t, client, "/gw-1/release", ""); a.Said != "so it is" {
		t.Errorf("a release: %+v", a)
	}
	for name, tt := range map[string]struct {
		path, body string
		kind       protocol.Kind
		want       string // part of the error
	}{
		"no reason":     {"/gw-1/cordon", `{}`, protocol.Invalid, "reason is missing"},
		"no body":       {"/gw-1/cordon", ``, protocol.Invalid, "body"},
		"unknown key":   {"/gw-1/cordon", `{"reason":"r","until":1}`, protocol.Invalid, "until"},
		"unknown kind":  {"/gw-1/restart", `{}`, protocol.Invalid, "want one of"},
		"bad name":      {"/GW%201/cordon", `{"reason":"r"}`, protocol.Invalid, "node"},
		"unknown node":  {"/gw-9/cordon", `{"reason":"r"}`, protocol.NotFound, "no node gw-9"},
		"a large body":  {"/gw-1/cordon", `{"reason":"` + strings.Repeat("a", maxBody) + `"}`, protocol.Invalid, "body"},
		"a long reason": {"/gw-1/cordon", `{"reason":"` + strings.Repeat("a", 1000) + `"}`, protocol.Invalid, "512"},
	} {
		if a := post(t, client, tt.path, tt.body); a.Kind != tt.kind || !strings.Contains(a.Error, tt.want) {
			t.Errorf("%s: %+v, want kind %s and %q", name, a, tt.kind, tt.want)
		}
	}
	if len(*changed) != 2 {
		t.Errorf("%d changes, want 2: what is refused changes nothing", len(*changed))
	}
}

// TestNobody: where the kernel does not identify the caller, nothing is changed.
func TestNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, changed := serve(t, l)
	if a := post(t, client, "/gw-1/release", ""); a.Kind != protocol.Denied || len(*changed) != 0 {
		t.Errorf("over TCP: %+v, %d changes", a, len(*changed))
	}
}
