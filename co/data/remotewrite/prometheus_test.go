package remotewrite

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/testpart"
)

// prometheusServer runs a real Prometheus (package prometheus of Debian) that takes
// remote writes, and returns its URL.
func prometheusServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte("global: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// It wants a number: one that is free now.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", addr, "--web.enable-remote-write-receiver", "--log.level", "warn")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Prometheus: %v; scripts/setup --with-test-peers installs it", err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // interrupted
		http.DefaultClient.CloseIdleConnections()
		if t.Failed() {
			t.Logf("Prometheus says:\n%s", log.String())
		}
	})
	base := "http://" + addr
	until(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(base + "/-/ready") //nolint:noctx // a test
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return base
}

// until waits for a condition.
var until = testpart.Eventually

// queried returns the samples of the last hour: series, then "seconds value".
func queried(t *testing.T, base, selector string) map[string][]string {
	t.Helper()
	resp, err := http.Get(base + "/api/v1/query?query=" + url.QueryEscape(selector+"[1h]")) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status string `json:"status"`
		Data   struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
				Values [][2]any          `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%+v, %v", answer, err)
	}
	out := map[string][]string{}
	for _, r := range answer.Data.Result {
		m := r.Metric
		name := fmt.Sprintf("%s %s %s %s %s", m["__name__"], m["site"], m["rule"], m["topic"], m["field"])
		for _, v := range r.Values {
			millis := int64(v[0].(float64)*1000+0.5) - start.UnixMilli()
			out[name] = append(out[name], fmt.Sprintf("%d %v", millis, v[1]))
		}
	}
	return out
}

// TestPrometheus sends to a real server: in order, out of order, and the same again
// after a crash that forgot how far it had come.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	base := prometheusServer(t)
	m := newMemory(plain)
	m.rules = append(m.rules, m.rules[0])
	m.rules[1].Rule, m.rules[1].Metric, m.rules[1].Fields = "b", "machine", []string{"/speed", "/load"}
	want := map[string][]string{}
	const temperatures, machines = "temperature home a line/1 ", "machine home b press "
	for i := range int64(1500) { // more than a page
		m.add("a", "line/1", strconv.FormatInt(i, 10)+".5", 10*i)
		want[temperatures] = append(want[temperatures], fmt.Sprintf("%d %d.5", 10*i, i))
	}
	for i := range int64(3) {
		m.add("b", "press", fmt.Sprintf(`{"speed": %d, "load": 0.%d}`, 100+i, 1+i), i)
		want[machines+"/speed"] = append(want[machines+"/speed"], fmt.Sprintf("%d %d", i, 100+i))
		want[machines+"/load"] = append(want[machines+"/load"], fmt.Sprintf("%d 0.%d", i, 1+i))
	}
	w, stop := run(t, m, base+"/api/v1/write")
	m.untilRead(t)
	check := func(what string) {
		t.Helper()
		if d := cmp.Diff(want, queried(t, base, `{site="home"}`)); d != "" {
			t.Errorf("%s (-want +got)\n%s", what, d)
		}
	}
	check("in order")
	if n := count(w.metrics.sent); n != 1506 {
		t.Errorf("%d samples were sent", n)
	}
	// The site's clock is put back in the middle of others: what lies before the newest
	// of its series the server refuses, and takes the rest.
	m.add("a", "line/1", "1", 20_000)
	m.add("a", "line/2", "2", 20_000)
	m.add("a", "line/1", "3", 5)
	m.add("a", "line/1", "4", 20_010)
	want[temperatures] = append(want[temperatures], "20000 1", "20010 4")
	want["temperature home a line/2 "] = []string{"20000 2"}
	m.untilRead(t)
	check("out of order")
	if n := count(w.metrics.refused.WithLabelValues("400")); n != 1 {
		t.Errorf("%d samples refused, want 1", n)
	}
	stop()
	m.mu.Lock()
	m.read["a"], m.read["b"] = m.read["other"], m.read["other"] // after message 7
	m.read["b"] = m.read["none"]
	m.mu.Unlock()
	run(t, m, base+"/api/v1/write")
	m.add("a", "line/1", "5", 20_020)
	want[temperatures] = append(want[temperatures], "20020 5")
	m.untilRead(t)
	check("sent again")
}
