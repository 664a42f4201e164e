package sessions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reserved is how many bytes of the disk the store has reserved.
func (r *rig) reserved() int64 {
	r.t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, "reserve"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return info.Size()
}

// TestReserveOverRestarts starts the store several times while its disk is full, and its clients end some messages between: what is reserved
// does not become less, so that those which are left can be ended, too; and it is whole when they are.
func TestReserveOverRestarts(t *testing.T) {
	t.Parallel()
	r, _ := onSmallDisk(t, 4<<20, 2<<20)
	whole := r.reserved() * 7 / 8 // without what the log has beside its segments
	if whole < 400<<10 {
		t.Fatalf("%d bytes are reserved, want an eighth of the disk", whole)
	}
	r.session("a", 3600)
	ended := make(map[string]bool)
	for round := range 3 {
		stored := len(ended)
		for r.publish(fmt.Sprint(stored, "-", strings.Repeat("x", 2000)), 2, r.Get("a")) == nil {
			stored++
		}
		for len(ended) < stored {
			r.close()
			r.open()
			if r.reserve < whole {
				t.Fatalf("round %d: %d bytes are to be reserved after a start, want %d, about as before", round, r.reserve, whole)
			}
			if endSome(t, r.Get("a").Attach(to(20), 3600), ended, 1+stored/3) == 0 {
				t.Fatalf("round %d: %d of %d messages are ended, and the client gets no more", round, len(ended), stored)
			}
		}
		endSome(t, r.Get("a").Attach(to(20), 3600), ended, 1)
		r.untilStored(r.Get("a"))
		r.settle()
		if got := r.reserved(); got < whole {
			t.Errorf("round %d: %d bytes are reserved once there is room, want %d", round, got, whole)
		}
		l := r.Get("a").Attach(to(20), 3600)
		for _, s := range receive(l) {
			var id uint16
			if _, err := fmt.Sscanf(s, "%d:", &id); err == nil {
				l.Acknowledged(id, Puback)
			}
		}
	}
}

// TestFullDiskIsSaidOnce publishes to a disk that is full for messages, and takes small changes between them: that is one line of the log and one
// trouble, which is over when the disk has room.
func TestFullDiskIsSaidOnce(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 256<<10)
	a := r.session("a", 3600)
	r.mustPublish(sizeable, 1, a)
	disk.Fill()
	for i := range 5 {
		if r.publish(sizeable, 1, a) == nil {
			t.Fatal("a message was confirmed on a full disk")
		}
		for deadline := time.Now().Add(patience); r.Err() != nil; {
			if time.Now().After(deadline) {
				t.Fatal("the store does not try it again")
			}
			a.Subscribe(fmt.Sprint("f", i), Subscription{QoS: 1})
			_ = r.Flush(t.Context()) // it may be refused
		}
	}
	if n := r.said.count("sessions cannot be written"); n != 1 || r.said.count("sessions are written again") != 0 || !r.Stats().Refusing {
		t.Errorf("%d lines about the full disk, and %d that it is over, want 1 and 0; refusing %t, want true", n, r.said.count("sessions are written again"), r.Stats().Refusing)
	}
	disk.Free()
	r.untilStored(a)
	r.flush()
	if n := r.said.count("sessions are written again"); n != 1 || r.Stats().Refusing {
		t.Errorf("%d lines say that it is over, want 1; refusing %t, want false", n, r.Stats().Refusing)
	}
}
