package sessions

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// fillWhole fills the disk until it takes no record of a session.
func (r *rig) fillWhole(fill func()) {
	r.t.Helper()
	fill()
	for i, b := 0, r.session("filler", 3600); r.Flush(r.t.Context()) == nil; i++ { // until the last page is full, too
		b.Subscribe(fmt.Sprint(i), Subscription{QoS: 1})
	}
}

// TestVoidWills has clients leave in order, and come back, while the disk is full. After a crash the log says neither: their last wills
// are not sent, which is said and counted, and not found again at a later start.
func TestVoidWills(t *testing.T) {
	t.Parallel()
	r, disk := onSmallDisk(t, 4<<20, 64<<10)
	will := &Will{QoS: 1, Body: Body{Topic: "failed"}}
	receiver := to(10)
	receiver.Will = will
	leaves := r.session("leaves", 3600).Attach(receiver, 3600)
	r.session("returns", 3600).Attach(to(10), 3600).Detach(3600, &Will{At: r.WillAt(60), QoS: 1, Body: will.Body})
	r.flush()
	r.fillWhole(disk.Fill)
	leaves.Detach(3600, nil)
	r.Get("returns").Attach(to(10), 3600)
	if err := r.Flush(t.Context()); err == nil {
		t.Fatal("the disk is full, and takes what becomes of sessions")
	}
	r.close() // it cannot write what it knows: as after a crash
	r.open()
	for _, client := range []string{"leaves", "returns"} {
		if s := r.Get(client); s == nil || s.Will() != nil {
			t.Errorf("%s: session %v, want one without a last will", client, s)
		}
	}
	if n, lines := r.dropped[DroppedVoid], r.said.count("last wills are not sent"); n != 2 || lines != 1 {
		t.Errorf("%d counted, and said %d times, want 2 and once", n, lines)
	}
	disk.Free()
	r.untilStored(r.Get("leaves"))
	r.untilComplete(r.Get("leaves"))
	r.crash()
	if n := r.dropped[DroppedVoid]; n != 2 {
		t.Errorf("%d counted after a further start, want 2: the log does not have them any more", n)
	}
}

// TestWillsOfAnEarlierRelease opens a log that says by no file whether it is complete, as that of an earlier release: its last wills count.
func TestWillsOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, Limits{})
	r.session("a", 3600).Attach(to(10), 3600).Detach(3600, &Will{At: r.WillAt(60), QoS: 1, Body: Body{Topic: "failed"}})
	r.close()
	if err := os.Remove(filepath.Join(r.dir, "complete")); err != nil {
		t.Fatal(err)
	}
	r.open()
	if r.Get("a").Will() == nil || r.dropped[DroppedVoid] > 0 {
		t.Errorf("last will %v, %d counted as void, want it", r.Get("a").Will(), r.dropped[DroppedVoid])
	}
}
