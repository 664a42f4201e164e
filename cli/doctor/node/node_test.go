package node

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
)

// TestGateway checks the agent of a configuration file whose LO is there and whose engine is
// not.
func TestGateway(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "en.yaml")
	config := "site: plant\nnode: gw-1\nstateDir: " + dir + "/en\nlo: {mqtt: [\"tcp://" + l.Addr().String() + "\"]}\n" +
		"engine: {address: " + dir + "/none.sock, pluginDirs: [" + dir + "]}\n"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Main(t.Context(), path, "1", true, &out); err == nil {
		t.Error("an engine that is away is no error")
	}
	var r doctor.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	want := map[string]doctor.Status{"configuration": doctor.OK, "permissions": doctor.OK, "engine": doctor.Fail, "plugins": doctor.Fail, "lo": doctor.OK, "backlog": doctor.OK, "damage": doctor.OK}
	for _, f := range r.Findings {
		if status, ok := want[f.Check]; ok && f.Status != status {
			t.Errorf("%s is %s (%s), want %s", f.Check, f.Status, f.Message, status)
		}
		delete(want, f.Check)
	}
	if len(want) > 0 || r.Tier != "en" || r.Status != doctor.Fail {
		t.Errorf("tier %s, status %s, without a finding of %v", r.Tier, r.Status, want)
	}
	out.Reset()
	if err := Main(t.Context(), path+"x", "1", false, &out); err == nil || !strings.Contains(out.String(), "fail  configuration") {
		t.Errorf("without a file: %v, %q; want a failure of the configuration", err, out.String())
	}
}

// TestConfiguration gives each fault a finding of its own.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	o, err := Load(filepath.Join(t.TempDir(), "none"))
	if err == nil {
		t.Fatal("a file that does not exist was read")
	}
	got := Configuration(o.Validate)(t.Context())
	if len(got) < 3 {
		t.Fatalf("%d findings, want one for each of site, node and lo.mqtt: %+v", len(got), got)
	}
	for i, key := range []string{"site", "node", "lo.mqtt"} {
		if got[i].Status != doctor.Fail || !strings.HasPrefix(got[i].Message, key) {
			t.Errorf("finding %d is %s %q, want a failure of %s", i, got[i].Status, got[i].Message, key)
		}
	}
}

// TestBacklog asks a running agent.
func TestBacklog(t *testing.T) {
	t.Parallel()
	metrics := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(metrics))
	}))
	defer s.Close()
	listener := s.Listener.Addr().String()
	for name, tt := range map[string]struct {
		metrics string
		want    doctor.Status
		says    string
	}{
		"at rest":       {"# TYPE colony_en_link_up gauge\ncolony_en_link_up 1\ncolony_en_reports_pending 0\n", doctor.OK, "0 reports"},
		"without an LO": {"colony_en_link_up 0\ncolony_en_reports_pending 7\n", doctor.Warn, "not connected to the LO; 7 reports"},
		"many reports":  {"colony_en_link_up 1\ncolony_en_reports_pending 1001\n", doctor.Warn, "1001 reports"},
	} {
		metrics = tt.metrics
		got := backlog(listener, host.Running(listener, ""))(t.Context())
		if len(got) != 1 || got[0].Status != tt.want || !strings.Contains(got[0].Message, tt.says) {
			t.Errorf("%s: %+v, want %s and %q", name, got, tt.want, tt.says)
		}
	}
	if f := judgeEngine("containerd", "v1.5.18"); f.Status != doctor.Warn {
		t.Errorf("containerd 1.5: %+v", f)
	}
	if f := judgeEngine("containerd", "2.1.4"); f.Status != doctor.OK {
		t.Errorf("containerd 2.1: %+v", f)
	}
}
