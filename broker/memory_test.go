package broker_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// An idle connection costs the broker's process little memory. With 10,000 of them
// bench/broker measures about 5 kB for each; fewer show what the process takes besides.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	const clients, limit = 2000, raceFactor * 12 << 10
	child := startChild(t, "-")
	empty := resident(t, child.cmd.Process.Pid)
	for i := range clients {
		c, err := net.Dial("tcp", child.addr)
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
	if each := (resident(t, child.cmd.Process.Pid) - empty) / clients; each > limit {
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
