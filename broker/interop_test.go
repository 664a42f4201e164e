package broker_test

import (
	"bytes"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/client"
)

// The Mosquitto clients in all versions and qualities of service, each way.
func TestMosquittoClients(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"mosquitto_pub", "mosquitto_sub"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not installed: run scripts/setup --with-test-peers as root", tool)
		}
	}
	server, _ := testTLS(t)
	b, _ := start(t, free{}, func(o *broker.Options) {
		o.Take = refuse
		o.Listeners = append(o.Listeners, broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server})
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificates[0].Certificate[0]})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, tool, listener, user, version string, args ...string) (string, error) {
		host, port, err := net.SplitHostPort(b.Addr(listener))
		if err != nil {
			t.Fatal(err)
		}
		if listener == "tls" {
			args = append(args, "--cafile", ca)
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), tool, append([]string{"-h", host, "-p", port, "-u", user, "-i", user, "-V", version}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
		return out.String(), err
	}
	for _, listener := range []string{"main", "tls"} {
		for _, version := range []string{"311", "5"} {
			for _, qos := range []string{"0", "1", "2"} {
				name := strings.Join([]string{listener, version, qos}, "-")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					got := newBox()
					join(t, client.Options{
						URLs: tcpURL(b), Username: "watch-" + name, Handle: got.take,
						Subscriptions: []client.Subscription{{Filter: name, QoS: 1}},
					})
					if out, err := run(t, "mosquitto_pub", listener, "pub-"+name, version, "-t", name, "-q", qos, "-r", "-m", "hello"); err != nil {
						t.Fatalf("mosquitto_pub: %v\n%s", err, out)
					}
					if m := got.next(t); string(m.Payload) != "hello" {
						t.Errorf("got %q", m.Payload)
					}
					out, err := run(t, "mosquitto_sub", listener, "sub-"+name, version, "-t", name, "-q", qos, "-C", "1", "-W", "10")
					if err != nil || out != "hello\n" {
						t.Errorf("mosquitto_sub: %v, got %q", err, out)
					}
				})
			}
		}
	}
	for _, version := range []string{"311", "5"} {
		out, err := run(t, "mosquitto_pub", "main", "refused", version, "-t", "t", "-q", "1", "-m", "refuse denied")
		if version == "311" && err == nil { // MQTT 5: the tool prints the code and exits with 0
			t.Errorf("MQTT 3.1.1: a refused message was acknowledged\n%s", out)
		}
		if version == "5" && !strings.Contains(out, "Not authorized") {
			t.Errorf("MQTT 5: got %q, want the reason", out)
		}
	}
}

// What mochi does differently from the standard and cannot be reached from
// outside. Colony depends on none of it; an upgrade that changes it shows here.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	if err := b.Publish(t.Context(), broker.Message{Topic: "a/b", Retain: true, QoS: 1}); err != nil {
		t.Fatal(err)
	}
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", nil)
	r.subscribe("a/b/#", 1) // [MQTT-4.7.1-2] would send the retained a/b; our subscriptions name their topics
	r.ping()
}
