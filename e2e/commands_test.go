package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/en/command/archive/archivetest"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
)

// says runs the command line, which succeeds, and wants words in its answer.
func (c *colony) says(words string, args ...string) {
	c.t.Helper()
	if out := c.must(args...); !strings.Contains(out, words) {
		c.t.Errorf("colony %s: %q is not in the answer:\n%s", strings.Join(args, " "), words, out)
	}
}

// TestCommands runs the commands of the documentation that no other scenario has, on a fleet.
func TestCommands(t *testing.T) {
	t.Parallel()
	c := newColony(t)
	c.up()
	c.play(t, []scene{
		{"doctor", doctors},
		{"machine data", machineData},
		{"clients of brokers", brokerClients},
		{"proposals", proposalCommands},
		{"keys", keyCommands},
		{"backup and restore", backupAndRestore},
		{"commands", nodeCommands},
		{"sessions", sessionCommands},
		{"restrictions", restrictionCommands},
		{"maintenance windows", windows},
		{"stages of versions", versionStages},
		{"fleet deployments", fleetDeployments},
		{"machines", machineCommands},
		{"access", accessCommands}, // the last: the CO wants tokens afterwards
	})
}

// config is the configuration file of a tier of the fleet.
func (c *colony) config(tier string) string { return filepath.Join(c.dir, "config", tier+".yaml") }

// versionStages deprecates and retires a version that is deployed, and makes it active.
func versionStages(t *testing.T, c *colony) {
	const version = "hello@1.0.0"
	c.says(version+": deprecated", "app", "deprecate", version, "--reason", "it greets in one language")
	c.says("deprecated, since", "app", "show", version)
	c.says("warning: application hello 1.0.0 is deprecated (it greets in one language)", "deploy", version, "--site", site, "--name", "old", "--nodes", "zone=none")
	c.must("deployment", "delete", site+"/old")
	c.says(version+": retired", "app", "retire", version)
	c.says("1.0.0 (retired)", "app", "list")
	c.refused(2, []string{"hello 1.0.0 is retired", "colony app activate " + version}, "deploy", version, "--site", site, "--name", "other")
	c.says(version+": active", "app", "activate", version)
}

// nodeCommands asks the node for each kind of command, and reads the log of the sample.
func nodeCommands(t *testing.T, c *colony) {
	c.says("done", "restart", site+"/hello")
	c.says("healthy", "probe", site+"/hello", "--node", node)
	c.says("done", "pull", site+"/hello", "--all")
	c.says("1 of 1 attempts succeeded", "node", "check", site+"/"+node, "tcp", c.address("--lo-mqtt"))
	c.says("done", "node", "refresh", site+"/"+node)
	if out, code := c.cli("restart", site+"/hello", "--container", "none"); code != 6 || !strings.Contains(out, "no_such_subject") {
		t.Errorf("a container that is not there: %d\n%s", code, out)
	}
	out := c.must("command", "list", "--kind", "pull", "-o", "json")
	var list []struct{ ID string }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	c.says("ended", "command", "show", list[0].ID)
	c.says("done", "command", "results", list[0].ID)
	if out, code := c.cli("command", "cancel", list[0].ID); code != 4 || !strings.Contains(out, "has ended already") {
		t.Errorf("cancelled after its end: %d\n%s", code, out)
	}
	if out, code := c.cli("logs", site+"/hello", "--tail", "5"); code != 0 {
		t.Errorf("logs: %d\n%s", code, out)
	}
	collected := filepath.Join(t.TempDir(), "node.tar.gz")
	c.says(collected, "node", "diagnostics", site+"/"+node, "--out", collected)
	b, err := os.ReadFile(collected)
	if err != nil {
		t.Fatal(err)
	}
	archive := archivetest.Read(t, b)
	for name, want := range map[string]string{
		"about.json": `"node": "` + node + `"`, "deployments.json": `"state": "INSTALLED"`, "containers.json": "hello", "inventory.json": `"hostname"`, "logs/agent.log": "agent started",
		"metrics.txt": "colony_en_link_up 1", "state.txt": "subnets.json", "system/mounts": "/",
	} {
		if text := archive[site+"-"+node+"/"+name]; !strings.Contains(text, want) {
			t.Errorf("%s of the diagnostics: %q is not in it: %.300q", name, want, text)
		}
	}
	if out, code := c.cli("node", "files", site+"/"+node, "/etc/shadow"); code == 0 || !strings.Contains(out, "names no files that may be collected") {
		t.Errorf("a file that the agent does not name: %d\n%s", code, out)
	}
	if out, code := c.cli("node", "diagnostics", site+"/absent"); code == 0 || !strings.Contains(out, "absent") {
		t.Errorf("a node that is not there: %d\n%s", code, out)
	}
}

// sessionCommands runs programs in the container of the sample, watches one of them, ends it, and shows what they showed.
func sessionCommands(t *testing.T, c *colony) {
	if out, code := c.cli("exec", site+"/hello", "--", "/app", "health"); code == 0 || !strings.Contains(out, "colony site exec allow") {
		t.Errorf("at a site that does not allow it: %d\n%s", code, out)
	}
	c.says("allowed", "site", "exec", "allow", site)
	c.says("allowed", "site", "exec", "show", site)
	if out, code := c.cli("exec", site+"/hello", "--", "/app", "health"); code != 0 {
		t.Errorf("a program that ends with 0: %d\n%s", code, out)
	}
	if out, code := c.cli("exec", site+"/"+node+"/hello/hello", "--", "/app"); code != 1 || !strings.Contains(out, "address already in use") {
		t.Errorf("a program that ends with 1: %d\n%s", code, out)
	}
	if out, code := c.cli("exec", site+"/hello", "--", "/none"); code != 125 || !strings.Contains(out, "no such file") {
		t.Errorf("a program that is not there: %d\n%s", code, out)
	}
	watched := make(chan string, 2)
	watch := func(args ...string) {
		out, code := c.cli(args...)
		watched <- fmt.Sprintf("%d: %s", code, out)
	}
	go watch("exec", site+"/hello", "--", "/app", "watch")
	var list []struct{ ID, Container string }
	testpart.Eventually(t, "the session is open", func() bool {
		out := c.must("session", "list", "--open", "--site", site, "-o", "json")
		return json.Unmarshal([]byte(out), &list) == nil && len(list) == 1 && list[0].Container == "hello"
	})
	id := list[0].ID
	go watch("session", "join", id)
	testpart.Eventually(t, "it shows something", func() bool { return strings.Contains(c.must("session", "recording", id), "ok") })
	c.says("stopped", "session", "end", id)
	for range 2 {
		if out := <-watched; !strings.Contains(out, "ok\n") || strings.HasPrefix(out, "1:") {
			t.Errorf("who was at it, or watched it: %s", out)
		}
	}
	c.says("ok", "session", "play", id, "--speed", "100")
	c.says("sha256:", "session", "show", id)
	c.says("exited 1", "session", "list")
	local := freeport.Addr(t)
	go watch("port-forward", site+"/hello", local[strings.LastIndex(local, ":")+1:]+":8080")
	for range 3 { // connections of the same session
		testpart.Within(t, time.Minute, "the port of the container answers", func() error {
			body, err := get("http://" + local + "/")
			if err == nil && !strings.Contains(body, "I am version") {
				err = fmt.Errorf("it answers %.100q", body)
			}
			return err
		})
	}
	testpart.Eventually(t, "the session of the port is in the list", func() bool {
		out := c.must("session", "list", "--open", "-o", "json")
		return json.Unmarshal([]byte(out), &list) == nil && len(list) == 1
	})
	c.says("port-forward 8080", "session", "show", list[0].ID)
	c.says("refused", "site", "exec", "refuse", site)
	if out := <-watched; !strings.HasPrefix(out, "125: ") || !strings.Contains(out, local+" is port 8080 of hello/hello") || !strings.Contains(out, "colony site exec allow") {
		t.Errorf("who forwarded a port until the site refused it: %s", out)
	}
	if out, code := c.cli("port-forward", site+"/hello", "0:8080"); code == 0 || !strings.Contains(out, "colony site exec allow") {
		t.Errorf("a port at a site that does not allow it: %d\n%s", code, out)
	}
}

// get returns the body of an answer of 200, by a connection of its own.
func get(address string) (string, error) {
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(address)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// restrictionCommands cordons, drains and holds the node, by the CO and at the machine of the LO.
func restrictionCommands(t *testing.T, c *colony) {
	at, local := site+"/"+node, filepath.Join(c.dir, "lo.sock")
	c.says("nothing new is placed on the node for 2h0m0s", "node", "cordon", at, "--reason", "new disk", "--for", "2h")
	testpart.Eventually(t, "the list of nodes has the cordon", func() bool { return strings.Contains(c.must("node", "list"), "cordoned") })
	c.says("what can move leaves the node", "node", "drain", at, "--reason", "new disk")
	testpart.Eventually(t, "the node says what stays", func() bool {
		out := c.must("node", "show", at)
		return strings.Contains(out, "new disk; until a person ends it") && strings.Contains(out, "hello: ")
	})
	c.says("the node is open for new work", "node", "uncordon", at)
	c.says("nothing on the node changes", "node", "hold", at, "--reason", "a batch runs")
	c.says("the node is not held any more", "node", "release", at)
	if out, code := c.cli("node", "cordon", at, "--reason", " "); code != 2 || !strings.Contains(out, "reason is missing") {
		t.Errorf("a cordon without a reason: %d\n%s", code, out)
	}
	c.says("nothing new is placed", "lo", "node", "cordon", node, "--reason", "broken fan", "--socket", local)
	c.says("what can move leaves", "lo", "node", "drain", node, "--reason", "broken fan", "--socket", local)
	c.says("the node is open for new work", "lo", "node", "uncordon", node, "--socket", local)
	c.says("nothing on the node changes", "lo", "node", "hold", node, "--reason", "broken fan", "--for", "1h", "--socket", local)
	c.says("broken fan", "lo", "node", "list", "--socket", local)
	c.says("the node is not held any more", "lo", "node", "release", node, "--socket", local)
	testpart.Eventually(t, "the audit has what was done at the machine of the LO", func() bool {
		out := c.must("audit", "--limit", "200")
		return strings.Contains(out, "colony lo node hold") && strings.Contains(out, "uid ")
	})
}

// doctors checks each tier of a fleet that runs. What fails is the machine at most, and not
// the fleet.
func doctors(t *testing.T, c *colony) {
	for _, run := range []func() (string, int){
		func() (string, int) { return c.cli("doctor", "co", "--config", c.config("co"), "-o", "json") },
		func() (string, int) { return c.cli("doctor", "lo", "--config", c.config("lo"), "-o", "json") },
		func() (string, int) { return c.cli("doctor", "en", "--config", c.config("en"), "-o", "json") },
	} {
		out, _ := run()
		var r doctor.Report
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil || len(r.Findings) < 8 {
			t.Fatalf("the doctor says: %v\n%s", err, out)
		}
		for _, f := range r.Findings {
			machine := f.Check == "kernel" || f.Check == "clock" || f.Check == "disk"
			if !machine && f.Status == doctor.Fail {
				t.Errorf("%s: %s %s: %s", r.Tier, f.Check, f.Status, f.Message)
			}
		}
	}
}

// publish has a client of the site's broker publish a message with QoS 1.
func (c *colony) publish(topic, payload string) {
	c.t.Helper()
	up := make(chan struct{}, 1)
	plc, err := client.New(client.Options{
		URLs: []string{"tcp://" + c.address("--lo-mqtt")}, ClientID: "plc@" + site, Username: "plc@" + site, Logger: slog.New(slog.DiscardHandler),
		OnUp: func(context.Context, string) {
			select {
			case up <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	stop := testpart.Start(c.t, plc)
	defer stop()
	select {
	case <-up:
	case <-time.After(time.Minute):
		c.t.Fatal("the site's broker accepts no client")
	}
	if err := plc.Publish(c.t.Context(), client.Message{Topic: topic, Payload: []byte(payload), QoS: 1}); err != nil {
		c.t.Fatal(err)
	}
}

// address is what an option of colony up says.
func (c *colony) address(option string) string {
	for i, a := range c.args {
		if a == option {
			return c.args[i+1]
		}
	}
	c.t.Fatalf("no option %s", option)
	return ""
}

// machineData puts the rules of the example in force, and follows and lists a message.
func machineData(t *testing.T, c *colony) {
	example, err := os.ReadFile(filepath.Join("..", "examples", "sites", "berlin", "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "site.yaml")
	if err := os.WriteFile(file, bytes.Replace(example, []byte("id: berlin"), []byte("id: "+site), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	c.must("site", "data", "set", site, "-f", file)
	c.says("line_temperature_celsius", "site", "data", "get", site)
	c.eventually(time.Minute, "the rules are in force", func() error {
		c.publish("colony/v1/"+site+"/data/line/1/temperature", `{"value": 21.5}`)
		if out := c.must("data", "history", site, "line/+/temperature"); !strings.Contains(out, "21.5") {
			return context.DeadlineExceeded
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	args := []string{"data", "tail", site, "--since", "1h"}
	tail := exec.CommandContext(ctx, bin("colony"), args...)
	tail.Env = append(os.Environ(), "COLONY_URL=http://"+c.http)
	out := &lockedWriter{w: &bytes.Buffer{}}
	tail.Stdout, tail.Stderr = out, out
	tail.Cancel = func() error { return tail.Process.Signal(os.Interrupt) }
	if err := tail.Start(); err != nil {
		t.Fatal(err)
	}
	c.eventually(time.Minute, "colony data tail shows the message", func() error {
		if !strings.Contains(out.String(), "21.5") {
			return context.DeadlineExceeded
		}
		return nil
	})
	cancel()
	if err := tail.Wait(); err != nil && tail.ProcessState.ExitCode() != 0 {
		t.Errorf("colony data tail ends with %v when it is interrupted", err)
	}
}

// brokerClients gives a client an account, and lists the clients of the site's broker.
func brokerClients(t *testing.T, c *colony) {
	c.must("site", "device", "add", site, "press-1", "--publish", "press/1/#")
	c.says("press-1", "site", "device", "list", site)
	lo := "http://" + c.address("--lo-http")
	c.says(node, "site", "broker", "clients", "--at", lo)
	var clients admin.List
	if err := json.Unmarshal([]byte(c.must("site", "broker", "clients", "--at", lo, "-o", "json")), &clients); err != nil || len(clients.Clients) == 0 {
		t.Fatalf("clients: %v, %+v", err, clients)
	}
	id := clients.Clients[0].Client
	c.says(id, "site", "broker", "client", id, "--at", lo)
	c.must("site", "broker", "kick", id, "--at", lo)
	c.eventually(time.Minute, "the client that was kicked is back", func() error {
		if out, code := c.cli("site", "broker", "client", id, "--at", lo); code != 0 {
			return errors.New(out)
		}
		return nil
	})
}

// proposalCommands shows and withdraws a change that is held: what runs goes on.
func proposalCommands(t *testing.T, c *colony) {
	c.refused(6, []string{"is held"}, "deploy", "hello@1.0.0", "--site", site, "--nodes", "line=7", "--wait")
	d, err := c.deployment("hello")
	if err != nil || d.Held == "" {
		t.Fatalf("deployment hello: %v, held by %q, want a proposal", err, d.Held)
	}
	c.says(d.Held, "proposal", "list")
	c.says("hello", "proposal", "show", d.Held)
	c.must("proposal", "withdraw", d.Held)
	c.greets("Hello, World! I am version 1.0.0.")
	c.says("KEPT-SINCE", "volume", "list", site)
	c.refused(4, []string{site}, "site", "accept-position", site)
}

// keyCommands makes signing keys, and changes them.
func keyCommands(t *testing.T, c *colony) {
	dir := filepath.Join(t.TempDir(), "keys")
	c.must("co", "keys", "init", dir)
	c.must("co", "keys", "rotate", dir)
	c.says("2", "co", "keys", "show", dir)
	c.must("co", "keys", "retire", dir)
	c.must("co", "keys", "rotate-root", dir)
	c.says("4", "co", "keys", "show", dir)
}

// machineCommands makes join tokens: of a site that is new, and of a node of one that is there.
func machineCommands(t *testing.T, c *colony) {
	c.says("for 1 machine\n", "site", "add", "quay")
	c.says("for 3 machines\n", "node", "token", site, "--uses", "3")
	c.says("for 1 machine\n", "site", "add", site, "--replace")
}

// accessCommands has the CO want tokens, and makes, uses and revokes some.
func accessCommands(t *testing.T, c *colony) {
	c.env = append(c.env, "XDG_CONFIG_HOME="+t.TempDir())
	config, err := os.ReadFile(c.config("co"))
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?m)^access:\n( +)`) // that colony up wrote
	if !section.Match(config) {
		t.Fatalf("the configuration has no section access:\n%s", config)
	}
	if err := os.WriteFile(c.config("co"), section.ReplaceAll(config, []byte("access:\n${1}required: true\n${1}")), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kill("co")
	c.eventually(time.Minute, "the CO wants a token", func() error {
		if out, code := c.cli("status"); code != 1 || !strings.Contains(out, "colony login") {
			return fmt.Errorf("exit code %d: %s", code, out)
		}
		return nil
	})
	text := func(args ...string) (id, file string) {
		var out struct{ ID, Token string }
		if err := json.Unmarshal([]byte(c.must(append(args, "-o", "json")...)), &out); err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(out.Token), 0o600); err != nil {
			t.Fatal(err)
		}
		return out.ID, file
	}
	_, ann := text("co", "token", "ann", "--config", c.config("co"))
	c.must("login", "--url", "http://"+c.http, "--token-file", ann, "--context", "ann")
	c.says("plant", "site", "list")
	id, ci := text("token", "create", "ci", "--role", "read-only", "--ttl", "720h")
	c.must("login", "--token-file", ci, "--context", "ci")
	c.says("ci", "context", "list")
	c.says(site, "site", "list")
	c.refused(1, []string{"read-only", "access:write"}, "token", "list")
	c.must("context", "use", "ann")
	c.must("context", "remove", "ci")
	c.must("context", "use", "ann")
	c.says("ci", "token", "list")
	c.must("token", "revoke", id)
	c.says("revoked", "token", "list")
	c.says("token "+id+" of ci (read-only)", "audit", "--principal", "ann", "--target", "/api/v1/tokens")
	c.says("refused (403)", "audit", "--refused", "--since", "24h")
	c.says("signed checkpoints", "audit", "verify")
}
