package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// A peer is an MQTT 3.1.1 client with nothing that costs time: packets are bytes.
type peer struct {
	net.Conn
	r    *bufio.Reader
	body []byte
}

const (
	connack = 2
	publish = 3
	puback  = 4
	suback  = 9
)

// dial connects as id, with a last will on a topic if it is not empty.
func dial(addr, id, will string) (*peer, error) {
	p, _, err := dialAs(addr, id, will, 0x02)
	return p, err
}

// dialAs is dial with the flags of CONNECT; present says that the broker has a session.
func dialAs(addr, id, will string, flags byte) (p *peer, present bool, err error) {
	c, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return nil, false, err
	}
	return connectOver(c, id, will, flags)
}

// connectOver is dialAs over a connection, which it closes where it fails.
func connectOver(c net.Conn, id, will string, flags byte) (p *peer, present bool, err error) {
	defer func() {
		if err != nil {
			_ = c.Close() // never used
		}
	}()
	p = &peer{Conn: c, r: bufio.NewReaderSize(c, 2<<10)}
	body := append([]byte("\x00\x04MQTT\x04"), flags, 0, 60)
	body = text(body, id)
	if will != "" {
		body[7] |= 0x04 | 0x08 // QoS 1
		body = text(text(body, will), "gone")
	}
	if _, err := p.Write(packet(0x10, body)); err != nil {
		return nil, false, err
	}
	kind, got, err := p.next()
	if err != nil || kind>>4 != connack || got[1] != 0 {
		return nil, false, fmt.Errorf("connect %s: packet %x %x: %w", id, kind, got, err)
	}
	return p, got[0] == 1, nil
}

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func packet(head byte, body []byte) []byte {
	out := append(make([]byte, 0, len(body)+4), head)
	for n := len(body); ; {
		b := byte(n & 0x7f)
		if n >>= 7; n > 0 {
			out = append(out, b|0x80)
			continue
		}
		return append(append(out, b), body...)
	}
}

// message is a PUBLISH packet.
func message(topic string, payload []byte, qos byte, id uint16, retain bool) []byte {
	head := byte(0x30) | qos<<1
	if retain {
		head |= 1
	}
	body := text(nil, topic)
	if qos > 0 {
		body = binary.BigEndian.AppendUint16(body, id)
	}
	return packet(head, append(body, payload...))
}

// next reads a packet; body is good until the next call.
func (p *peer) next() (head byte, body []byte, err error) {
	if head, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size, shift := 0, 0
	for more := true; more; shift += 7 {
		b, err := p.r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size |= int(b&0x7f) << shift
		more = b&0x80 != 0
	}
	if cap(p.body) < size {
		p.body = make([]byte, size)
	}
	body = p.body[:size]
	_, err = io.ReadFull(p.r, body)
	return head, body, err
}

// subscribe asks for a filter and waits for the answer.
func (p *peer) subscribe(filter string, qos byte) error {
	if _, err := p.Write(packet(0x82, append(text([]byte{0, 1}, filter), qos))); err != nil {
		return err
	}
	head, body, err := p.next()
	if err != nil || head>>4 != suback || body[2] > 2 {
		return fmt.Errorf("subscribe %s: packet %x %x: %w", filter, head, body, err)
	}
	return nil
}

// receive reads packets, acknowledges messages of QoS 1, and calls each for every
// message, until it returns false or the connection ends.
func (p *peer) receive(each func() bool) error {
	for {
		head, body, err := p.next()
		if err != nil {
			return err
		}
		if head>>4 != publish {
			continue
		}
		if head>>1&3 == 1 {
			at := 2 + int(binary.BigEndian.Uint16(body))
			if _, err := p.Write([]byte{puback << 4, 2, body[at], body[at+1]}); err != nil {
				return err
			}
		}
		if !each() {
			return nil
		}
	}
}

// A window lets a publisher have so many messages of QoS 1 under way.
type window struct {
	*peer
	free chan struct{}
	done chan error
}

func newWindow(p *peer, size int) *window {
	w := &window{peer: p, free: make(chan struct{}, size), done: make(chan error, 1)}
	for range size {
		w.free <- struct{}{}
	}
	go func() { // ends with the connection
		for {
			head, _, err := p.next()
			if err != nil {
				w.done <- err
				return
			}
			if head>>4 == puback {
				w.free <- struct{}{}
			}
		}
	}()
	return w
}

// publish sends a message, of QoS 1 when the window has room.
func (w *window) publish(topic string, payload []byte, qos byte, id uint16) error {
	if qos > 0 {
		select {
		case <-w.free:
		case err := <-w.done:
			w.done <- err
			return err
		}
	}
	_, err := w.Write(message(topic, payload, qos, id, false))
	return err
}

// drain waits until everything is acknowledged.
func (w *window) drain() error {
	for range cap(w.free) {
		select {
		case <-w.free:
		case err := <-w.done:
			return err
		}
	}
	return nil
}
