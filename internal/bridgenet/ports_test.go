package bridgenet

import (
	"net"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestOutside(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ low, high, first, last uint16 }{
		{32768, 60999, 61000, 65535},
		{32768, 65535, 20000, 32767},
		{1024, 65535, 1024, 65535},
		{20500, 65000, 20500, 65000},
	} {
		if first, last := outside(c.low, c.high); first != c.first || last != c.last {
			t.Errorf("outside %d to %d: %d to %d, want %d to %d", c.low, c.high, first, last, c.first, c.last)
		}
	}
}

// TestChoosePort chooses ports that no program gets which asks the kernel for any.
func TestChoosePort(t *testing.T) {
	t.Parallel()
	first, last := ownPorts()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := protocol.Port{Container: 80, HostIP: "127.0.0.1"}
	inUse := uint16(taken.Addr().(*net.TCPAddr).Port)
	other := &Attachment{}
	for range 100 {
		got, err := choosePort(port, inUse, []*Attachment{other})
		if err != nil {
			t.Fatal(err)
		}
		if got < first || got > last || portUser(protocol.Port{Host: got}, []*Attachment{other}) != nil {
			t.Fatalf("%d was chosen, want one from %d to %d that was not chosen before", got, first, last)
		}
		other.Ports = append(other.Ports, protocol.Port{Host: got, Container: 80})
	}
	free, err := choosePort(port, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := choosePort(port, free, nil); err != nil || got != free {
		t.Errorf("the port before is free, and %d was chosen: %v", got, err)
	}
}
