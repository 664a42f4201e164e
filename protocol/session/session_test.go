package session_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/session"
)

// A message is under way: a piece, or an acknowledgement where data is nil.
type message struct {
	offset uint64
	data   []byte
	at     time.Time // when it arrives
}

// TestWhole carries bytes over ways that lose and delay messages, and cut them off for a while: all arrive, in their order, and while nothing is lost
// nothing is sent twice.
func TestWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		loss := rapid.SampledFrom([]float64{0, 0, 0.03, 0.3}).Draw(t, "loss")
		way := time.Duration(rapid.IntRange(0, 1450).Draw(t, "way")) * time.Millisecond
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		want := make([]byte, rapid.IntRange(1, 200_000).Draw(t, "bytes"))
		for i := range want {
			want[i] = byte(rng.Uint32())
		}
		var s session.Sender
		var r session.Receiver
		var got []byte
		now, written, sent := time.Unix(0, 0), 0, 0
		var down, up []message
		lost := func() bool { return rng.Float64() < loss || loss > 0 && now.Unix()%60 > 50 }
		for range 200_000 {
			written += s.Write(want[written:])
			for {
				offset, data := s.Next(now, command.MaxSegment)
				if data == nil {
					break
				}
				sent += len(data)
				if !lost() {
					down = append(down, message{offset, bytes.Clone(data), now.Add(way)})
				}
			}
			for len(down) > 0 && !down[0].at.After(now) {
				got = append(got, r.Accept(down[0].offset, down[0].data)...)
				if !lost() {
					up = append(up, message{offset: r.Next(), at: now.Add(way)})
				}
				down = down[1:]
			}
			for len(up) > 0 && !up[0].at.After(now) {
				s.Acked(up[0].offset, now)
				up = up[1:]
			}
			if written == len(want) && s.Empty() {
				break
			}
			now = now.Add(10 * time.Millisecond)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes arrived of %d, or others", len(got), len(want))
		}
		if loss == 0 && sent != len(want) {
			t.Fatalf("%d bytes were sent for %d, and nothing was lost", sent, len(want))
		}
		if most := now.Sub(time.Unix(0, 0)); loss == 0 && most > time.Duration(len(want)/session.Window+2)*(2*way+30*time.Millisecond) {
			t.Fatalf("it took %s", most)
		}
	})
}

// A receiver that stops is asked again and again with one piece alone, more and more seldom.
func TestSilentReceiver(t *testing.T) {
	t.Parallel()
	var s session.Sender
	s.Write(make([]byte, session.Window))
	if s.Room() != 0 {
		t.Fatalf("room for %d bytes after a whole window", s.Room())
	}
	now, sent := time.Unix(0, 0), 0
	for range 600 { // a minute
		for {
			_, data := s.Next(now, 1000)
			if data == nil {
				break
			}
			sent += len(data)
		}
		if at, ok := s.Due(); !ok || at.Sub(now) > 8*time.Second {
			t.Fatalf("due in %s, %v", at.Sub(now), ok)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if again := sent - session.Window; again < 6000 || again > 12_000 {
		t.Errorf("%d bytes sent again in a minute", again)
	}
	if s.Acked(session.Window+1, now) || s.Acked(0, now) {
		t.Error("an acknowledgement of what was never sent, or of nothing, is news")
	}
	if !s.Acked(session.Window, now) || !s.Empty() || s.End() != session.Window {
		t.Error("what arrived late does not count")
	}
}

// Records come out as they went in, however their bytes are cut; what is no record, or too long, is an error.
func TestDecoder(t *testing.T) {
	t.Parallel()
	var stream []byte
	want := []command.Record{
		{Kind: command.Stdin, Data: bytes.Repeat([]byte{7}, command.MaxRecord)}, {Kind: command.Resize, Columns: 80, Rows: 24}, {Kind: "later", Name: "x"}, {Kind: command.Exit, Code: -1},
	}
	for i := range want {
		stream = append(stream, protocol.Marshal(&want[i])...)
	}
	for _, size := range []int{1, 7, 4096, len(stream)} {
		var d session.Decoder
		var got []command.Record
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			list, err := d.Add(rest[:n])
			if err != nil {
				t.Fatal(err)
			}
			got, rest = append(got, list...), rest[n:]
		}
		if len(got) != len(want) || !bytes.Equal(got[0].Data, want[0].Data) || got[1].Columns != 80 || got[2].Name != "x" || got[3].Code != -1 {
			t.Errorf("in pieces of %d bytes: %d records", size, len(got))
		}
	}
	for name, bad := range map[string][]byte{"no record": protocol.Marshal([]string{"a"}), "endless": append([]byte{0xa1, 0x02, 0x5a, 0, 1, 0, 0}, make([]byte, 60_000)...)} {
		var d session.Decoder
		if _, err := d.Add(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(protocol.Marshal(&command.Record{Kind: command.Stdin, Data: []byte("ls\n")}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d session.Decoder
		for len(data) > 0 {
			n := min(len(data), 10)
			if _, err := d.Add(data[:n]); err != nil {
				return
			}
			data = data[n:]
		}
	})
}
