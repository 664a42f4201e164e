// Package socket is a client that is at a program in a container, by WebSocket: its messages, and the end of the CO.
package socket

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/command"
)

// Protocol is the subprotocol of WebSocket (RFC 6455, section 1.9) by which a client is at a program.
const Protocol = "session.v1.colony"

// Forwarding is the subprotocol by which a client has connections to a port of a container: its binary messages begin with the number of the
// connection in four bytes, the most significant first, whose data follow.
const Forwarding = "forward.v1.colony"

// The channels: the first byte of a binary message, whose rest is data of it.
const (
	ChannelStdin  = 0 // input of the program
	ChannelStdout = 1 // its standard output
	ChannelStderr = 2 // its standard error
)

// A Control is a text message of a session, as JSON.
type Control struct {
	// Type is resize, signal or eof of a client, and open, began, exit or end of the CO; of a forwarded port dial of a client, and eof and closed of
	// both.
	Type    string `json:"type"`
	Channel uint32 `json:"channel,omitempty"` // of dial, eof and closed: the connection
	Columns uint16 `json:"columns,omitempty"` // of resize
	Rows    uint16 `json:"rows,omitempty"`    // of the terminal, with Columns
	Signal  string `json:"signal,omitempty"`  // of signal: such as INT
	// Session is that of open.
	Session *fleet.Session `json:"session,omitempty"`
	// Container is that of began, as component/container.
	Container string `json:"container,omitempty"`
	// ExitCode is that of exit and end: of the program, where it ended.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Reason and Message are those of end.
	Reason  fleet.SessionReason `json:"reason,omitempty"`
	Message string              `json:"message,omitempty"`
}

const (
	// mostMessage bounds a message of a client, in bytes.
	mostMessage = 64 << 10
	// pingEvery is how often a client is pinged, and pingWait how long a ping waits for what is being sent.
	pingEvery = 15 * time.Second
	pingWait  = 10 * time.Second
	// stillWait bounds the time in which a client sends nothing, or reads nothing: a person may look at a page of its
	// output.
	stillWait = 2 * time.Minute
)

// A Socket is a client that is at a program, by WebSocket.
type Socket struct {
	conn  *websocket.Conn
	ports bool          // of the subprotocol Forwarding
	stop  chan struct{} // ends the pings
	pings sync.WaitGroup

	writing sync.Mutex // held while a message is written

	mu     sync.Mutex // protects closed
	closed bool       // nothing is received any more
}

// New returns the socket of a connection whose handshake is done. End ends it.
func New(conn *websocket.Conn) *Socket {
	s := &Socket{conn: conn, ports: conn.Subprotocol() == Forwarding, stop: make(chan struct{})}
	conn.SetReadLimit(mostMessage)
	s.extend()
	conn.SetPongHandler(func(string) error { s.extend(); return nil })
	s.pings.Go(func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case now := <-tick.C:
				_ = conn.WriteControl(websocket.PingMessage, nil, now.Add(pingWait)) // the reader learns of it
			}
		}
	})
	return s
}

// End closes the connection.
func (s *Socket) End() {
	close(s.stop)
	s.pings.Wait()
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_ = s.conn.Close()
}

// extend lets the client be silent for a while more.
func (s *Socket) extend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = s.conn.SetReadDeadline(time.Now().Add(stillWait)) // the deadline makes the reader notice a dead connection
	}
}

// Close ends Receive; something may still be sent.
func (s *Socket) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	_ = s.conn.SetReadDeadline(time.Now()) // likewise
}

// Receive returns what the client did next.
func (s *Socket) Receive() (command.Record, error) {
	for {
		s.extend() // what the node took long to take is no silence of the client
		kind, message, err := s.conn.ReadMessage()
		if err != nil {
			return command.Record{}, err
		}
		if s.ports {
			return port(kind, message)
		}
		if kind == websocket.BinaryMessage {
			if len(message) == 0 || message[0] != ChannelStdin {
				return command.Record{}, errors.New("a binary message that is not of the channel 0")
			}
			if len(message) == 1 {
				continue
			}
			return command.Record{Kind: command.Stdin, Data: message[1:]}, nil
		}
		var c Control
		if err := json.Unmarshal(message, &c); err != nil {
			return command.Record{}, fmt.Errorf("a text message that is no JSON of a session: %w", err)
		}
		switch c.Type {
		case "resize":
			if c.Columns > 0 && c.Rows > 0 {
				return command.Record{Kind: command.Resize, Columns: c.Columns, Rows: c.Rows}, nil
			}
		case "signal":
			if _, err := command.ParseSignal(c.Signal); err != nil {
				return command.Record{}, err
			}
			return command.Record{Kind: command.Signal, Name: c.Signal}, nil
		case "eof":
			return command.Record{Kind: command.StdinEnd}, nil
		default:
			return command.Record{}, fmt.Errorf("a message of type %.20q: want resize, signal or eof", c.Type)
		}
	}
}

// port reads a message about a forwarded port.
func port(kind int, message []byte) (r command.Record, err error) {
	if kind == websocket.BinaryMessage {
		if len(message) <= 4 || binary.BigEndian.Uint32(message) == 0 {
			return r, errors.New("a binary message without the number of a connection, or without data")
		}
		return command.Record{Kind: command.Stdin, Channel: binary.BigEndian.Uint32(message), Data: message[4:]}, nil
	}
	var c Control
	if err := json.Unmarshal(message, &c); err != nil {
		return r, fmt.Errorf("a text message that is no JSON of a session: %w", err)
	}
	kinds := map[string]command.RecordKind{"dial": command.Dial, "eof": command.StdinEnd, "closed": command.Closed}
	if r.Kind, r.Channel = kinds[c.Type], c.Channel; r.Kind == "" || r.Channel == 0 {
		return r, fmt.Errorf("a message of type %.20q for connection %d: want dial, eof or closed, and a number from 1 on", c.Type, c.Channel)
	}
	return r, nil
}

// Send sends what the program said.
func (s *Socket) Send(r *command.Record) error {
	if s.ports {
		switch r.Kind { //nolint:exhaustive // the others are for the node, or of programs
		case command.Stdout:
			return s.write(websocket.BinaryMessage, append(binary.BigEndian.AppendUint32(nil, r.Channel), r.Data...))
		case command.StdinEnd:
			return s.text(Control{Type: "eof", Channel: r.Channel})
		case command.Closed:
			return s.text(Control{Type: "closed", Channel: r.Channel, Message: r.Name})
		}
	}
	switch r.Kind { //nolint:exhaustive // the others are for the node
	case command.Stdout:
		return s.write(websocket.BinaryMessage, append([]byte{ChannelStdout}, r.Data...))
	case command.Stderr:
		return s.write(websocket.BinaryMessage, append([]byte{ChannelStderr}, r.Data...))
	case command.Began:
		return s.text(Control{Type: "began", Container: r.Name})
	case command.Exit:
		return s.text(Control{Type: "exit", ExitCode: &r.Code})
	}
	return nil
}

// Control sends a message, if that is still possible.
func (s *Socket) Control(c Control) { _ = s.text(c) }

func (s *Socket) text(c Control) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.write(websocket.TextMessage, b)
}

func (s *Socket) write(kind int, message []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(stillWait)); err != nil {
		return err
	}
	return s.conn.WriteMessage(kind, message)
}
