package broker_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/memnet"
)

// A heldDisk is a disk whose syncs can be held up.
type heldDisk struct {
	disk.FS
	sync chan struct{} // has a value while something is synced, or held up
}

func newHeldDisk() *heldDisk { return &heldDisk{simdisk.New(1), make(chan struct{}, 1)} }

func (d *heldDisk) hold()    { d.sync <- struct{}{} }
func (d *heldDisk) release() { <-d.sync }

func (d *heldDisk) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := d.FS.Open(path, flag, perm)
	return heldFile{f, d}, err
}

type heldFile struct {
	disk.File
	d *heldDisk
}

func (f heldFile) Sync() error {
	f.d.hold()
	defer f.d.release()
	return f.File.Sync()
}

// A client that has ended its own direction gets its answers however long the disk takes, within the time in which it
// should send something: 1.5 times its keep-alive, or limits.keepAlive where it has none. Later it gets
// the reason, where its version has one.
func TestAnswersToHalfClosedOnSlowDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version   byte
		keepAlive uint16
		disk      time.Duration // that a sync takes
		late      bool
	}{
		"keep-alive":                {5, 60, 89 * time.Second, false},
		"keep-alive, 3.1.1":         {4, 600, 14 * time.Minute, false},
		"no keep-alive, 3.1.1":      {4, 0, 59 * time.Minute, false},
		"past keep-alive":           {5, 60, 91 * time.Second, true},
		"past keep-alive, 3.1.1":    {4, 60, 91 * time.Second, true},
		"past limits.keepAlive":     {5, 0, 91 * time.Minute, true},
		"past limits.keepAlive, v4": {4, 0, 61 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d, n := newHeldDisk(), memnet.New(1)
				serveIn(t, n, d)
				sub := dialIn(t, n, 5)
				sub.mustConnect("sub", lasting(sessions.Never))
				sub.subscribe("t", 2)
				_ = sub.conn.Close()
				synctest.Wait()

				r := dialIn(t, n, c.version)
				r.mustConnect("pub", func(p *packets.Packet) { p.Connect.Keepalive = c.keepAlive })
				d.hold()
				const messages = 50
				for id := range uint16(messages) {
					r.publish("t", fmt.Sprint(id), 1+byte(id%2), id+1)
				}
				r.endOwn()
				time.Sleep(c.disk)
				d.release()
				if !c.late {
					for id := range uint16(messages) {
						if p := r.want(packets.Puback + byte(id%2)); p.PacketID != id+1 {
							t.Fatalf("answer %d is for %d", id+1, p.PacketID)
						}
					}
				} else if c.version == 5 {
					r.wantCode(packets.Disconnect, packets.ErrKeepAliveTimeout.Code)
				}
				r.wantEnd()
			})
		})
	}
}

// endOwn ends the client's own direction.
func (r *raw) endOwn() {
	r.t.Helper()
	if err := r.conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		r.t.Fatal(err)
	}
}

// dialIn connects to the broker of serveIn.
func dialIn(t *testing.T, n *memnet.Network, version byte) *raw {
	t.Helper()
	conn, err := n.Host("client").DialContext(t.Context(), "tcp", "broker:1883")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := rawOver(t, conn)
	r.version = version
	return r
}

// A half-closed client may read its answers as slowly as any other: limits.writeTimeout bounds that.
func TestAnswersToHalfClosedThatReadsSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		serveIn(t, n, simdisk.New(1))
		r := dialIn(t, n, 4)
		r.mustConnect("pub", nil)
		const messages = 30_000 // whose answers the network does not hold
		for id := range uint16(messages) {
			r.publish("nobody", "x", 1, id+1)
		}
		r.endOwn()
		for id := range uint16(messages) {
			if id%10_000 == 0 {
				time.Sleep(20 * time.Second)
			}
			if p := r.want(packets.Puback); p.PacketID != id+1 {
				t.Fatalf("answer %d is for %d", id+1, p.PacketID)
			}
		}
		r.wantEnd()
	})
}

// serveIn starts a broker on a network in memory, with sessions on a disk, until the end of the test.
func serveIn(t *testing.T, n *memnet.Network, d disk.FS) {
	t.Helper()
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "broker:1883"}}, Listen: n.Host("broker").Listen,
		Access: free{}, Logger: slog.New(slog.DiscardHandler), Sessions: broker.Sessions{Dir: "sessions", Disk: d},
	})
	if err == nil {
		err = b.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// A client that takes over its own connection gets the answers to what it had sent on that, where they are there within the
// second that the takeover waits.
func TestAnswersBeforeTakeover(t *testing.T) {
	t.Parallel()
	d := newHeldDisk()
	b, reg := start(t, free{}, func(o *broker.Options) { o.Sessions = broker.Sessions{Dir: "sessions", Disk: d} })
	sub := dialStored(t, b, "sub", false, lasting(3600))
	sub.subscribe("t", 1)
	leave(t, reg, sub)
	const messages = 50
	for deadline := time.Now().Add(patience); ; {
		r := guest(t, b, "pub")
		d.hold()
		for id := range uint16(messages) {
			r.publish("t", fmt.Sprint(id), 1, id+1)
		}
		taken := metric(t, reg, "takeovers_total")
		begun := time.Now()
		next := dialRaw(t, b.Addr("main"))
		next.write(wire(0x10, "\x00\x04MQTT\x05\x82\x00\x3c\x00"+text("pub")+text("pub")))
		until(t, "the connection is taken over", func() bool { return metric(t, reg, "takeovers_total") > taken })
		d.release()
		got := 0
		p, err := r.next()
		for ; err == nil && p.FixedHeader.Type == packets.Puback; p, err = r.next() {
			got++
		}
		next.wantCode(packets.Connack, 0)
		inTime := time.Since(begun) < time.Second // else the broker may have ended it before
		_ = next.conn.Close()
		if err != nil || p.ReasonCode != packets.ErrSessionTakenOver.Code {
			t.Fatalf("after %d answers a packet of type %d with 0x%02x, %v: want DISCONNECT with 0x8e", got, p.FixedHeader.Type, p.ReasonCode, err)
		}
		switch {
		case got == messages:
			return
		case inTime:
			t.Fatalf("%d answers to %d messages", got, messages)
		case time.Now().After(deadline):
			t.Fatal("this machine never takes a connection over within a second")
		}
	}
}
