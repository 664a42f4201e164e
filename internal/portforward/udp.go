package portforward

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv6"

	"github.com/colonyfleet/colony/internal/retry"
)

// maxPacket is the largest packet of UDP.
const maxPacket = 65_535

// A client is the sender of packets, and the address of the node that it sends them to: replies
// come from there.
type client struct {
	from netip.AddrPort
	at   netip.Addr
}

// A udpPort has a socket towards the container for each client.
type udpPort struct {
	*port
	conn *ipv6.PacketConn

	mu      sync.Mutex // protects what follows
	clients map[client]*net.UDPConn
}

// serveUDP listens, and hands each packet on.
func (o *port) serveUDP(address string) error {
	l, err := net.ListenPacket("udp6", address)
	if err != nil {
		return err
	}
	u := &udpPort{port: o, conn: ipv6.NewPacketConn(l), clients: map[client]*net.UDPConn{}}
	if err := u.conn.SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true); err != nil {
		return errors.Join(err, l.Close())
	}
	if !o.hold(l) {
		return net.ErrClosed
	}
	o.running.Go(u.receive)
	return nil
}

// receive hands the packets of all clients on.
func (u *udpPort) receive() {
	b := make([]byte, maxPacket)
	for {
		n, control, from, err := u.conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			_ = retry.Sleep(u.ctx, acceptPause) // it ends with the port: then the next read fails
			continue
		}
		address, ok := from.(*net.UDPAddr)
		if !ok || control == nil {
			continue
		}
		at, _ := netip.AddrFromSlice(control.Dst)
		c := client{address.AddrPort(), at}
		if u.forwarder.refused(c.from) {
			continue
		}
		if to := u.socket(c, control.IfIndex); to != nil {
			// What the container does not take is lost, as on any network.
			_, _ = to.Write(b[:n])
			_ = to.SetReadDeadline(time.Now().Add(idleTimeout))
		}
	}
}

// socket returns the socket of a client, or nil where there are too many.
func (u *udpPort) socket(c client, link int) *net.UDPConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	if to := u.clients[c]; to != nil {
		return to
	}
	if len(u.clients) >= maxConnections || !u.forwarder.enter() {
		return nil
	}
	conn, err := net.Dial("udp4", u.to)
	if err != nil {
		u.forwarder.leave()
		return nil
	}
	to := conn.(*net.UDPConn)
	if !u.hold(to) {
		u.forwarder.leave()
		return nil
	}
	u.clients[c] = to
	u.running.Go(func() { u.reply(c, to, link) })
	return to
}

// reply hands the answers of the container to one client, until it is idle.
func (u *udpPort) reply(c client, from *net.UDPConn, link int) {
	defer func() {
		u.mu.Lock()
		delete(u.clients, c)
		u.mu.Unlock()
		u.drop(from)
		u.forwarder.leave()
	}()
	control := &ipv6.ControlMessage{Src: c.at.AsSlice()}
	if c.at.IsLinkLocalUnicast() {
		control.IfIndex = link
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	for {
		b, n, err := readPacket(raw)
		if err != nil {
			return // idle, refused or closed: the next packet of the client begins anew
		}
		_, _ = u.conn.WriteTo(b[:n], control, net.UDPAddrFromAddrPort(c.from)) // see receive
		packets.Put(b)
	}
}

// packets are buffers for replies: clients that wait for one have none.
var packets = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// readPacket reads one packet into a buffer of packets, which is the caller's then.
func readPacket(conn syscall.RawConn) (b *[maxPacket]byte, n int, err error) {
	var failed error
	err = conn.Read(func(fd uintptr) (done bool) {
		b = packets.Get().(*[maxPacket]byte)
		for {
			if n, failed = syscall.Read(int(fd), b[:]); failed != syscall.EINTR {
				break
			}
		}
		if failed != nil {
			packets.Put(b)
		}
		return failed != syscall.EAGAIN
	})
	return b, n, errors.Join(err, failed)
}
