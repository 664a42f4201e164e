package client_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
)

// rogue accepts one connection after the other, answers CONNECT, and then gives each
// packet to answer, which returns the bytes to send back.
func rogue(t *testing.T, answer func(kind byte, body []byte) []byte) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { _ = c.Close() })
			serveRogue(c, answer)
			stop()
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func serveRogue(c net.Conn, answer func(kind byte, body []byte) []byte) {
	for {
		head := make([]byte, 2) // no packet here has 128 bytes or more
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		body := make([]byte, head[1])
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		out := []byte{0x20, 3, 0, 0, 0}
		if kind := head[0] >> 4; kind != 1 {
			out = answer(kind, body)
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// publishID is the packet id of a PUBLISH to the topic t.
func publishID(body []byte) (hi, lo byte) { return body[3], body[4] }

// An acknowledgement of the wrong type, or with the wrong number of reason codes,
// ends the link with an error; the client goes on with the next one.
func TestMismatchedAcknowledgements(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(hi, lo byte) []byte{
		"SUBACK without codes for a PUBLISH": func(hi, lo byte) []byte { return []byte{0x90, 3, hi, lo, 0} },
		"SUBACK with a code for a PUBLISH":   func(hi, lo byte) []byte { return []byte{0x90, 4, hi, lo, 0, 0} },
		"SUBACK cut short":                   func(hi, lo byte) []byte { return []byte{0x90, 2, hi, lo} },
		"UNSUBACK for a PUBLISH":             func(hi, lo byte) []byte { return []byte{0xb0, 4, hi, lo, 0, 0} },
		"PUBREC for a PUBLISH of QoS 1":      func(hi, lo byte) []byte { return []byte{0x50, 2, hi, lo} },
		"PUBCOMP for a PUBLISH of QoS 1":     func(hi, lo byte) []byte { return []byte{0x70, 2, hi, lo} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := rogue(t, func(kind byte, body []byte) []byte {
				if kind != 3 {
					return nil
				}
				return answer(publishID(body))
			})
			p := begin(t, client.Options{URLs: []string{"tcp://" + addr}})
			await(t, p.up, "the link")
			wantKind(t, p.Publish(t.Context(), client.Message{Topic: "t", QoS: 1}), protocol.Unavailable)
			await(t, p.down, "the end of the link")
			await(t, p.up, "the next link")
		})
	}
}

// The same while subscriptions are made, where the answer frees no place for a
// message: neither reader nor Stop may hang.
func TestMismatchedAnswerToSubscribe(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(hi, lo byte) []byte{
		"PUBACK":                func(hi, lo byte) []byte { return []byte{0x40, 2, hi, lo} },
		"SUBACK without codes":  func(hi, lo byte) []byte { return []byte{0x90, 3, hi, lo, 0} },
		"SUBACK with two codes": func(hi, lo byte) []byte { return []byte{0x90, 5, hi, lo, 0, 0, 0} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 100)
			addr := rogue(t, func(kind byte, body []byte) []byte {
				if kind != 8 {
					return nil
				}
				asked <- struct{}{}
				return answer(body[0], body[1])
			})
			p := begin(t, client.Options{URLs: []string{"tcp://" + addr}, Subscriptions: []client.Subscription{{Filter: "t", QoS: 1}}})
			await(t, asked, "the first SUBSCRIBE")
			await(t, asked, "the SUBSCRIBE of the next link")
			if p.Up() {
				t.Error("the link counts as up without its subscription")
			}
			p.stop(t)
		})
	}
}

// A message that comes with an expiry of 0 is one in its last second, and not one that never ends.
func TestExpiryOfZero(t *testing.T) {
	t.Parallel()
	addr := rogue(t, func(kind byte, body []byte) []byte {
		if kind != 8 {
			return nil
		}
		return append([]byte{0x90, 4, body[0], body[1], 0, 0}, 0x30, 10, 0, 1, 't', 5, 2, 0, 0, 0, 0, 'x')
	})
	got := make(chan client.Message, 1)
	p := begin(t, client.Options{
		URLs: []string{"tcp://" + addr}, Subscriptions: []client.Subscription{{Filter: "t"}},
		Handle: func(_ context.Context, m client.Message) error {
			got <- m
			return nil
		},
	})
	if m := await(t, got, "the message"); m.Expiry != time.Second {
		t.Errorf("the message lives for %s, want 1s", m.Expiry)
	}
	p.stop(t)
}
