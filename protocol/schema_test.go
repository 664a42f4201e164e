package protocol

import (
	"bytes"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/schematest"
)

// messages are all messages, each with every field set: the golden vectors.
func messages() map[string]any {
	spec := DeploymentSpec{
		V: 1, ID: "7c1d1f9e-6d0c-4b57-9c55-1a1f1b8a0c11", Deployment: "hello", App: "hello", AppVersion: "1.0.0", Profile: "hello-compose",
		Components: []Component{{
			Name: "hello", Revision: "1.0.0", TimeoutMillis: 60000, NoWait: true,
			Containers: []Container{{
				Name: "web", Image: "registry.colony/hello@sha256:" + strings.Repeat("ab", 32),
				Entrypoint: []string{"/app"}, Command: []string{"serve"}, NoCommand: true, Env: []string{"A=1"}, WorkingDir: "/", User: "1000:1000", Hostname: "web",
				Network: NetworkHost, Ports: []Port{{8080, 80, "127.0.0.1", "udp"}},
				Mounts:  []Mount{{MountFile, "/etc/x", "s", true, 1, []byte("x"), 0o444, []File{{"a/b", []byte("x"), true}}, true, true, 1000, 1001, "sub"}},
				Devices: []Device{{"/dev/ttyS0", "/dev/ttyS0", "rw"}}, Limits: Limits{5e8, 64 << 20, 100, 128 << 20, 512, "0-1"},
				Restart: Restart{RestartOnFailure, 3}, DependsOn: []Dependency{{"db", ServiceHealthy, true}},
				Health: &Health{Command: []string{"true"}, HTTP: "/", Port: 80, IntervalMillis: 1, TimeoutMillis: 2, StartPeriodMillis: 3, StartIntervalMillis: 4, Retries: 5},
				CapAdd: []string{"NET_ADMIN"}, CapDrop: []string{"ALL"}, Privileged: true, ReadOnly: true, StopSignal: "SIGINT", StopTimeoutMillis: 1000,
				Labels: map[string]string{"a": "b"}, Aliases: []string{"w"}, ExtraHosts: []string{"h=10.0.0.1"}, Sysctls: map[string]string{"net.core.somaxconn": "1"}, GroupAdd: []string{"20"},
				DNS: []string{"10.0.0.1"}, DNSSearch: []string{"plant.example"}, DNSOptions: []string{"ndots:1"}, NetworkOf: "vpn",
				HostNamespaces: []HostNamespace{HostPID}, Init: true, TTY: true, Stdin: true, ShmBytes: 1 << 20, Ulimits: []Ulimit{{"nofile", 1024, -1}},
				NoNewPrivileges: true, Seccomp: "{}", AppArmor: "docker-default", AppArmorProfile: "profile x {}", Platform: "linux/arm64", Reservations: Limits{1e8, 1 << 20, 0, 0, 0, ""}, Networks: []Attachment{{"back", true, &Addressing{"10.1.2.0/24", "10.1.2.9", "10.1.2.10", "10.1.2.254"}}},
				Addressing: &Addressing{"10.1.3.0/24", "10.1.3.9", "10.1.3.10", "10.1.3.254"}, OOMScoreAdj: -500, Domainname: "plant", Annotations: map[string]string{"c": "d"},
			}},
		}},
	}
	encoded := Marshal(spec)
	status := DeploymentStatus{
		V: 1, Node: "gw-1", Deployment: "hello", Agent: "a", Boot: "b", Seq: 7, Position: Position{2, 3}, From: lifecycle.Installing, State: lifecycle.Failed,
		Actor: lifecycle.EN, Digest: DigestOf(encoded), Refused: DigestOf(nil), App: "hello", AppVersion: "1.0.0", Attempt: 2, Phase: Pulling, PulledBytes: 1, TotalBytes: 2,
		Code: ImageNotFound, Message: "m", Components: []ComponentStatus{{"hello", "web", "exited", 3, 1, "bye", []Port{{8080, 32768, "", ""}}}}, UnixMillis: 1700000000000, Recovering: true, Unassigned: true, Site: Position{1, 9}, Unsynced: true,
		Running: DigestOf(nil), RunningVersion: "0.9.0", RetryMillis: 1700000001000, Presumed: true,
	}
	held := Held{Position{2, 3}, DigestOf(nil), Position{1, 9}, "c0ffee"}
	presence := Presence{1, true, "a", "b", "1.0.0", "s", held, "the disk is full"}
	inventory := Inventory{
		V: 1, Node: "gw-1", Labels: map[string]string{"line": "3"}, AgentVersion: "1", Hostname: "h", OS: "Debian", Kernel: "6", Architecture: "arm64",
		CPUModel: "c", Cores: 4, MemoryBytes: 1 << 30, Engine: "containerd", EngineVersion: "1.6", Disks: []Disk{{"/", "sda", "ext4", 1}},
		Interfaces: []Interface{{"eth0", "ethernet", "00:00:00:00:00:01", []string{"10.0.0.2/24"}}}, Peripherals: []Peripheral{{"serial", "/dev/ttyS0", "m", "x"}},
		Vendor: "v", Model: "m", Serial: "s", StorageBytes: 1, EngineFault: "f",
		Volumes: []Volume{{"hello", "data", 4096, 1700000000000, true}}, ClockUnsynced: true, VolumeCount: 1, Unknown: []DeploymentName{"lost"}, Damaged: []string{"en/deployment hello"}, Problem: "the disk is full",
	}
	event := Event{UnixMillis: 1700000000000, Kind: StatusEvent, Node: "gw-1", Body: Marshal(status), Unsynced: true}
	return map[string]any{
		"site-desired": SiteDesired{
			V: 1, Site: "plant", Position: Position{1, 9}, Commit: "c0ffee", Deployments: []SiteEntry{{
				Deployment: "hello", Digest: DigestOf(encoded), Size: uint64(len(encoded)), Spec: encoded, Signature: []byte{1},
				Placement: Placement{"gw-1", map[string]string{"line": "3"}, 1, []byte("{}")}, Policy: Policy{3, 1000, true, 30000, true}, Rollback: true, Retry: 1, Position: Position{1, 8},
			}}, Removals: []Removal{{"old", Position{1, 7}, true, []byte{1}}}, Purges: []Purge{{"gw-1", "older", "data", Position{1, 6}, []byte{1}}},
			Running: []NodeRunning{{"gw-1", []DeploymentName{"hello"}}}, Data: []DataRule{{
				"temps", true,
				[]string{"line/+/temp"},
				"plc/", "a/", 1, true, HighPriority, 60000, 1 << 20, 3600000, 1 << 16, 500, true,
				Sample{SampleDeadband, 1000, 0.5, true, "/value"},
			}}, Digest: DigestOf(nil), Size: 4096, Content: DigestOf(nil), Decommissions: []Decommission{{"gw-9", Position{1, 5}}},
			Devices: []DeviceAccount{{"plc-7", []string{"PLC7-*"}, []string{"line1/plc7/#"}, []string{"line1/orders/+"}, []byte{1}, "$2b$10$"}}, Head: []byte{1}, KeySet: []byte{1},
			Maintenance: &Maintenance{"Europe/Berlin", []Window{{65, 1320, 240}}},
		},
		"site-tokens":        SiteTokens{1, "plant", []NodeToken{{"0123456789abcdef", []byte{1}, 10, 1700000000000, true, 1690000000000}}, []EnrolledNode{{"gw-1", []byte{1}}}, []RevokedNode{{"gw-2", 1695000000000}}, []DecidedKey{{[]byte{1}, "gw-3", true, true, 1700000000000}}},
		"site-revocations":   SiteRevocations{1, []byte{1}, []byte{2}, []byte{3}},
		"revocations":        Revocations{1, "plant", 7, []RevokedKey{{[]byte{1}, 1700000000000}}},
		"enrolment":          Enrolment{1, []byte{1}, "2a", 1700000000000, "10.0.0.5:4711", "name_taken", "r", true, "S-0815"},
		"clocks-report":      ClocksReport{1, 7},
		"revocations-report": RevocationsReport{1, 7, 1, "r"},
		"client-report":      ClientReport{1, "plc", "plc", "10.0.0.7:4711, mqtt", "r", 2, 3, 4},
		"node-desired": NodeDesired{
			1, "gw-1",
			Position{2, 4},
			[]Assignment{{"hello", DigestOf(encoded), encoded, []byte{1}, 2, true, Position{1, 8}, 30000, true, DigestOf(nil)}},
			[]NodeRemoval{{"old", Position{1, 7}, true, []byte{1}}},
			[]NodePurge{{"older", "data", Position{1, 6}, []byte{1}}},
			DigestOf(nil),
			[]byte{1},
			[][]byte{{2}},
			[]byte{3},
		},
		"node-report":       NodeReport{1, "gw-1", "a", "b", 8, held, Position{2, 2}, []DeploymentStatus{status}, 1700000000000},
		"epoch-raised":      EpochRaised{1, held, Held{Position: Position{1, 3}}, Position{3, 4}, "r"},
		"decommissioned":    Decommissioned{1, Position{1, 5}, "r"},
		"holdings":          Holdings{1, []DeploymentName{"hello"}, []byte{0xa1, 0, 1}},
		"deployment-spec":   spec,
		"deployment-status": status,
		"presence":          presence,
		"heartbeat":         Heartbeat{1, 25, 1 << 30, 1 << 33, 45000, 86400, 1700000000000, 1 << 60},
		"inventory":         inventory,
		"event":             event,
		"node-gateways":     NodeGateways{1, []Gateway{{"a", "10.0.0.5", "b1"}, {"b", "10.0.0.6", "b2"}}},
		"placement-report":  PlacementReport{1, "hello", []NodeID{"gw-1"}, map[NodeID]string{"gw-2": "label"}, "p"},
		"adopted":           Adopted{1, Position{1, 9}, "c0ffee", "r", held, true},
		"loss":              Loss{1, "data", 5, 100, true},
		"snapshot":          Snapshot{1, []NodeSnapshot{{"gw-1", presence, inventory, []Gateway{{"a", "10.0.0.5", "b1"}}, true, Marshal(1)}}, []DeploymentStatus{status}, 4, "c", Position{1, 9}},
		"batch":             Batch{1, "e", 1, 1, Marshal(event), "zstd", 1, DataStream("temps"), 1700000000000, Backlog{9, 4096, 1500, 3, 2, 40000, 8000}, PreviousEpoch{"d", 7}},
		"data-message":      DataMessage{1, "line/1/temp", []byte("21.5"), 1, true, 60000, "text/plain", "r", []byte{1}, []string{"k", "v"}},
		"ack":               Ack{1, "e", 42, DataStream("temps"), true, "r", true},
	}
}

// TestGolden holds the encoding to the vectors in testdata, which other
// implementations can use too. UPDATE=1 writes them; a changed vector is a
// changed protocol.
func TestGolden(t *testing.T) {
	t.Parallel()
	for name, m := range messages() {
		path := filepath.Join("testdata", name+".hex")
		got := Marshal(m)
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the encoding changed:\n got %x\nwant %x", name, got, want)
		}
		back := reflect.New(reflect.TypeOf(m))
		if err := Unmarshal(want, back.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(m, back.Elem().Interface()); diff != "" {
			t.Errorf("%s: decoded differs (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnknownKeys checks that a message of a later minor version is read, and
// one of a later major version refused.
func TestUnknownKeys(t *testing.T) {
	t.Parallel()
	var a Ack
	if err := Unmarshal(must(cbor.Marshal(map[int]any{0: 1, 1: "e", 2: 5, 99: "new"})), &a); err != nil || a.Seq != 5 {
		t.Errorf("unknown key: %v %+v", err, a)
	}
	err := Unmarshal(must(cbor.Marshal(map[int]any{0: 2, 1: "e", 2: 5})), &a)
	if err == nil || KindOf(err) != Invalid || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("later major version: %v", err)
	}
	if err := Unmarshal(append(Marshal(a), 0), &a); err == nil {
		t.Error("trailing bytes were accepted")
	}
	if err := Unmarshal(make([]byte, MaxMessage+1), &a); err == nil {
		t.Error("an oversized message was accepted")
	}
}

func TestHeartbeatIsSmall(t *testing.T) {
	t.Parallel()
	if n := len(Marshal(messages()["heartbeat"])); n >= 64 {
		t.Errorf("%d bytes, want fewer than 64", n)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, m := range messages() {
		f.Add(Marshal(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range messages() {
			v := reflect.New(reflect.TypeOf(m))
			if Unmarshal(b, v.Interface()) == nil {
				again := reflect.New(reflect.TypeOf(m))
				if err := Unmarshal(Marshal(v.Elem().Interface()), again.Interface()); err != nil {
					t.Fatalf("%T does not survive its own encoding: %v", m, err)
				}
			}
		}
	})
}

// TestEveryMessageHasAVector finds each message among those of the vectors and the schema, which are written
// from them: what has a protocol version is a message.
func TestEveryMessageHasAVector(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	for _, m := range messages() {
		have[reflect.Indirect(reflect.ValueOf(m)).Type().Name()] = true
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Name.Name != "version" || d.Recv == nil {
				continue
			}
			found++
			if name := d.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name; !have[name] {
				t.Errorf("%s: %s is a message and has no vector: add it, with every field set, to messages", file, name)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d messages found: the test does not read the package", found)
	}
}

// TestSchema holds colony.cddl to the Go types. UPDATE=1 writes it.
func TestSchema(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("; The messages of Colony's wire protocol, version 1 (RFC 8610). Written from the Go\n; types by their test; docs/protocol.md says what they mean and on which topics they go.\n")
	done := map[reflect.Type]bool{}
	for _, m := range []any{SiteDesired{}, SiteTokens{}, SiteRevocations{}, Revocations{}, NodeDesired{}, DeploymentSpec{}, DeploymentStatus{}, Presence{}, Heartbeat{}, Inventory{}, Batch{}, PreviousEpoch{}, Ack{}, Event{}, NodeGateways{}, PlacementReport{}, Adopted{}, NodeReport{}, EpochRaised{}, Holdings{}, Decommissioned{}, Enrolment{}, RevocationsReport{}, ClocksReport{}, ClientReport{}, Loss{}, Snapshot{}, DataMessage{}} {
		schematest.Write(&b, reflect.TypeOf(m), done)
	}
	for name, m := range messages() {
		if typ := reflect.Indirect(reflect.ValueOf(m)).Type(); !done[typ] {
			t.Errorf("%s: the schema does not have %s: add it to the list of this test", name, typ)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("colony.cddl", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("colony.cddl")
	if err != nil || string(got) != b.String() {
		t.Errorf("colony.cddl is not what the types say; UPDATE=1 go test ./protocol writes it (%v)", err)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in string
		ok bool
	}{
		{"plant-1", true},
		{"a", true},
		{strings.Repeat("a", 63), true},
		{strings.Repeat("a", 64), false},
		{"", false},
		{"Plant", false},
		{"-a", false},
		{"a-", false},
		{"a/b", false},
		{"a+", false},
		{"a#", false},
		{"a\n", false},
		{"é", false},
	} {
		if _, err := ParseSiteID(tt.in); (err == nil) != tt.ok {
			t.Errorf("ParseSiteID(%q) = %v", tt.in, err)
		}
	}
	for in, ok := range map[string]bool{string(DigestOf(nil)): true, "sha256:00": false, "sha512:" + strings.Repeat("0", 64): false, strings.ToUpper(string(DigestOf(nil))): false} {
		if _, err := ParseDigest(in); (err == nil) != ok {
			t.Errorf("ParseDigest(%q) = %v", in, err)
		}
	}
}
