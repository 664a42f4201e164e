package sessions

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/commands/socket"
	"github.com/colonyfleet/colony/co/fleet"
)

// takeWait bounds the time in which a program here takes nothing of what came for it: the other connections wait meanwhile.
const takeWait = 30 * time.Second

// Forward returns "colony port-forward".
func Forward(env *command.Env) *cobra.Command {
	var component, address string
	var idle time.Duration
	cmd := &cobra.Command{
		Use: "port-forward SITE[/NODE]/DEPLOYMENT[/CONTAINER] [LOCAL:]PORT", Short: "Have a TCP port of a container on this machine", Args: cobra.ExactArgs(2),
		Long: `Listen on a port of this machine, and pass each connection on to a port of a
container, through the site's one connection to the CO: with nothing opened at the site.
The container is named as for colony exec, and the same has to allow it: the site's file
(colony site exec allow SITE) and your role (sessions:open). LOCAL of 0 is any port that
is free. What goes through is not recorded; that it did is in the list of sessions. It
ends with Ctrl-C, or where nothing goes through for 15 minutes (--idle).`,
		Example: `  colony port-forward plant/gw-1/hello 8080
  colony port-forward plant/hello 0:8080 --address 0.0.0.0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, query, err := target(args[0], "forward")
			if err != nil {
				return err
			}
			local, port, err := ports(args[1])
			if err != nil {
				return err
			}
			query.Set("port", strconv.Itoa(port))
			if component != "" {
				query.Set("component", component)
			}
			if idle != 0 {
				query.Set("idle", idle.String())
			}
			f := &forwarder{attendance: attendance{env: env}, port: port, connections: map[uint32]net.Conn{}}
			return command.UntilInterrupted(f.forward(cmd.Context(), path+"?"+query.Encode(), net.JoinHostPort(address, strconv.Itoa(local))))
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 0, "end when nothing goes through for so long, up to 24h (default 15m)")
	cmd.Flags().StringVar(&component, "component", "", "the component, where several have such a container")
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "where to listen on this machine; every client that reaches it reaches the container")
	return cmd
}

// ports reads [LOCAL:]PORT.
func ports(s string) (local, port int, err error) {
	first, second, both := strings.Cut(s, ":")
	if !both {
		second = first
	}
	local, err1 := strconv.Atoi(first)
	port, err2 := strconv.Atoi(second)
	if err1 != nil || err2 != nil || local < 0 || local > 65535 || port < 1 || port > 65535 {
		return 0, 0, command.Usage(fmt.Errorf("%q: want PORT or LOCAL:PORT, such as 8080 or 9090:8080", s))
	}
	return local, port, nil
}

// forward listens, and passes connections on until the session or ctx ends.
func (f *forwarder) forward(ctx context.Context, path, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer listener.Close()
	if f.conn, err = f.env.Client().Dial(ctx, path, socket.Forwarding); err != nil {
		return err
	}
	defer f.conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.conn.Close() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	defer f.closeAll()
	defer listener.Close()
	f.began = func(container string) {
		f.env.Printf("%s is port %d of %s", listener.Addr(), f.port, container)
		group.Go(func() { f.accept(listener, &group) })
	}
	return f.receive(ctx)
}

// A forwarder is the end of a forwarded port on this machine.
type forwarder struct {
	attendance
	port  int // of the container
	began func(container string)

	mu          sync.Mutex // protects what follows
	connections map[uint32]net.Conn
	last        uint32
	over        bool
}

// accept passes connections on until the listener ends.
func (f *forwarder) accept(listener net.Listener, group *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		channel, ok := f.add(conn)
		if !ok {
			_ = conn.Close() // the session is over
			return
		}
		group.Go(func() { f.send(channel, conn) })
	}
}

func (f *forwarder) add(conn net.Conn) (channel uint32, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return 0, false
	}
	f.last++
	f.connections[f.last] = conn
	return f.last, true
}

// connection returns a connection, and forgets it where it has ended.
func (f *forwarder) connection(channel uint32, ended bool) net.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	conn := f.connections[channel]
	if ended {
		delete(f.connections, channel)
	}
	return conn
}

func (f *forwarder) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, conn := range f.connections {
		_ = conn.Close() // it breaks off
	}
}

// send sends what a connection says until it ends.
func (f *forwarder) send(channel uint32, conn net.Conn) {
	if f.control(socket.Control{Type: "dial", Channel: channel}) != nil {
		return // the reader learns of a connection that ended
	}
	buffer := make([]byte, 4+16<<10)
	binary.BigEndian.PutUint32(buffer, channel)
	for {
		n, err := conn.Read(buffer[4:])
		if n > 0 && f.write(websocket.BinaryMessage, buffer[:4+n]) != nil {
			return
		}
		if err == nil {
			continue
		}
		kind := "eof"
		if !errors.Is(err, io.EOF) {
			if f.connection(channel, true) == nil {
				return // the other end has ended it
			}
			kind = "closed"
			_ = conn.Close() // it broke off
		}
		_ = f.control(socket.Control{Type: kind, Channel: channel}) // as above
		return
	}
}

// receive passes on what comes until the session ends.
func (f *forwarder) receive(ctx context.Context) error {
	var session *fleet.Session
	for {
		kind, message, err := f.next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return command.Exit(noCode, fmt.Errorf("the connection to the CO broke: %w%s", err, shown(session)))
		}
		if kind == websocket.BinaryMessage {
			if len(message) > 4 {
				f.give(binary.BigEndian.Uint32(message), message[4:])
			}
			continue
		}
		var c socket.Control
		if err := json.Unmarshal(message, &c); err != nil {
			return fmt.Errorf("message of the CO: %w", err)
		}
		switch c.Type {
		case "open":
			session = c.Session
		case "began":
			f.began(c.Container)
		case "eof":
			if half, ok := f.connection(c.Channel, false).(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // where it has ended nothing is lost
			}
		case "closed":
			if conn := f.connection(c.Channel, true); conn != nil {
				if c.Message != "" {
					_, _ = fmt.Fprintf(f.env.Err, "connection from %s: %s\n", conn.RemoteAddr(), c.Message) // that is said, and the others go on
				}
				_ = conn.Close() // the other end has ended it
			}
		case "end":
			return ended(&c, session)
		}
	}
}

// give hands a connection what came for it. One that takes nothing ends.
func (f *forwarder) give(channel uint32, data []byte) {
	conn := f.connection(channel, false)
	if conn == nil {
		return // it has ended
	}
	_ = conn.SetWriteDeadline(time.Now().Add(takeWait)) // the deadline shows that a connection is dead
	if _, err := conn.Write(data); err != nil {
		if f.connection(channel, true) != nil {
			_ = conn.Close()                                                // it takes nothing
			_ = f.control(socket.Control{Type: "closed", Channel: channel}) // the reader learns of a connection that ended
		}
	}
}
