package transport

import (
	"net"
	"testing"
	"time"
)

// Pause ends with the connection: no publisher waits for a closed one.
func TestPauseEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	c, _, _ := newHub(t, 1<<20).pair(t)
	if !c.Pause(time.Nanosecond, nil) {
		t.Error("after a pause it is said to have ended")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if c.Pause(time.Hour, nil) {
			t.Error("of a connection that ends it is said that it has not")
		}
	}()
	_ = c.Close() // never fails
	await(t, ended, "the pause ends")
	if c.Pause(time.Hour, nil) {
		t.Error("a connection that has ended is said to be there")
	}
}

// Pause ends where the peer has, however much of it is not read yet.
func TestPauseEndsWithThePeer(t *testing.T) {
	t.Parallel()
	if !readsNow {
		t.Skip("this system does not say so")
	}
	for name, end := range map[string]func(net.Conn) error{
		"closed":      net.Conn.Close,
		"half closed": func(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() },
	} {
		c, far := newHub(t, 1<<20).tcpPair(t)
		if _, err := far.Write([]byte("not read before the end")); err != nil {
			t.Fatal(err)
		}
		if !c.Pause(time.Nanosecond, nil) {
			t.Errorf("%s: it is said to have ended before", name)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if c.Pause(time.Hour, nil) {
				t.Errorf("%s: it is said to be there", name)
			}
		}()
		if err := end(far); err != nil {
			t.Fatal(err)
		}
		await(t, ended, name+": the pause ends")
		if _, err := c.ReadByte(); err != nil {
			t.Errorf("%s: what had arrived is not read after the pause: %v", name, err)
		}
	}
}
