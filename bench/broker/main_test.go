package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/bench/shortrun"
)

// The program is built and run with a little load: Colony's broker must lose
// nothing in any scenario, and Mosquitto must be measured beside it.
func TestShortRun(t *testing.T) {
	t.Parallel()
	out := shortrun.Output(t, "-only", "QoS 1")
	rows := 0
	for line := range bytes.Lines(out) {
		cells := strings.Split(string(line), "|")
		if len(cells) < 4 || !strings.Contains(cells[1], ": lost") {
			continue
		}
		rows++
		if strings.TrimSpace(cells[2]) != "0 %" {
			t.Errorf("Colony lost messages: %s", line)
		}
	}
	if rows != 2 {
		t.Errorf("%d rows report losses, want 2:\n%s", rows, out)
	}
}

// Links that are cut, clients that are away, kill -9 and a full disk lose nothing that Colony's broker acknowledged, and keep the order.
func TestFaults(t *testing.T) {
	t.Parallel()
	out := shortrun.Output(t, "-only", "faults", "-brokers", "Colony")
	rows := 0
	for line := range bytes.Lines(out) {
		cells := strings.Split(string(line), "|")
		if len(cells) < 3 || !strings.Contains(cells[1], ": lost") && !strings.Contains(cells[1], "out of order") {
			continue
		}
		rows++
		if strings.TrimSpace(cells[2]) != "0" {
			t.Errorf("want 0: %s", line)
		}
	}
	if rows != 5 {
		t.Errorf("%d rows report losses and order, want 5:\n%s", rows, out)
	}
}

func TestPackets(t *testing.T) {
	t.Parallel()
	long := message("t", make([]byte, 200), 1, 0x1234, true)
	if diff := cmp.Diff([]byte{0x33, 0xcd, 0x01, 0, 1, 't', 0x12, 0x34}, long[:8]); diff != "" || len(long) != 208 {
		t.Errorf("length %d, head (-want +got):\n%s", len(long), diff)
	}
	if diff := cmp.Diff([]byte{0x30, 4, 0, 1, 't', 'x'}, message("t", []byte("x"), 0, 0, false)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	var r results
	r.add("A", "speed", 300, "/s")
	r.add("B", "speed", 200, "/s")
	r.add("A", "lost", 0, "%")
	r.add("B", "lost", 0.25, "%")
	r.add("B", "speed", 400, "/s")
	r.add("B", "speed", 150, "/s")
	want := "| what | A | B | A : B |\n|---|---|---|---|\n| speed | 300 /s | 200 /s (150 to 400) | 1.50 |\n| lost | 0 % | 0.25 % | – |\n"
	if diff := cmp.Diff(want, r.markdown()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
