// Package sessions has the commands about sessions: programs in containers that persons use.
package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/api/commands/socket"
	"github.com/colonyfleet/colony/co/fleet"
)

// sendWait bounds the wait for a CO that takes nothing, silence for one that says nothing: it pings more often.
const sendWait, silence = 30 * time.Second, time.Minute

// Exec returns "colony exec".
func Exec(env *command.Env) *cobra.Command {
	var component string
	var input, terminal bool
	var idle time.Duration
	cmd := &cobra.Command{
		Use: "exec SITE[/NODE]/DEPLOYMENT[/CONTAINER] -- PROGRAM [ARG]...", Short: "Run a program in a container, and be at it", Args: cobra.MinimumNArgs(2),
		Long: `Run a program in a container of a deployment: as its user, in its directory and
with its environment. With two names these are SITE/DEPLOYMENT, with three
SITE/NODE/DEPLOYMENT, with four CONTAINER is the service of a Compose file. What is
left out must be the only one.

What the program shows is recorded (colony session play). The site's file must allow
it (colony site exec allow SITE), and your role needs sessions:open. The exit code is
that of the program; 125 where there is none. A link that fails for less than 15 s
breaks nothing off.`,
		Example: `  colony exec plant/gw-1/hello -t -- sh
  colony exec plant/hello -- cat /etc/os-release
  tar c conf | colony exec plant/gw-1/hello/web -i -- tar x -C /tmp`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, query, err := target(args[0], "exec")
			if err != nil {
				return notTheProgram(err)
			}
			query["argument"] = args[1:]
			if component != "" {
				query.Set("component", component)
			}
			if idle != 0 {
				query.Set("idle", idle.String())
			}
			s := &attendance{env: env, in: cmd.InOrStdin(), terminal: terminal}
			if input || terminal {
				query.Set("input", "true")
				s.input = true
			}
			return notTheProgram(s.attend(cmd.Context(), path, query))
		},
	}
	cmd.Flags().BoolVarP(&input, "stdin", "i", false, "send the standard input to the program")
	cmd.Flags().BoolVarP(&terminal, "tty", "t", false, "give the program this terminal; includes --stdin")
	cmd.Flags().DurationVar(&idle, "idle", 0, "end the session when nothing was typed or shown for so long, up to 24h (default 15m)")
	cmd.Flags().StringVar(&component, "component", "", "the component, where several have such a container")
	return cmd
}

// target reads SITE[/NODE]/DEPLOYMENT[/CONTAINER], for something that is done there.
func target(s, what string) (path string, query url.Values, err error) {
	parts := strings.Split(s, "/")
	query = url.Values{}
	for _, p := range parts {
		if p == "" {
			parts = nil
		}
	}
	switch len(parts) {
	case 2:
		return "/deployments/" + url.PathEscape(parts[0]) + "/" + url.PathEscape(parts[1]) + "/" + what, query, nil
	case 3, 4:
		query.Set("node", parts[1])
		if len(parts) == 4 {
			query.Set("container", parts[3])
		}
		return "/deployments/" + url.PathEscape(parts[0]) + "/" + url.PathEscape(parts[2]) + "/" + what, query, nil
	}
	return "", nil, command.Usage(fmt.Errorf("%q: want SITE/DEPLOYMENT, SITE/NODE/DEPLOYMENT or SITE/NODE/DEPLOYMENT/CONTAINER", s))
}

// noCode is the exit code where the program has none.
const noCode = 125

// notTheProgram gives an error that is none of the program the exit code of those, so that a script can tell them apart.
func notTheProgram(err error) error {
	if _, own := errors.AsType[*command.ExitError](err); err == nil || own {
		return err
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted: the program is hung up")
	}
	return command.Exit(noCode, err)
}

// An attendance is a person's end of a program.
type attendance struct {
	env             *command.Env
	in              io.Reader
	input, terminal bool
	answers         bool // a ping counts as a sign of the CO

	writing sync.Mutex // held while a message is written
	conn    *websocket.Conn
}

func (s *attendance) attend(ctx context.Context, path string, query url.Values) error {
	fd := -1
	if f, ok := s.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fd = int(f.Fd())
	}
	if s.terminal {
		if fd < 0 {
			return command.Usage(fmt.Errorf("--tty: the standard input is no terminal; leave it out, with --stdin for a pipe"))
		}
		columns, rows, err := term.GetSize(fd)
		if err != nil {
			return fmt.Errorf("size of the terminal: %w", err)
		}
		query.Set("terminal", "true")
		query.Set("columns", strconv.Itoa(min(columns, 65535)))
		query.Set("rows", strconv.Itoa(min(rows, 65535)))
	}
	var err error
	if s.conn, err = s.env.Client().Dial(ctx, path+"?"+query.Encode(), socket.Protocol); err != nil {
		return err
	}
	defer s.conn.Close()
	if s.terminal {
		before, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("have the terminal raw: %w", err)
		}
		defer func() { _ = term.Restore(fd, before) }() // the shell repairs what is left
		sizes := make(chan os.Signal, 1)
		signal.Notify(sizes, syscall.SIGWINCH)
		defer signal.Stop(sizes)
		over := make(chan struct{})
		defer close(over)
		go s.follow(fd, sizes, over)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	if s.input {
		go s.send() // it ends with the program: nothing ends a read of a terminal
	}
	return s.receive(ctx)
}

// follow tells the size of the terminal when it changes.
func (s *attendance) follow(fd int, sizes <-chan os.Signal, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-sizes:
			if columns, rows, err := term.GetSize(fd); err == nil {
				_ = s.control(socket.Control{Type: "resize", Columns: uint16(min(columns, 65535)), Rows: uint16(min(rows, 65535))}) // the reader learns of a connection that ended
			}
		}
	}
}

func (s *attendance) write(kind int, b []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(sendWait)); err != nil {
		return err
	}
	return s.conn.WriteMessage(kind, b)
}

func (s *attendance) control(c socket.Control) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.write(websocket.TextMessage, b)
}

// send sends the standard input until it, or the connection, ends.
func (s *attendance) send() {
	buffer := make([]byte, 1+16<<10)
	buffer[0] = socket.ChannelStdin
	for {
		n, err := s.in.Read(buffer[1:])
		if n > 0 && s.write(websocket.BinaryMessage, buffer[:1+n]) != nil {
			return
		}
		if err != nil {
			_ = s.control(socket.Control{Type: "eof"}) // the reader learns of a connection that ended
			return
		}
	}
}

// next returns the next message of the CO, which pings where it says nothing.
func (s *attendance) next() (kind int, message []byte, err error) {
	if !s.answers {
		s.answers = true
		ping := s.conn.PingHandler()
		s.conn.SetPingHandler(func(data string) error {
			_ = s.conn.SetReadDeadline(time.Now().Add(silence)) // the deadline shows that a connection is dead
			return ping(data)
		})
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(silence)) // likewise
	return s.conn.ReadMessage()
}

// receive shows what the program says until it ends.
func (s *attendance) receive(ctx context.Context) error {
	var session *fleet.Session
	for {
		kind, message, err := s.next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return command.Exit(noCode, fmt.Errorf("the connection to the CO broke: %w%s", err, shown(session)))
		}
		if kind == websocket.BinaryMessage && len(message) > 0 {
			out := s.env.Out
			if message[0] == socket.ChannelStderr {
				out = s.env.Err
			}
			if _, err := out.Write(message[1:]); err != nil {
				return fmt.Errorf("write the output: %w", err)
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
		case "end":
			return ended(&c, session)
		}
	}
}

// shown says where to find what the session showed.
func shown(s *fleet.Session) string {
	if s == nil {
		return ""
	}
	return "; colony session show " + string(s.ID) + " says what became of it"
}

// ended is the answer of the command.
func ended(c *socket.Control, s *fleet.Session) error {
	if c.Reason == fleet.SessionExited && c.ExitCode != nil {
		if *c.ExitCode == 0 {
			return nil
		}
		return command.Exit(int(*c.ExitCode), nil)
	}
	return command.Exit(noCode, fmt.Errorf("the session ended (%s): %s%s", c.Reason, c.Message, shown(s)))
}
