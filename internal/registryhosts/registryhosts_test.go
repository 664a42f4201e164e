package registryhosts

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

func TestAnswerThatStallsEnds(t *testing.T) {
	t.Parallel()
	stall := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "half.") // a client that went away ends the test by itself
		w.(http.Flusher).Flush()
		if r.URL.Path == "/stall" {
			<-stall
		}
		_, _ = io.WriteString(w, "whole")
	}))
	defer server.Close()
	defer close(stall)
	c := New(Options{Stall: 200 * time.Millisecond})
	defer c.Close()
	read := func(path string) (string, error) {
		resp, err := c.http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	got, err := read("/stall")
	if e, ok := errors.AsType[*StallError](err); !ok || got != "half." || e.Host == "" {
		t.Errorf("read %q, %v; want half and a stall", got, err)
	}
	if got, err := read("/"); err != nil || got != "half.whole" {
		t.Errorf("read %q, %v; want all", got, err)
	}
}

// TestRefusalForWantOfRoom asks for a manifest as a resolver does: why it is refused stands in no answer to HEAD.
func TestRefusalForWantOfRoom(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v2/full/manifests/1":
			w.WriteHeader(http.StatusInsufficientStorage)
			_, _ = io.WriteString(w, `{"errors":[{"code":"NO_SPACE","message":"enlarge the disk"}]}`)
		default:
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "away")
		}
	}))
	defer server.Close()
	c := New(Options{Mirror: server.URL, MirrorOnly: true, Stall: time.Minute})
	defer c.Close()
	for ref, want := range map[string]string{"r.example/full:1": "enlarge the disk", "r.example/away:1": "502"} {
		_, _, err := docker.NewResolver(docker.ResolverOptions{Hosts: c.Hosts}).Resolve(t.Context(), ref)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "away\"") {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
}
