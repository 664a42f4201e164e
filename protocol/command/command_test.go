package command

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/schematest"
	"github.com/colonyfleet/colony/protocol/sign"
)

const id ID = "0123456789abcdef0123456789abcdef"

// whole are all messages, each with every field set: the golden vectors.
func whole() map[string]any {
	c := valid()
	c.Selector, c.All, c.Budget, c.Actor = map[string]string{"line": "3"}, true, 4096, "anna"
	return map[string]any{
		"command":       c,
		"envelope":      Envelope{1, []byte{1}, []byte{2}},
		"result":        Result{1, id, "gw-1", Failed, ExecutionFailed, "m", "o", true, 5, true},
		"received":      Received{1, id, 2, NoNode, "m"},
		"frame":         Frame{1, 7, "gw-1", 1, protocol.Marshal(LogLine{Text: "a"}), 3, 300, true, BudgetUsed, "m", 11, 900},
		"credit":        Credit{1, 65536, true},
		"time-ask":      TimeAsk{1, 1 << 60},
		"time":          Time{1, 1 << 60, 1700000000000},
		"subject":       Subject{"hello", "web", "nginx"},
		"network-check": NetworkCheck{Connect, "plc-7:502", 3},
		"log-request":   LogRequest{Subject{"hello", "web", "nginx"}, true, true, 60000, 100, "a|b", "stderr", true, true},
		"restriction":   Restriction{"new disk", 7200000, true},
		"exec-request":  ExecRequest{Subject{"hello", "web", "nginx"}, []string{"sh", "-c", "ls"}, true, 80, 24, true, []byte{1}},
		"forward":       ForwardRequest{Subject{"hello", "web", "nginx"}, 8080, []byte{1}},
		"diagnostics":   DiagnosticsRequest{[]byte{1}},
		"files":         FilesRequest{[]byte{1}, []string{"/var/log/*"}},
		"segment":       Segment{1, "gw-1", 1 << 33, []byte{1}, 1 << 34, []byte{2}},
		"record":        Record{Resize, []byte{1}, 80, 24, "INT", 130, 9},
		"log-line":      LogLine{"web", "nginx", "stderr", 1700000000000, "t", 1, 2, 3, true, 4, 5},
	}
}

// valid returns a command that passes Check.
func valid() Command {
	return Command{
		V: 1, ID: id, Site: "plant", Kind: Restart, Args: protocol.Marshal(Subject{Deployment: "hello"}), Nodes: []protocol.NodeID{"gw-1", "gw-2"},
		IssuedMillis: 1700000000000, DeadlineMillis: 1700000060000,
	}
}

// TestGolden holds the encoding to the vectors in testdata. UPDATE=1 writes them; a changed vector is a changed protocol.
func TestGolden(t *testing.T) {
	t.Parallel()
	for name, m := range whole() {
		path, got := filepath.Join("testdata", name+".hex"), protocol.Marshal(m)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the encoding changed (%v):\n got %x\nwant %x", name, err, got, want)
			continue
		}
		back := reflect.New(reflect.TypeOf(m))
		if err := protocol.Unmarshal(want, back.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(m, back.Elem().Interface()); diff != "" {
			t.Errorf("%s: decoded differs (-want +got):\n%s", name, diff)
		}
	}
}

// TestSchema holds command.cddl to the Go types. UPDATE=1 writes it.
func TestSchema(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("; The messages of commands, of Colony's wire protocol, version 1 (RFC 8610). Written from the Go\n; types by their test; docs/protocol.md says what they mean and on which topics they go.\n")
	done := map[reflect.Type]bool{}
	for _, m := range []any{Command{}, Envelope{}, Result{}, Received{}, Frame{}, Credit{}, TimeAsk{}, Time{}, Subject{}, NetworkCheck{}, LogRequest{}, LogLine{}, Restriction{}, ExecRequest{}, ForwardRequest{}, DiagnosticsRequest{}, FilesRequest{}, Segment{}, Record{}} {
		schematest.Write(&b, reflect.TypeOf(m), done)
	}
	for name, m := range whole() {
		if !done[reflect.TypeOf(m)] {
			t.Errorf("%s: the schema does not have %T: add it to the list of this test", name, m)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("command.cddl", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("command.cddl"); err != nil || string(got) != b.String() {
		t.Errorf("command.cddl is not what the types say; UPDATE=1 go test ./protocol/command writes it (%v)", err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Command)
		want   string // part of the error; empty: none
	}{
		"valid":             {func(*Command) {}, ""},
		"selection":         {func(c *Command) { c.Nodes, c.Selector = nil, map[string]string{"line": "3"} }, ""},
		"all":               {func(c *Command) { c.Nodes, c.All = nil, true }, ""},
		"no target":         {func(c *Command) { c.Nodes = nil }, "want nodes by name"},
		"two targets":       {func(c *Command) { c.All = true }, "one of them"},
		"short id":          {func(c *Command) { c.ID = "0a" }, "32 lower-case hex digits"},
		"capitals in id":    {func(c *Command) { c.ID = ID(strings.ToUpper(string(id))) }, "32 lower-case hex digits"},
		"not sorted":        {func(c *Command) { c.Nodes = []protocol.NodeID{"b", "a"} }, "not sorted"},
		"a node twice":      {func(c *Command) { c.Nodes = []protocol.NodeID{"a", "a"} }, "twice"},
		"too many":          {func(c *Command) { c.Nodes = make([]protocol.NodeID, MaxNodes+1) }, "select them by labels"},
		"long arguments":    {func(c *Command) { c.Args = make([]byte, MaxArgs+1) }, "the limit is"},
		"deadline at issue": {func(c *Command) { c.DeadlineMillis = c.IssuedMillis }, "0 ms after its issue"},
		"deadline too late": {func(c *Command) { c.DeadlineMillis = c.IssuedMillis + MaxLifeMillis + 1 }, "want 1 to"},
	} {
		c := valid()
		tt.change(&c)
		err := c.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestMeans(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"line": "3", "rack": "a"}
	for name, tt := range map[string]struct {
		c    Command
		want bool
	}{
		"its name":         {Command{Nodes: []protocol.NodeID{"gw-1", "gw-2"}}, true},
		"another name":     {Command{Nodes: []protocol.NodeID{"gw-2"}}, false},
		"its label":        {Command{Selector: map[string]string{"line": "3"}}, true},
		"another value":    {Command{Selector: map[string]string{"line": "4"}}, false},
		"one of two":       {Command{Selector: map[string]string{"line": "3", "hall": "1"}}, false},
		"an empty value":   {Command{Selector: map[string]string{"hall": ""}}, false},
		"all":              {Command{All: true}, true},
		"nobody":           {Command{}, false},
		"name before all":  {Command{Nodes: []protocol.NodeID{"gw-2"}, All: true}, false},
		"name and a label": {Command{Nodes: []protocol.NodeID{"gw-2"}, Selector: labels}, false},
	} {
		if got := tt.c.Means("gw-1", labels); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// key returns a signer that is always the same, and its trust. It protects nothing.
func key(t *testing.T) (*sign.Signer, sign.Trust) {
	t.Helper()
	make := func(seed byte) *sign.Signer {
		s, err := sign.NewSigner(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	root, s := make(1), make(2)
	trust, err := sign.NewTrust(root.Public())
	if err != nil {
		t.Fatal(err)
	}
	set, err := root.Sign(sign.KeySet, protocol.Marshal(sign.Keys{V: 1, Number: 1, Signing: [][]byte{s.Public()}}))
	if err != nil {
		t.Fatal(err)
	}
	if trust, err = trust.Follow(set); err != nil {
		t.Fatal(err)
	}
	return s, trust
}

func TestOpen(t *testing.T) {
	t.Parallel()
	s, trust := key(t)
	c := valid()
	statement, err := Sign(s, &c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Open(trust, "plant", statement)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&c, got); diff != "" {
		t.Errorf("opened differs (-want +got):\n%s", diff)
	}
	if _, err := Open(trust, "other", statement); sign.ReasonOf(err) != sign.WrongSite {
		t.Errorf("at another site: %v", err)
	}
	flipped := bytes.Clone(statement)
	flipped[len(flipped)-1] ^= 1
	if _, err := Open(trust, "plant", flipped); sign.ReasonOf(err) != sign.BadSignature {
		t.Errorf("with another signature: %v", err)
	}
	for name, payload := range map[string][]byte{"no command": {1}, "invalid command": protocol.Marshal(Command{V: 1, ID: id, Site: "plant"}), "a later version": protocol.Marshal(Command{V: 9, ID: id, Site: "plant"})} {
		statement, err := s.Sign(sign.Command, payload)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(trust, "plant", statement); sign.ReasonOf(err) != sign.Malformed {
			t.Errorf("%s: %v", name, err)
		}
	}
	statement, err = s.Sign(sign.Entry, protocol.Marshal(c))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(trust, "plant", statement); sign.ReasonOf(err) != sign.WrongKind {
		t.Errorf("a statement of another kind: %v", err)
	}
	c.All = true
	if _, err := Sign(s, &c); err == nil {
		t.Error("an invalid command was signed")
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind Kind
		args any
		want string // part of the error; empty: none
	}{
		"restart":               {Restart, Subject{Deployment: "hello"}, ""},
		"no deployment":         {Restart, Subject{}, "deployment name"},
		"no arguments":          {Restart, nil, "arguments are missing"},
		"long component":        {Probe, Subject{Deployment: "a", Component: strings.Repeat("c", 256)}, "more than 255"},
		"inventory":             {Inventory, nil, ""},
		"arguments of none":     {Inventory, Subject{Deployment: "hello"}, "it has no arguments"},
		"unknown kind":          {"reboot-all", nil, "want one of restart, probe"},
		"ping":                  {Check, NetworkCheck{Method: Ping, Target: "10.0.0.1"}, ""},
		"unknown method":        {Check, NetworkCheck{Method: "arp", Target: "x"}, "want dns, tcp or ping"},
		"no target":             {Check, NetworkCheck{Method: Ping}, "host name"},
		"an option as target":   {Check, NetworkCheck{Method: Ping, Target: "a b"}, "host name"},
		"too often":             {Check, NetworkCheck{Method: Ping, Target: "a", Count: 11}, "limit is 10"},
		"logs":                  {Logs, LogRequest{Subject: Subject{Deployment: "hello"}, Tail: 100, Grep: "a|b"}, ""},
		"pattern":               {Logs, LogRequest{Subject: Subject{Deployment: "hello"}, Grep: "("}, "pattern"},
		"stream":                {Logs, LogRequest{Subject: Subject{Deployment: "hello"}, Stream: "stdin"}, "stdout or stderr"},
		"tail":                  {Logs, LogRequest{Subject: Subject{Deployment: "hello"}, Tail: MaxTail + 1}, "limit"},
		"follow the previous":   {Logs, LogRequest{Subject: Subject{Deployment: "hello"}, Follow: true, Previous: true}, "no new lines"},
		"logs of no deployment": {Logs, LogRequest{}, "deployment name"},
		"hold":                  {Hold, Restriction{Reason: "a batch runs", ForMillis: 7200000}, ""},
		"no reason":             {Cordon, Restriction{ForMillis: 7200000}, "reason is missing"},
		"hold for ages":         {Hold, Restriction{Reason: "r", ForMillis: 1 << 63}, "the limit is"},
		"arguments of release":  {Release, Restriction{Reason: "r"}, "it has no arguments"},
		"no map":                {Logs, 5, "decode"},
	} {
		var args []byte
		if tt.args != nil {
			args = protocol.Marshal(tt.args)
		}
		err := Arguments(tt.kind, args)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	for _, d := range Definitions() {
		if err := Arguments(d.Kind, []byte{0xff}); err == nil {
			t.Errorf("%s: arguments of another type pass", d.Kind)
		}
	}
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()
	var c Credit
	if err := Unmarshal(protocol.Marshal(Credit{V: 9, Bytes: 1}), &c); err == nil || !strings.Contains(err.Error(), "upgrade it") {
		t.Errorf("a message of a later major version: %v", err)
	}
	if err := Unmarshal(protocol.Marshal(Credit{V: 1, Bytes: 7}), &c); err != nil || c.Bytes != 7 {
		t.Errorf("a message: %+v, %v", c, err)
	}
}

func TestPathsOfFiles(t *testing.T) {
	t.Parallel()
	key := make([]byte, 32)
	for _, p := range []string{"/var/log/syslog", "/var/log/*.log", "/"} {
		if err := (&FilesRequest{key, []string{p}}).Check(); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, p := range []string{"", "var/log", "/var/../etc/shadow", "/var/log/", "/a[", "/a\x00b", "/" + strings.Repeat("a", MaxPath)} {
		if err := (&FilesRequest{key, []string{p}}).Check(); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%.20q: %v", p, err)
		}
	}
	for _, r := range []Args{&FilesRequest{key, nil}, &FilesRequest{key, make([]string, MaxPaths+1)}, &FilesRequest{nil, []string{"/a"}}, &DiagnosticsRequest{}, &ForwardRequest{Subject{Deployment: "a"}, 0, key}, &ForwardRequest{Subject{}, 1, key}, &ForwardRequest{Subject{Deployment: "a"}, 1, nil}} {
		if err := r.Check(); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
