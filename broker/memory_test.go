package broker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/broker"
)

// asChild in the environment makes the test program a broker and nothing else.
const asChild = "COLONY_TEST_BROKER_CHILD"

// serveChild runs a broker, tells its address, and ends with its input.
func serveChild() int {
	b, err := broker.New(broker.Options{
		Access: free{}, Logger: slog.New(slog.DiscardHandler),
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	})
	if err == nil {
		err = b.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(b.Addr("main"))
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
	return 0
}

// An idle connection costs the broker's process little memory. With 10,000 of them
// bench/broker measures about 5 kB for each; the limit is far from that and from
// the 70 kB of mochi's own sessions.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	const clients, limit = 2000, raceFactor * 20 << 10
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asChild+"=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close() // ends it
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	empty := resident(t, cmd.Process.Pid)
	for i := range clients {
		c, err := net.Dial("tcp", strings.TrimSpace(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		id := fmt.Sprintf("c%07d", i)
		if _, err := c.Write([]byte("\x10\x14\x00\x04MQTT\x04\x02\x00\x3c\x00\x08" + id)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	if each := (resident(t, cmd.Process.Pid) - empty) / clients; each > limit {
		t.Errorf("%d bytes for each idle connection, want at most %d", each, limit)
	} else {
		t.Logf("%d bytes for each of %d idle connections", each, clients)
	}
}

// resident is the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(f))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
