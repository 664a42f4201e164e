package registry

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/registry/ociclient"
)

// A wiretap notes which hosts are spoken to by plain HTTP. A registry asks for a token of
// one of them; with TLS there is none but at reg.example.
type wiretap struct {
	mu    sync.Mutex
	hosts []string
}

func (w *wiretap) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" {
		w.mu.Lock()
		w.hosts = append(w.hosts, r.URL.Host)
		w.mu.Unlock()
	} else if r.URL.Host != "reg.example" {
		return nil, errors.New("it does not speak TLS")
	}
	return &http.Response{
		StatusCode: http.StatusUnauthorized, Request: r, Body: http.NoBody,
		Header: http.Header{"Www-Authenticate": {`Bearer realm="http://tokens.example/token",service="s"`}},
	}, nil
}

// No password goes over the network in the clear unless the host was named for that.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	const refused = "is refused: let it speak TLS"
	for name, c := range map[string]struct {
		host    string
		options ociclient.Options
		plain   bool   // the host is spoken to without TLS, up to the token
		says    string // by the error
	}{
		"private address":      {host: "10.1.2.3:5000", says: refused},
		"another":              {host: "192.168.1.2", says: refused},
		"name below localhost": {host: "registry.localhost", says: refused},
		"name":                 {host: "registry.lan:5000", says: "it does not speak TLS"},
		"realm of a token":     {host: "reg.example", says: "realm"},
		"mapped with TLS":      {host: "registry.colony", options: ociclient.Options{Hosts: map[string]string{"registry.colony": "https://10.1.2.3:5000"}}, says: refused},
		"mapped":               {host: "registry.colony", options: ociclient.Options{Hosts: map[string]string{"registry.colony": "10.1.2.3:5000"}}, plain: true, says: refused},
		"listed":               {host: "10.1.2.3:5000", options: ociclient.Options{Insecure: []string{"10.1.2.3:5000"}}, plain: true, says: refused},
		"loopback":             {host: "127.0.0.1:5000", plain: true, says: refused},
		"loopback by its name": {host: "localhost:5000", plain: true, says: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tap wiretap
			o := c.options
			o.Transport, o.Timeout = &tap, time.Minute
			o.Credentials = func(string) (string, string, error) { return "user", "secret", nil }
			_, err := ociclient.New(o).Tags(t.Context(), c.host+"/app")
			if err == nil {
				t.Fatal("no error")
			}
			tap.mu.Lock()
			defer tap.mu.Unlock()
			if got := len(tap.hosts) > 0; got != c.plain {
				t.Errorf("plain HTTP to %v, want %t", tap.hosts, c.plain)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
			for _, host := range tap.hosts {
				if host == "tokens.example" {
					t.Error("the password was sent for a token")
				}
			}
		})
	}
}
