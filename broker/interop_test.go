package broker_test

import (
	"bytes"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		o.Accept = refuse
		o.Listeners = append(o.Listeners, broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "unix", Network: broker.Unix, Address: filepath.Join(t.TempDir(), "mqtt.sock")})
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificates[0].Certificate[0]})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, tool, listener, user, version string, args ...string) (string, error) {
		at := []string{"--unix", b.Addr(listener)}
		if listener != "unix" {
			host, port, err := net.SplitHostPort(b.Addr(listener))
			if err != nil {
				t.Fatal(err)
			}
			at = []string{"-h", host, "-p", port}
		}
		if listener == "tls" {
			args = append(args, "--cafile", ca)
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), tool, slices.Concat(at, []string{"-u", user, "-i", user, "-V", version}, args)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	for _, listener := range []string{"main", "tls", "unix"} {
		for _, version := range []string{"311", "5"} {
			for _, qos := range []string{"0", "1", "2"} {
				name := strings.Join([]string{listener, version, qos}, "-")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					got := newBox()
					join(t, client.Options{
						URLs: tcpURL(b), Username: "watch-" + name, Handle: got.accept,
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

// The Mosquitto clients pass the properties of MQTT 5 on, through our broker.
// [MQTT-3.3.2-15] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
func TestMosquittoProperties(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	host, port, err := net.SplitHostPort(b.Addr("main"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "mosquitto_pub", "-h", host, "-p", port, "-V", "5", "-i", "pub", "-t", "t", "-q", "1", "-r", "-m", "hello",
		"-D", "publish", "content-type", "text/plain", "-D", "publish", "response-topic", "answer", "-D", "publish", "correlation-data", "7",
		"-D", "publish", "message-expiry-interval", "100", "-D", "publish", "user-property", "b", "1", "-D", "publish", "user-property", "a", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("mosquitto_pub: %v\n%s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), "mosquitto_sub", "-h", host, "-p", port, "-V", "5", "-i", "sub", "-t", "t", "-q", "1", "-C", "1", "-W", "10",
		"-F", "%p %C %R %D %P").CombinedOutput()
	if want := "hello text/plain answer 7 b:1 a:2"; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("mosquitto_sub: %v, got %q, want %q", err, out, want)
	}
}
