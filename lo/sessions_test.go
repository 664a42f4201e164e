package lo

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// connectPLC connects a client of MQTT 3.1.1 without clean session, as a PLC has it, and returns whether the
// site's broker has its session.
func connectPLC(t *testing.T, l *LO) (conn net.Conn, present bool) {
	t.Helper()
	conn, err := net.Dial("tcp", l.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	const user = "\x00\x06plc@s1"
	if _, err := io.WriteString(conn, "\x10\x1a\x00\x04MQTT\x04\x80\x00\x3c"+user+user); err != nil {
		t.Fatal(err)
	}
	ack := make([]byte, 4)
	if _, err := io.ReadFull(conn, ack); err != nil || ack[3] != 0 {
		t.Fatalf("CONNACK %x, %v", ack, err)
	}
	return conn, ack[2] == 1
}

// The site's broker stores the sessions of its clients over a restart of the LO, with what came while they
// were away; and not where sessions are off.
func TestSessionsOfTheSite(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	l := startLO(t, o)
	conn, _ := connectPLC(t, l)
	if _, err := io.WriteString(conn, "\x82\x0c\x00\x01\x00\x07line1/a\x01"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := startApp(t, l, "hmi").try(client.Message{Topic: "line1/a", Payload: []byte("while away"), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	stopLO(t, l)
	l = startLO(t, o)
	conn, present := connectPLC(t, l)
	if !present {
		t.Fatal("the session is not there after a restart")
	}
	message := make([]byte, len("..\x00\x07line1/a..while away"))
	if _, err := io.ReadFull(conn, message); err != nil || !strings.HasSuffix(string(message), "while away") {
		t.Errorf("got %q, %v", message, err)
	}
	stopLO(t, l)
	o.Sessions.Off = true
	l = startLO(t, o)
	if _, present := connectPLC(t, l); present {
		t.Error("there is a session though they are off")
	}
}

// The limits of the configuration are those of the broker; it has room for what retainedBytes and retainedTopics
// allow.
func TestLimitsOfTheSite(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	o.RetainedBytes, o.RetainedTopics = 1<<30, 1000
	if got, want := o.brokerLimits(), int64(1<<30+256_000); got.RetainedBytes != want || got.RetainedPerIdentity != want {
		t.Errorf("limits %+v, want room for %d bytes", got, want)
	}
	o.RetainedBytes, o.Limits.RetainedPerIdentity = 1<<20, 2000
	if got := o.brokerLimits(); got.RetainedBytes != 256<<20 || got.RetainedPerIdentity != 2000 {
		t.Errorf("limits %+v, want the default of all, and 2000 of an identity", got)
	}
	app := startApp(t, startLO(t, o), "hmi")
	if err := app.try(client.Message{Topic: "line1/a", Payload: make([]byte, 3000), QoS: 1, Retain: true}); err == nil || !strings.Contains(err.Error(), "no room to retain") {
		t.Errorf("above the limit: %v", err)
	}
	o.Limits, o.Sessions.Messages = limits.Limits{KeepAlive: -1}, -1
	err := o.Validate()
	for _, part := range []string{"limits: keep-alive", "sessions: a negative"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not mention %q", err, part)
		}
	}
}

// Damage of what is stored of sessions is an event of the site, found at the start or when a message is to be sent:
// no other tier has the lost messages.
func TestDamagedSessions(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	segment := filepath.Join(o.StateDir, "sessions", "segment-00000001")
	spoil := func() {
		t.Helper()
		b, err := os.ReadFile(segment)
		if err != nil || !bytes.Contains(b, []byte("while away")) {
			t.Fatalf("the message is not in %s: %v", segment, err)
		}
		if err := os.WriteFile(segment, bytes.ReplaceAll(b, []byte("while away"), []byte("while rot.")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := startLO(t, o)
	conn, _ := connectPLC(t, l)
	if _, err := io.WriteString(conn, "\x82\x0c\x00\x01\x00\x07line1/a\x01"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	publish := func() {
		t.Helper()
		if err := startApp(t, l, "hmi").try(client.Message{Topic: "line1/a", Payload: []byte("while away"), QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	spoil()
	connectPLC(t, l)
	testpart.Within(t, patience, "the damage is an event", func() error {
		if n := kinds(t, l)[protocol.StateDamaged]; n != 1 {
			return fmt.Errorf("%d events of damage, want 1", n)
		}
		return nil
	})
	stopLO(t, l)
	l = startLO(t, o)
	if n := kinds(t, l)[protocol.StateDamaged]; n != 2 { // the segment is read again
		t.Errorf("after a restart %d events of damage, want 2", n)
	}
	stopLO(t, l)
	if n := kinds(t, startLO(t, o))[protocol.StateDamaged]; n != 2 {
		t.Errorf("after another restart %d events of damage, want 2", n)
	}
}
