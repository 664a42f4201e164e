package co_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestImportOpensNoDoor asks a running CO to import what is none of its clients'
// business: files of its machine, other servers on it, remotes that need its own key.
func TestImportOpensNoDoor(t *testing.T) {
	t.Parallel()
	b := start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{})
	go func() {
		defer close(reached)
		if c, err := listener.Accept(); err == nil {
			t.Errorf("the CO connected to %s", listener.Addr())
			_ = c.Close()
		}
	}()
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{
		"/etc/passwd", "file:///etc", "/", b.remote, "git@127.0.0.1:x", "ssh://" + listener.Addr().String() + "/x", "https://" + listener.Addr().String() + "/x",
		"http://" + listener.Addr().String() + "/x", "git://" + listener.Addr().String() + "/x", "oci://" + listener.Addr().String() + "/x:1", "ext::sh -c id",
		"ssh://127.0.0.1:1/apps", // is allowed, and has no server
	} {
		body, err := json.Marshal(map[string]string{"source": source})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.co.HTTPAddr()+"/api/v1/apps", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if source == "ssh://127.0.0.1:1/apps" && resp.StatusCode == http.StatusServiceUnavailable {
			continue
		}
		if err != nil || resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s: %s %s, %v", source, resp.Status, said, err)
		}
		for line := range strings.Lines(string(passwd)) {
			if strings.Contains(string(said), strings.TrimSpace(line)) {
				t.Errorf("%s: the answer quotes the file: %s", source, said)
			}
		}
	}
	_ = listener.Close()
	<-reached
	if _, err := os.Stat(b.ownKey); err == nil {
		t.Error("the key of the deployments repo was used for an import")
	}
}
