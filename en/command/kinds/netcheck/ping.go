package netcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// family is what differs between ICMP of IPv4 and of IPv6.
type family struct {
	datagram, raw, any string
	protocol           int
	ask, answer        icmp.Type
}

var (
	v4 = family{"udp4", "ip4:icmp", "0.0.0.0", 1, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	v6 = family{"udp6", "ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
)

// ping sends an echo to an address. The agent needs no privilege for that where net.ipv4.ping_group_range has its group; otherwise it is root.
func ping(ctx context.Context, address string) (time.Duration, error) {
	to, err := netip.ParseAddr(address)
	if err != nil {
		return 0, err
	}
	f := v4
	if to.Is6() && !to.Is4In6() {
		f = v6
	}
	var peer net.Addr = &net.UDPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	conn, err := icmp.ListenPacket(f.datagram, f.any)
	datagram := err == nil
	if err != nil {
		var second error
		if conn, second = icmp.ListenPacket(f.raw, f.any); second != nil {
			return 0, fmt.Errorf("the agent may not send ICMP: let net.ipv4.ping_group_range have its group, or run it as root: %w", errors.Join(err, second))
		}
		peer = &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	}
	defer conn.Close()                                                          // nothing is written any more
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) }) // it ends the read
	defer stop()
	id, sequence := os.Getpid()&0xffff, int(time.Now().UnixNano()&0xffff)
	b, err := (&icmp.Message{Type: f.ask, Body: &icmp.Echo{ID: id, Seq: sequence, Data: []byte("colony network check")}}).Marshal(nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := conn.WriteTo(b, peer); err != nil {
		return 0, err
	}
	return f.await(ctx, conn, began, func(e *icmp.Echo) bool { return e.Seq == sequence && (datagram || e.ID == id) })
}

// await reads until the answer comes.
func (f family) await(ctx context.Context, conn *icmp.PacketConn, began time.Time, mine func(*icmp.Echo) bool) (time.Duration, error) {
	buffer := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			if ctx.Err() != nil {
				return 0, errors.New("no answer")
			}
			return 0, err
		}
		m, err := icmp.ParseMessage(f.protocol, buffer[:n])
		if err != nil {
			continue // the answer belongs to another program
		}
		if echo, ok := m.Body.(*icmp.Echo); ok && m.Type == f.answer && mine(echo) {
			return time.Since(began), nil
		}
	}
}
