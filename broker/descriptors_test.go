//go:build unix

package broker_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Clients that connect without end do not take the descriptors that the broker needs for files: those above its limit are
// closed, and it goes on to store messages in new files.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := startCommand(t, dir, exec.Command("/bin/sh", "-c", `ulimit -n 128 && exec "$0"`, self))
	away := dialRaw(t, c.addr)
	away.mustConnect("away", lasting(3600))
	away.subscribe("t", 1)
	_ = away.conn.Close()
	pub := dialRaw(t, c.addr)
	pub.mustConnect("pub", nil)
	welcome := 0
	for i := range 200 {
		r := dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%8), c.addr) // one address has no more than half
		id := fmt.Sprintf("c%03d", i)
		r.write(wire(0x10, text("MQTT")+"\x05\x02\x00\x3c\x00"+text(id)))
		p, err := r.within(patience)
		switch {
		case err == nil && p.FixedHeader.Type == packets.Connack && p.ReasonCode == 0:
			welcome++
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatalf("connection %d is neither served nor closed", i)
		case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed):
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if welcome < 80 || welcome > 96 {
		t.Errorf("%d connections of 200 are served with 128 descriptors, want at most 96", welcome)
	}
	large := strings.Repeat("x", 1<<20)
	for i := range uint16(40) { // more than one segment has
		pub.publish("t", large, 1, i+1)
		pub.wantCode(packets.Puback, 0)
	}
	for deadline := time.After(patience); ; {
		if segments, err := filepath.Glob(filepath.Join(dir, "segment-*")); err != nil || len(segments) > 1 {
			break
		}
		select {
		case <-deadline:
			t.Fatal("no further segment of the sessions was opened")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
