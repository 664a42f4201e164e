package stream_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

func events(n int, text string) []protocol.Event {
	out := make([]protocol.Event, n)
	for i := range out {
		out[i] = protocol.Event{UnixMillis: int64(i), Kind: protocol.DataEvent, Body: protocol.Marshal(text)}
	}
	return out
}

// TestRoundTrip packs few and many events with each effort, and reads them with
// each way of reading.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	random := make([]byte, 0, 4096) // bytes that nothing compresses
	for state := uint64(1); len(random) < cap(random); state = state*6364136223846793005 + 1442695040888963407 {
		random = append(random, byte(state>>56))
	}
	noise := []protocol.Event{{UnixMillis: 1, Kind: protocol.DataEvent, Body: protocol.Marshal(random)}}
	for _, effort := range []stream.Effort{stream.Least, stream.More} {
		encoder, decoder := stream.NewEncoder(effort), stream.NewDecoder(1)
		for name, tc := range map[string]struct {
			events   []protocol.Event
			encoding string
		}{
			"few":   {events(2, "x"), ""},
			"many":  {events(1000, "temperature"), "zstd"},
			"noise": {noise, ""},
		} {
			raw := stream.Sequence(tc.events)
			b := protocol.Batch{V: 1, Count: uint32(len(tc.events))}
			encoder.Pack(&b, raw)
			if b.Encoding != tc.encoding || len(b.Events) > len(raw) {
				t.Errorf("effort %d, %s: encoding %q, %d bytes of %d", effort, name, b.Encoding, len(b.Events), len(raw))
			}
			got, err := decoder.Events(b)
			if err != nil {
				t.Errorf("effort %d, %s: %v", effort, name, err)
			} else if diff := cmp.Diff(tc.events, got); diff != "" {
				t.Errorf("effort %d, %s: events (-want +got):\n%s", effort, name, diff)
			}
		}
	}
	if got, err := stream.NewDecoder(0).Events(protocol.Batch{V: 1, Encoding: "unknown"}); err != nil || got != nil {
		t.Errorf("no events: %v, %v", got, err)
	}
}

func TestInvalidBatches(t *testing.T) {
	t.Parallel()
	decoder := stream.NewDecoder(1)
	bomb := protocol.Batch{Count: 1}
	stream.NewEncoder(stream.Least).Pack(&bomb, make([]byte, 64<<20))
	if len(bomb.Events) > 1<<16 {
		t.Fatalf("the bomb has %d bytes", len(bomb.Events))
	}
	two := stream.Sequence(events(2, "x"))
	for name, tc := range map[string]struct {
		b    protocol.Batch
		want string
	}{
		"bomb":          {bomb, "decompress"},
		"too large":     {protocol.Batch{Count: 1, Events: make([]byte, protocol.MaxMessage)}, "the limit is"},
		"no zstd":       {protocol.Batch{Count: 1, Events: []byte{1}, Encoding: "zstd"}, "decompress"},
		"unknown":       {protocol.Batch{Count: 1, Events: two, Encoding: "lzma"}, "this program knows zstd"},
		"absurd count":  {protocol.Batch{Count: 1 << 31, Events: two}, "2147483648 events"},
		"fewer events":  {protocol.Batch{Count: 3, Events: two}, ""},
		"more events":   {protocol.Batch{Count: 1, Events: two}, ""},
		"torn":          {protocol.Batch{Count: 2, Events: two[:len(two)-1]}, ""},
		"too deep":      {protocol.Batch{Count: 1, Events: bytes.Repeat([]byte{0x81}, 100)}, ""},
		"nothing there": {protocol.Batch{Count: 1}, "1 events in 0 bytes"},
	} {
		got, err := decoder.Events(tc.b)
		if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), tc.want) || got != nil {
			t.Errorf("%s: events %v, error %v; want none, and one of kind Invalid with %q", name, got, err, tc.want)
		}
	}
}

// TestCountTakesNoMemory says that four million bytes, which compress to nothing, are
// as many events.
func TestCountTakesNoMemory(t *testing.T) {
	e, d := stream.NewEncoder(stream.Least), stream.NewDecoder(1)
	b := protocol.Batch{V: 1, Epoch: "e", First: 1, Count: 4_000_000}
	e.Pack(&b, make([]byte, b.Count))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := d.Events(b); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("four million events: %v, want an error of kind Invalid", err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("a batch of %d bytes allocated %d MB", len(b.Events), took>>20)
	}
}

// TestItemThatIsNoEvent replaces an event by something else.
func TestItemThatIsNoEvent(t *testing.T) {
	t.Parallel()
	good, other := events(2, "x"), protocol.Marshal("no event")
	raw := append(append(stream.Sequence(good[:1]), other...), stream.Sequence(good[1:])...)
	b := protocol.Batch{V: 1, Count: 3, Events: raw}
	got, err := stream.NewDecoder(1).Events(b)
	if err != nil {
		t.Fatal(err)
	}
	want := []protocol.Event{good[0], {Kind: stream.Unreadable, Body: other}, good[1]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(stream.Sequence(events(2, "x")), uint32(2), false)
	f.Add(protocol.Marshal("no event"), uint32(1), false)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd}, uint32(1), true)
	decoder := stream.NewDecoder(1)
	f.Fuzz(func(t *testing.T, raw []byte, count uint32, packed bool) {
		b := protocol.Batch{V: 1, Count: count, Events: raw}
		if packed {
			b.Encoding = "zstd"
		}
		if got, err := decoder.Events(b); err == nil && len(got) != int(count) {
			t.Errorf("%d events of a batch that says %d", len(got), count)
		}
	})
}
