// Package mosquittotest starts Mosquitto, a real external MQTT broker, for the tests of a CO that uses one.
package mosquittotest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
)

// A Broker is a Mosquitto that keeps nothing over a restart.
type Broker struct {
	*testproc.Process
	// Addr is where it listens, as host:port.
	Addr   string
	t      testing.TB
	config string
}

// Start starts a Mosquitto with further lines of configuration, and waits until it listens. It ends with the test.
func Start(t testing.TB, more ...string) *Broker {
	t.Helper()
	if _, err := exec.LookPath("mosquitto"); err != nil {
		t.Fatal("mosquitto is not installed: run scripts/setup --with-test-peers as root")
	}
	dir := t.TempDir()
	b := &Broker{Process: testproc.New(t, "mosquitto", filepath.Join(dir, "log")), t: t, config: filepath.Join(dir, "mosquitto.conf")}
	for range 3 { // a program that is no test may look at the port in between, by listening there
		b.Addr = freeport.Addr(t)
		_, port, err := net.SplitHostPort(b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		lines := append([]string{"listener " + port + " 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"}, more...)
		if err := os.WriteFile(b.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if b.start() == nil {
			t.Cleanup(b.Kill)
			return b
		}
		b.Stop() // it has ended
	}
	b.Again()
	t.Cleanup(b.Kill)
	return b
}

// Again starts the broker after it was killed, and waits until it listens.
func (b *Broker) Again() {
	b.t.Helper()
	if err := b.start(); err != nil {
		b.t.Fatal(err)
	}
}

// start starts it, and waits until it listens, or has ended, which is the error.
func (b *Broker) start() (ended error) {
	b.t.Helper()
	b.Start("mosquitto", "-c", b.config)
	testpart.Eventually(b.t, "mosquitto listens", func() bool {
		err := answers(b.Addr)
		ended = b.Running()
		return err == nil || ended != nil
	})
	return ended
}

// answers returns an error where no broker answers at an address.
func answers(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01?")); err != nil { // CONNECT of MQTT 3.1.1
		return err
	}
	connack := make([]byte, 4)
	_, err = io.ReadFull(c, connack)
	return err
}

// Documented returns the lines that give it the access control which docs/broker.md, at a path, tells people to set.
func Documented(t testing.TB, doc string) []string {
	t.Helper()
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	const first = "user colony-co\n"
	_, text, found := strings.Cut(string(b), "```\n"+first)
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatalf("%s has no access file for Mosquitto", doc)
	}
	access := filepath.Join(t.TempDir(), "access")
	if err := os.WriteFile(access, []byte(first+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{fmt.Sprintf("acl_file %s", access), "user root"}
}
