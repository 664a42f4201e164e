package recording_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/session/recording"
	"github.com/colonyfleet/colony/protocol/command"
)

// TestRecording has characters cut wherever a frame may end: the text of all events is what was written, each line is JSON, and what is no UTF-8 is replaced.
func TestRecording(t *testing.T) {
	t.Parallel()
	text := "äöü €uro \U0001F600 <b>&\x1b[31m\r\n" + "\xff\xfe end"
	want := strings.ToValidUTF8("äöü €uro \U0001F600 <b>&\x1b[31m\r\n", "") + "\uFFFD\uFFFD end"
	at := time.Unix(1700000000, 0)
	for size := 1; size <= len(text); size++ {
		w, out := recording.New(recording.Header{Columns: 100, Rows: 30, At: at, Arguments: []string{"sh", "-l"}, Title: "plant/gw-1"})
		for i := 0; i < len(text); i += size {
			out = append(out, w.Output(at.Add(time.Duration(i)*time.Millisecond), command.Stdout, []byte(text[i:min(i+size, len(text))]))...)
			out = append(out, w.Output(at, command.Stderr, []byte("\xd0"))...)
			out = append(out, w.Output(at, command.Stderr, []byte("\xb6"))...)
		}
		out = append(out, w.Resize(at.Add(2*time.Second), 120, 40)...)
		out = append(out, w.Output(at, command.Stderr, []byte("\xe2\x82"))...)
		out = append(out, w.End(at.Add(3*time.Second))...)
		lines := bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n"))
		var head struct {
			Version, Width, Height int
			Timestamp              int64
			Command                string
		}
		if err := json.Unmarshal(lines[0], &head); err != nil || head.Version != 2 || head.Width != 100 || head.Timestamp != 1700000000 || head.Command != "sh -l" {
			t.Fatalf("%s: %v", lines[0], err)
		}
		got := ""
		for _, l := range lines[1:] {
			var e []any
			if err := json.Unmarshal(l, &e); err != nil || len(e) != 3 {
				t.Fatalf("%s: %v", l, err)
			}
			if e[1] == "r" && (e[2] != "120x40" || e[0] != 2.0) {
				t.Errorf("resize %s", l)
			}
			if text := e[2].(string); e[1] == "o" && text != "ж" {
				got += text
			}
		}
		if got = strings.TrimSuffix(got, "\uFFFD\uFFFD"); got != strings.TrimSuffix(want, "\uFFFD\uFFFD") && got != want {
			t.Errorf("in pieces of %d bytes: %q, want %q", size, got, want)
		}
	}
}

// TestRecordingOfWhatIsNoText takes no more room than what the program wrote, and leaves what can be read in it.
func TestRecordingOfWhatIsNoText(t *testing.T) {
	t.Parallel()
	w, _ := recording.New(recording.Header{})
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	copy(data[1<<19:], "\xffthe word\x00\x01\xff\n")
	out := w.Output(time.Time{}, command.Stdout, data)
	if len(out) > len(data)*5/4 {
		t.Errorf("%d bytes make a recording of %d", len(data), len(out))
	}
	if !bytes.Contains(out, []byte("\ufffdthe word\ufffd\\n")) {
		t.Error("the text within is not in the recording")
	}
}
