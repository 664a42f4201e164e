package registryhosts

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
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
