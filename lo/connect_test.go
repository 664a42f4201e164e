package lo

import (
	"crypto/sha256"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

// connectPage is the page with the examples that are run here.
const connectPage = "../docs/connect.md"

// example returns the first code below a heading of connectPage, with another address.
func example(t *testing.T, heading, address string) string {
	t.Helper()
	page, err := os.ReadFile(connectPage)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, code, _ := strings.Cut(section, "\n```")
	_, code, _ = strings.Cut(code, "\n") // behind the language
	code, _, _ = strings.Cut(code, "\n```")
	host, port, err := net.SplitHostPort(address)
	if err != nil || !found || !strings.Contains(code, "gateway.example") || !strings.Contains(code, "1883") {
		t.Fatalf("%s has no example below %q with an address, %v", connectPage, heading, err)
	}
	return strings.NewReplacer("gateway.example", host, "1883", port).Replace(code)
}

// accountsOf makes the accounts that connectPage says to add, all with one password.
func accountsOf(t *testing.T, password string) []protocol.DeviceAccount {
	t.Helper()
	page, err := os.ReadFile(connectPage)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(password))
	var out []protocol.DeviceAccount
	for _, line := range regexp.MustCompile("colony site device add plant1 [^`\n]+").FindAllString(string(page), -1) {
		words := strings.Fields(line)
		d := protocol.DeviceAccount{User: words[5], SHA256: sum[:]}
		for i := 6; i+1 < len(words); i += 2 {
			value := strings.Trim(words[i+1], "'")
			switch words[i] {
			case "--client-id":
				d.ClientIDs = append(d.ClientIDs, value)
			case "--publish":
				d.Publish = append(d.Publish, value)
			case "--subscribe":
				d.Subscribe = append(d.Subscribe, value)
			default:
				t.Fatalf("%s: unknown flag %s", line, words[i])
			}
		}
		out = append(out, d)
	}
	return out
}

// plant runs an LO with the accounts of connectPage.
func plant(t *testing.T) (l *LO, password string) {
	t.Helper()
	const secret = "a generated password"
	c := newFakeCO(t)
	l = startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	m := deviceState(1, accountsOf(t, secret)...)
	if len(m.Devices) < 6 {
		t.Fatalf("%s adds %d accounts", connectPage, len(m.Devices))
	}
	c.want(m)
	inForce(t, l, m)
	eventually(t, "the accounts are in force", func() bool {
		return l.access.MayPublish(access.Identity{Name: "press-1", Device: true}, "press/1/state")
	})
	return l, secret
}

// TestExamples runs the programs of the page about connecting clients, as they stand there.
func TestExamples(t *testing.T) {
	t.Parallel()
	l, password := plant(t)
	compiled := func(library string) func(t *testing.T, dir, code string) *exec.Cmd {
		return func(t *testing.T, dir, code string) *exec.Cmd {
			binary := filepath.Join(dir, "press")
			out, err := exec.CommandContext(t.Context(), "cc", "-Wall", "-o", binary, file(t, dir, "press.c", code), library).CombinedOutput()
			if err != nil {
				t.Fatalf("compile: %v: run scripts/setup --with-test-peers as root\n%s", err, out)
			}
			return exec.CommandContext(t.Context(), binary)
		}
	}
	programs := map[string]func(t *testing.T, dir, code string) *exec.Cmd{
		"Mosquitto tools": func(t *testing.T, _, code string) *exec.Cmd {
			return exec.CommandContext(t.Context(), "sh", "-ec", code)
		},
		"Python": func(t *testing.T, dir, code string) *exec.Cmd {
			return exec.CommandContext(t.Context(), "/usr/bin/python3", file(t, dir, "press.py", code)) // Debian's, which has its packages
		},
		"Node.js": func(t *testing.T, dir, code string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), "node", file(t, dir, "press.js", code))
			cmd.Env = []string{"NODE_PATH=/usr/local/lib/colony-test-peers/node_modules"}
			return cmd
		},
		"C with libmosquitto": compiled("-lmosquitto"),
		"C with Eclipse paho": compiled("-lpaho-mqtt3c"),
	}
	for heading, program := range programs {
		t.Run(heading, func(t *testing.T) {
			for given, want := range map[string]string{password: "running", "wrong": ""} {
				cmd := program(t, t.TempDir(), example(t, heading, l.MQTTAddr()))
				cmd.Env = append(append(os.Environ(), cmd.Env...), "PASSWORD="+given)
				out, err := cmd.CombinedOutput()
				if ok := want != ""; ok != (err == nil) || !strings.Contains(string(out), want) {
					t.Errorf("with the password %q: %v, got %q, want %q (scripts/setup --with-test-peers installs what is missing)", given, err, out, want)
				}
			}
		})
	}
}

func file(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A station is a client that plays one of the page's products at protocol level, in MQTT 3.1.1, with the library
// that Telegraf uses.
type station struct {
	t *testing.T
	paho3.Client
	got chan paho3.Message
}

func dialStation(t *testing.T, l *LO, user, password string, edit func(*paho3.ClientOptions)) *station {
	t.Helper()
	s := &station{t: t, got: make(chan paho3.Message, 100)}
	o := paho3.NewClientOptions().AddBroker("tcp://" + l.MQTTAddr()).SetClientID(user).SetUsername(user).SetPassword(password).
		SetProtocolVersion(4).SetAutoReconnect(false).SetOrderMatters(true).SetDefaultPublishHandler(func(_ paho3.Client, m paho3.Message) { s.got <- m })
	if edit != nil {
		edit(o)
	}
	s.Client = paho3.NewClient(o)
	s.wait(s.Connect())
	t.Cleanup(func() { s.Disconnect(0) })
	return s
}

func (s *station) wait(token paho3.Token) {
	s.t.Helper()
	if !token.WaitTimeout(patience) || token.Error() != nil {
		s.t.Fatalf("no success: %v", token.Error())
	}
}

func (s *station) subscribe(filters ...string) {
	s.t.Helper()
	for _, f := range filters {
		token := s.Subscribe(f, 1, nil)
		s.wait(token)
		if granted := token.(*paho3.SubscribeToken).Result()[f]; granted > 2 {
			s.t.Fatalf("%s was refused", f)
		}
	}
}

// want waits for these messages, in this order, each as its topic, payload, and RETAIN.
func (s *station) want(messages ...string) {
	s.t.Helper()
	for _, want := range messages {
		var m paho3.Message
		select {
		case m = <-s.got:
		case <-time.After(patience):
			s.t.Fatalf("nothing came, want %s", want)
		}
		got := m.Topic() + " " + string(m.Payload())
		if m.Retained() {
			got += " retained"
		}
		if got != want {
			s.t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestSparkplug plays an edge node and a host application of Sparkplug B 3.0: states, births, commands, deaths.
func TestSparkplug(t *testing.T) {
	t.Parallel()
	l, password := plant(t)
	const (
		state, ncmd      = "spBv1.0/STATE/scada", "spBv1.0/plant1/NCMD/edge-1"
		nbirth, dbirth   = "spBv1.0/plant1/NBIRTH/edge-1", "spBv1.0/plant1/DBIRTH/edge-1/press"
		ddata, ndeath    = "spBv1.0/plant1/DDATA/edge-1/press", "spBv1.0/plant1/NDEATH/edge-1"
		offline, present = `{"online": false, "timestamp": 1}`, `{"online": true, "timestamp": 1}`
	)
	host := func() *station {
		s := dialStation(t, l, "scada", password, func(o *paho3.ClientOptions) { o.SetWill(state, offline, 1, true) })
		s.subscribe(state, "spBv1.0/plant1/#")
		s.wait(s.Publish(state, 1, true, present))
		return s
	}
	h := host()
	h.want(state + " " + present)
	edge := dialStation(t, l, "edge-1", password, func(o *paho3.ClientOptions) { o.SetWill(ndeath, "bdSeq 1", 1, false) })
	edge.subscribe("spBv1.0/plant1/NCMD/edge-1/#", "spBv1.0/plant1/DCMD/edge-1/#", state)
	edge.want(state + " " + present + " retained")
	for _, m := range [][2]string{{nbirth, "bdSeq 1"}, {dbirth, "metrics"}, {ddata, "42"}} {
		edge.wait(edge.Publish(m[0], 0, false, m[1]))
	}
	h.want(nbirth+" bdSeq 1", dbirth+" metrics", ddata+" 42")
	h.wait(h.Publish(ncmd, 0, false, "rebirth"))
	edge.want(ncmd + " rebirth")
	h.want(ncmd + " rebirth") // it subscribes to the whole group
	if err := l.broker.Disconnect("edge-1", false); err != nil {
		t.Fatal(err)
	}
	h.want(ndeath + " bdSeq 1")
	edge = dialStation(t, l, "edge-1", password, nil)
	edge.subscribe(state)
	edge.want(state + " " + present + " retained")
	if err := l.broker.Disconnect("scada", false); err != nil {
		t.Fatal(err)
	}
	edge.want(state + " " + offline)
}

// flows is what the MQTT nodes of Node-RED do by the configuration of connectPage, on the library that they use: in its
// first run it goes without a word once it has its subscription, in its second one it ends as a stop of Node-RED does.
const flows = `
const again = process.argv[2] === 'again'
const online = (payload) => ({ topic: 'flows/online', payload, qos: 1, retain: true })
const client = require('mqtt').connect('mqtt://gateway.example:1883', {
  protocolVersion: 5, clientId: 'node-red/flows', username: 'node-red', password: process.env.PASSWORD, keepalive: 60,
  clean: false, properties: { sessionExpiryInterval: 3600 }, will: online('0'),
})
const send = (m, then) => client.publish(m.topic, m.payload, m, then)
let ends = false // a message that comes while it ends is acknowledged on a stream that has ended, which the library calls an error
client.on('error', (err) => { if (!ends) { console.error('refused:', err.message); process.exit(1) } })
client.on('connect', (ack) => {
  console.log('session present', ack.sessionPresent)
  if (again) return send(online('1'))
  client.subscribe('#', { qos: 1 }, () => send(online('1'), () => process.exit(0)))
})
client.on('message', (topic, payload) => {
  console.log(topic, payload.toString())
  if (again && topic === 'press/1/state') send(online('0'), () => { ends = true; client.end() })
})
`

// TestNodeRED runs what it does on MQTT.js: birth, last will and close message, and what comes while it restarts.
func TestNodeRED(t *testing.T) {
	t.Parallel()
	l, password := plant(t)
	host, port, err := net.SplitHostPort(l.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	script := file(t, t.TempDir(), "flows.js", strings.NewReplacer("gateway.example", host, "1883", port).Replace(flows))
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "node", append([]string{script}, args...)...)
		cmd.Env = append(os.Environ(), "NODE_PATH=/usr/local/lib/colony-test-peers/node_modules", "PASSWORD="+password)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v (scripts/setup --with-test-peers installs what is missing)\n%s", err, out)
		}
		return string(out)
	}
	browser := dialStation(t, l, "browser", password, nil)
	browser.subscribe("flows/#")
	if out := run(); !strings.Contains(out, "session present false") {
		t.Errorf("the first run says %q", out)
	}
	browser.want("flows/online 1", "flows/online 0") // birth, and last will
	press := dialStation(t, l, "press-1", password, nil)
	press.wait(press.Publish("press/1/state", 1, false, "running"))
	if out := run("again"); !strings.Contains(out, "session present true") || !strings.Contains(out, "press/1/state running") {
		t.Errorf("the second run says %q, want the session and what came meanwhile", out)
	}
	browser.want("flows/online 1", "flows/online 0") // birth, and close message
}

// TestTelegraf plays its two plugins: what comes while it restarts waits for the input.
func TestTelegraf(t *testing.T) {
	t.Parallel()
	l, password := plant(t)
	in := func() *station {
		return dialStation(t, l, "telegraf", password, func(o *paho3.ClientOptions) { o.SetClientID("telegraf/in").SetCleanSession(false) })
	}
	first := in()
	first.subscribe("press/+/state")
	first.Disconnect(100)
	press := dialStation(t, l, "press-1", password, nil)
	press.wait(press.Publish("press/1/state", 1, false, "running"))
	in().want("press/1/state running")
	out := dialStation(t, l, "telegraf", password, func(o *paho3.ClientOptions) { o.SetClientID("telegraf/out") })
	out.wait(out.Publish("telegraf/cpu", 1, false, "{}"))
}

// TestBrowser plays an MQTT browser: it subscribes to everything, with a client id of its own making, and sees
// what is the plant's.
func TestBrowser(t *testing.T) {
	t.Parallel()
	l, password := plant(t)
	press := dialStation(t, l, "press-1", password, nil)
	press.wait(press.Publish("press/1/state", 1, true, "running"))
	browser := dialStation(t, l, "browser", password, func(o *paho3.ClientOptions) { o.SetClientID("mqtt-explorer-3f2a91") })
	browser.subscribe("$SYS/#", "#")
	browser.want("press/1/state running retained")
	press.wait(press.Publish("press/1/state", 1, false, "stopped"))
	browser.want("press/1/state stopped")
	if n := len(browser.got); n > 0 {
		t.Errorf("%d messages more, the first on %s", n, (<-browser.got).Topic())
	}
}
