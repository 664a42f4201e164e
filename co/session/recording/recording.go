// Package recording writes what a session showed as asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2): a line of JSON for the session,
// and one for each output and each change of the size of the terminal. What was typed is not in it. It is pure.
package recording

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/colonyfleet/colony/protocol/command"
)

// A Header is what a recording says of its session.
type Header struct {
	Columns, Rows uint16
	At            time.Time
	Arguments     []string
	Title         string
}

// A Writer makes the lines of a recording. It is for one goroutine at a time.
type Writer struct {
	began time.Time
	plain bool                          // there is no terminal
	held  map[command.RecordKind][]byte // of each output the beginning of a character
}

// New returns a writer and the first line.
func New(h Header) (w *Writer, first []byte) {
	columns, rows := h.Columns, h.Rows
	plain := columns == 0 || rows == 0
	if plain {
		columns, rows = 80, 24
	}
	first = line(struct {
		Version   int    `json:"version"`
		Width     uint16 `json:"width"`
		Height    uint16 `json:"height"`
		Timestamp int64  `json:"timestamp"`
		Command   string `json:"command"`
		Title     string `json:"title"`
	}{2, columns, rows, h.At.Unix(), strings.Join(h.Arguments, " "), h.Title})
	return &Writer{h.At, plain, map[command.RecordKind][]byte{}}, first
}

// line encodes a value as JSON, with its end. Bytes that are no UTF-8 become U+FFFD.
func line(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of types that can always be encoded
	return b.Bytes()
}

func (w *Writer) event(at time.Time, kind, text string) []byte {
	return line([]any{max(at.Sub(w.began), 0).Truncate(time.Microsecond).Seconds(), kind, text})
}

// Output returns what an output adds. A character whose rest has not come yet waits for it.
func (w *Writer) Output(at time.Time, stream command.RecordKind, data []byte) []byte {
	data = append(w.held[stream], data...)
	whole := len(data) - begun(data)
	w.held[stream] = bytes.Clone(data[whole:])
	if whole == 0 {
		return nil
	}
	return w.output(at, data[:whole])
}

func (w *Writer) output(at time.Time, data []byte) []byte {
	if w.plain {
		data = legible(data)
	}
	return w.event(at, "o", string(data))
}

// legible has one U+FFFD in place of each run of what is no text, so that the recording of a file which a program wrote to its output is not
// several times as long as the file.
func legible(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for run := false; len(data) > 0; {
		r, n := utf8.DecodeRune(data)
		text := (r != utf8.RuneError || n > 1) && (r >= ' ' && r != 0x7f || strings.ContainsRune("\n\r\t\x1b", r))
		switch {
		case text:
			out = append(out, data[:n]...)
		case !run:
			out = utf8.AppendRune(out, utf8.RuneError)
		}
		run, data = !text, data[n:]
	}
	return out
}

// begun returns how many bytes at the end of data are the beginning of a character.
func begun(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if b := data[len(data)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// Resize returns what a new size of the terminal adds.
func (w *Writer) Resize(at time.Time, columns, rows uint16) []byte {
	b, _ := json.Marshal(columns) // a number
	r, _ := json.Marshal(rows)
	return w.event(at, "r", string(b)+"x"+string(r))
}

// End returns what waits.
func (w *Writer) End(at time.Time) []byte {
	var out []byte
	for _, stream := range []command.RecordKind{command.Stdout, command.Stderr} {
		if held := w.held[stream]; len(held) > 0 {
			out = append(out, w.output(at, held)...)
		}
	}
	clear(w.held)
	return out
}
