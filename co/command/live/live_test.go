package live_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/command/live"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

const id command.ID = "0123456789abcdef0123456789abcdef"

// A link collects the credit that a hub sends.
type link struct {
	mu   sync.Mutex // protects sent
	sent []command.Credit
}

func (l *link) publish(_ context.Context, site protocol.SiteID, of command.ID, payload []byte) error {
	var c command.Credit
	if err := command.Unmarshal(payload, &c); err != nil || site != "plant" || of != id {
		panic(fmt.Sprint(site, of, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, c)
	return nil
}

// last returns the last credit, and how many there were.
func (l *link) last() (command.Credit, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return command.Credit{}, 0
	}
	return l.sent[len(l.sent)-1], len(l.sent)
}

// frame is a frame of a node with so many bytes of lines.
func frame(node protocol.NodeID, seq uint64, bytes int) command.Frame {
	if bytes == 0 {
		return command.Frame{V: 1, Node: node, Seq: seq}
	}
	return command.Frame{V: 1, Node: node, Seq: seq, Items: 1, Data: protocol.Marshal(command.LogLine{Text: strings.Repeat("x", bytes)})}
}

func accept(t *testing.T, h *live.Hub, f command.Frame) {
	t.Helper()
	if err := h.Accept("plant", string(id), protocol.Marshal(f)); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, h *live.Hub, nodes int) *live.Reader {
	t.Helper()
	r, err := h.Open("plant", id, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kept opens a reader of so many nodes that sends credit until stop.
func kept(t *testing.T, nodes int) (l *link, h *live.Hub, r *live.Reader, stop func()) {
	t.Helper()
	l = &link{}
	h = live.New(l.publish, nil)
	r = open(t, h, nodes)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Keep(ctx)
	}()
	return l, h, r, func() {
		cancel()
		<-done
	}
}

// TestMetrics has a reader get some bytes, and miss some on the way and for want of room.
func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	h := live.New((&link{}).publish, reg)
	r := open(t, h, 1)
	for n := range 100 { // 6 MB into 4 MiB
		accept(t, h, frame("gw-1", uint64(n)+1, 60_000))
	}
	values := func() map[string]float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			out[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
		return out
	}
	if got := values(); got["colony_co_live_readers"] != 1 || got["colony_co_live_received_bytes_total"] < 6e6 || got["colony_co_live_lost_bytes_total"] < 1e6 {
		t.Errorf("metrics %v", got)
	}
	r.Close(t.Context())
	if got := values(); got["colony_co_live_readers"] != 0 {
		t.Errorf("after the reader has ended: %v", got)
	}
}

// TestReaderThatStops has nodes send more than a reader takes: the credit stands still, what has no room is counted, and all goes on
// once the reader does.
func TestReaderThatStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h, r, stop := kept(t, 2)
		synctest.Wait()
		first, _ := l.last()
		const size = 60_000
		sent := 0
		for range 200 { // 12 MB, whatever the credit says
			sent++
			accept(t, h, frame("gw-1", uint64(sent), size))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if c, n := l.last(); c.Bytes != first.Bytes || n < 12 {
			t.Errorf("credit of a reader that stopped: %d after %d, %d messages in a minute", c.Bytes, first.Bytes, n)
		}
		taken, bytes := 0, uint64(0)
		for f, ok := r.Next(); ok; f, ok = r.Next() {
			taken, bytes = taken+1, bytes+uint64(len(f.Data))
		}
		if bytes > 4<<20 || taken < 60 {
			t.Errorf("%d frames with %d bytes waited", taken, bytes)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if c, _ := l.last(); c.Bytes < uint64(sent)*size {
			t.Errorf("credit %d after all was read or left out, %d bytes were sent", c.Bytes, sent*size)
		}
		accept(t, h, frame("gw-1", uint64(sent)+1, 10))
		f, ok := r.Next()
		if !ok || f.LostItems != uint64(sent-taken) || f.LostBytes < uint64(sent-taken)*size {
			t.Errorf("after the gap: %t, %d lines and %d bytes, want %d lines", ok, f.LostItems, f.LostBytes, sent-taken)
		}
		stop()
		r.Close(t.Context())
		if c, _ := l.last(); !c.End {
			t.Errorf("the reader left, and the last credit is %+v", c)
		}
		accept(t, h, frame("gw-1", uint64(sent)+2, 10)) // it has no reader
	})
}

// TestCreditBeforeANodeIsHeard sends credit more often while nodes have not begun, as they may at any time.
func TestCreditBeforeANodeIsHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h, _, stop := kept(t, 1)
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if _, n := l.last(); n != 11 {
			t.Errorf("%d in 10 s, want 11", n)
		}
		accept(t, h, frame("gw-1", 1, 0))
		time.Sleep(time.Minute)
		_, before := l.last()
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, n := l.last(); n-before != 15 {
			t.Errorf("%d in a minute, want 15: the lease is %d ms", n-before, command.LeaseMillis)
		}
		stop()
	})
}

// TestFrames checks what becomes of frames that come twice, do not come, or begin anew.
func TestFrames(t *testing.T) {
	t.Parallel()
	var l link
	h := live.New(l.publish, nil)
	r, other := open(t, h, 1), open(t, h, 1)
	for _, f := range []command.Frame{
		frame("gw-1", 1, 1), frame("gw-1", 1, 1), frame("gw-1", 2, 1), frame("gw-1", 5, 1), frame("gw-1", 4, 1), frame("gw-1", 1, 1), {V: 1, Node: "gw-1", Seq: 2, LostItems: 3, LostBytes: 30}, frame("gw-2", 1, 1),
	} {
		accept(t, h, f)
	}
	var got []string
	for f, ok := r.Next(); ok; f, ok = r.Next() {
		got = append(got, fmt.Sprintf("%s %d lost %d", f.Node, f.Seq, f.LostItems))
	}
	if want := "gw-1 1 lost 0; gw-1 2 lost 0; gw-1 5 lost 1; gw-1 1 lost 0; gw-1 2 lost 3; gw-2 1 lost 0"; strings.Join(got, "; ") != want {
		t.Errorf("%s, want %s", strings.Join(got, "; "), want)
	}
	for name, payload := range map[string][]byte{
		"no frame": {0xff}, "no node": protocol.Marshal(frame("", 1, 1)), "too large": protocol.Marshal(frame("gw-1", 9, command.MaxFrame)),
		"a later version": protocol.Marshal(command.Frame{V: 9, Node: "gw-1", Seq: 9}),
	} {
		if err := h.Accept("plant", string(id), payload); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := h.Accept("other", string(id), []byte{0xff}); err != nil {
		t.Errorf("a frame that nobody reads: %v", err)
	}
	r.Close(t.Context())
	r.Close(t.Context())
	if c, n := l.last(); n != 0 {
		t.Errorf("one of two readers left: %+v", c)
	}
	if f, ok := other.Next(); !ok || f.Seq != 1 {
		t.Errorf("the other reader: %+v, %t", f, ok)
	}
	other.Close(t.Context())
	if c, n := l.last(); n != 1 || !c.End {
		t.Errorf("the last reader left: %+v", c)
	}
}

// TestReadersAreBounded opens readers until there are as many as there may be.
func TestReadersAreBounded(t *testing.T) {
	t.Parallel()
	var l link
	h := live.New(l.publish, nil)
	var list []*live.Reader
	for range live.MaxReaders {
		list = append(list, open(t, h, 1))
	}
	if _, err := h.Open("plant", id, 1); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("one too many: %v", err)
	}
	list[0].Close(t.Context())
	open(t, h, 1)
}

// TestLines decodes the lines of frames.
func TestLines(t *testing.T) {
	t.Parallel()
	f := command.Frame{Items: 3}
	for _, line := range []command.LogLine{{Component: "web", Container: "nginx", Text: "a"}, {Text: "b"}, {Container: "db", Stream: "stderr", Text: "c", LostLines: 2}} {
		f.Data = append(f.Data, protocol.Marshal(line)...)
	}
	list, err := live.Lines(f)
	if err != nil || len(list) != 3 || list[1].Component != "web" || list[1].Container != "nginx" || list[2].Component != "web" || list[2].Container != "db" || list[2].LostLines != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := live.Lines(command.Frame{}); err != nil || len(list) != 0 {
		t.Errorf("an empty one: %+v, %v", list, err)
	}
	for _, items := range []uint64{0, 2, 4, 1 << 40} {
		f.Items = items
		if _, err := live.Lines(f); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%d items: %v", items, err)
		}
	}
}

// TestLost has the LO lose frames and number those that follow anew: what is missing is exact by what the node counts, what came before
// is not given twice, and the node gets credit for all of it.
func TestLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h, r, stop := kept(t, 1)
		defer stop()
		total, size := uint64(0), uint64(len(frame("a", 1, 100).Data))
		next := func(seq uint64, lost uint64) command.Frame {
			f := frame("a", seq, 100)
			total += lost + 1
			f.TotalItems, f.TotalBytes = total, total*size
			return f
		}
		for seq := range uint64(100) {
			accept(t, h, next(seq+1, 0))
		}
		again := next(2, 700) // the first of the new LO was lost, too
		again.Data, again.Items = append(frame("a", 1, 100).Data, again.Data...), 2
		accept(t, h, again)
		accept(t, h, again)
		both := next(3, 0)
		both.Data, both.Items = append(again.Data[:size:size], both.Data...), 2 // the first of it came before
		accept(t, h, both)
		var items, lost, bytes uint64
		take := func() {
			for f, ok := r.Next(); ok; f, ok = r.Next() {
				items, lost, bytes = items+f.Items, lost+f.LostItems, bytes+f.LostBytes+uint64(len(f.Data))
			}
		}
		take()
		if items != 103 || lost != 699 || bytes != total*size {
			t.Errorf("%d items and %d lost, want 103 and 699; %d bytes of %d", items, lost, bytes, total*size)
		}
		// All that the credit allowed is lost: a frame without data says so.
		silent := next(1, 2000)
		silent.Items, silent.Data = 0, nil
		accept(t, h, silent)
		take()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		c, _ := l.last()
		if lost != 699+2001 || c.Bytes < total*size+8<<10 {
			t.Errorf("%d lost, credit of %d bytes where the node has sent %d", lost, c.Bytes, total*size)
		}
		end := frame("a", 2, 0)
		end.End, end.TotalItems, end.TotalBytes = true, total, total*size
		accept(t, h, end)
		accept(t, h, end)
		if f, ok := r.Next(); !ok || !f.End || f.LostItems != 0 {
			t.Errorf("the end: %+v", f)
		}
		if _, ok := r.Next(); ok {
			t.Error("it ends twice")
		}
	})
}
