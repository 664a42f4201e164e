package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/nameserver"
	"github.com/colonyfleet/colony/internal/netns"
)

const (
	// address is where a container finds its name server. Docker has it there, and
	// configurations of proxies name it.
	address = "127.0.0.11"
	// redirected is the port on which the sockets are. Port 53 of the namespace belongs to the
	// container, which may be a name server itself: what is sent to port 53 of address
	// alone is redirected. No service has this port, and only root can listen on it.
	redirected = 4
	// redirectTimeout bounds a run of iptables, which waits for other runs.
	redirectTimeout = 20 * time.Second
)

// open opens the sockets of a name server in the network namespace of a container.
func open(ns string) (nameserver.Sockets, error) {
	var s nameserver.Sockets
	err := netns.Do(ns, func() (err error) {
		at := netip.AddrPortFrom(netip.MustParseAddr(address), redirected).String()
		if s.UDP, err = net.ListenPacket("udp4", at); err != nil {
			return err
		}
		if s.TCP, err = net.Listen("tcp4", at); err != nil {
			return errors.Join(err, s.UDP.Close())
		}
		if err := redirect(); err != nil {
			return errors.Join(err, s.UDP.Close(), s.TCP.Close())
		}
		return nil
	})
	return s, err
}

// redirect has the kernel redirect what is sent to port 53 of address. The rules outlive
// the agent; an earlier one may have made them.
func redirect() error {
	ctx, cancel := context.WithTimeout(context.Background(), redirectTimeout)
	defer cancel()
	rule := func(protocol string) string {
		return fmt.Sprintf("OUTPUT -d %s/32 -p %s --dport 53 -j DNAT --to-destination %s:%d", address, protocol, address, redirected)
	}
	check := append([]string{"--wait", "-t", "nat", "-C"}, strings.Fields(rule("tcp"))...)
	if exec.CommandContext(ctx, "iptables", check...).Run() == nil {
		return nil
	}
	restore := exec.CommandContext(ctx, "iptables-restore", "--wait", "--noflush")
	restore.Stdin = strings.NewReader("*nat\n-A " + rule("udp") + "\n-A " + rule("tcp") + "\nCOMMIT\n")
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("redirect DNS to the agent: iptables-restore: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
