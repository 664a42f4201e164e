package main

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/bench/machine"
)

// A result is one line of the table.
type result struct {
	scenario scenario
	kind     kind

	accepted, delivered int      // different messages; delivered are of the accepted
	lost                int      // acknowledged, and they never came
	late                int      // acknowledged, and still on their way when the bench gave up
	absent              []string // what is lost or late, by publisher and number, where the trial found a fault
	logs                string   // of the link, likewise
	superseded          int      // gave way to a later one of their key
	doubled, disordered int

	publishing  time.Duration
	acceptedNow int64 // in publishing
	first, last time.Duration
	rate        float64 // messages per second

	near, far process.Usage
	held      int64 // bytes on the near end's disk, at the most
	notes     []string
}

func (r *result) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// count copies the counters of the ledger.
func (r *result) count(l *ledger.Ledger, superseded int, on *link) {
	r.accepted, _ = l.Counts()
	missing := l.Missing()
	r.superseded = min(superseded, l.Overtaken())
	missing -= r.superseded
	r.delivered = r.accepted - missing - r.superseded
	if missing > 0 && l.Quiet(time.Now()) < on.patience {
		r.late = missing
	} else {
		r.lost = missing
	}
	r.doubled, r.disordered = l.Faults()
	r.first, r.last, r.rate = l.Pace()
	if per := on.consumer.perMessage(); per > 1.01 {
		r.note("%s events/s", number0(r.rate))
		r.rate /= per
	}
	if r.superseded > 0 {
		r.note("%d superseded by a later report of the same node", r.superseded)
	}
	if r.late > 0 {
		r.note("%d still on their way", r.late)
	}
}

// faultless reports whether everything arrived once and in order.
func (r *result) faultless() bool {
	return r.lost == 0 && r.late == 0 && r.doubled == 0 && r.disordered == 0
}

var columns = []string{
	"link", "accepted", "per s", "delivered", "lost", "doubled", "out of order", "first after s", "all after s", "drained per s",
	"CPU s near + far", "peak MB near + far", "disk MB written, held", "",
}

func (r *result) cells() []string {
	perSecond := "–"
	if r.publishing > 0 {
		perSecond = number0(float64(r.acceptedNow) / r.publishing.Seconds())
	}
	first, last, rate := "never", "–", "–"
	switch {
	case r.first > 0:
		first, last, rate = seconds(r.first), seconds(r.last), number0(r.rate)
	case r.lost+r.late == 0:
		first = "before" // all came while the fault lasted
	}
	if r.lost+r.late > 0 {
		last = "–"
	}
	return []string{
		r.kind.about, number0(float64(r.accepted)), perSecond, number0(float64(r.delivered)), number0(float64(r.lost)), number0(float64(r.doubled)),
		number0(float64(r.disordered)), first, last, rate,
		fmt.Sprintf("%.1f + %.1f", r.near.CPU.Seconds(), r.far.CPU.Seconds()),
		fmt.Sprintf("%.0f + %.0f", megabytes(r.near.RSS), megabytes(r.far.RSS)),
		fmt.Sprintf("%.1f, %.1f", megabytes(r.near.Written), megabytes(r.held)), strings.Join(r.notes, "; "),
	}
}

func megabytes(n int64) float64      { return float64(n) / 1e6 }
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

// number0 writes a number with separators.
func number0(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// writeTable writes the results as markdown, a table for each scenario.
func writeTable(w io.Writer, results []*result) {
	last := 0
	for _, r := range results {
		if r.scenario.number != last {
			last = r.scenario.number
			fmt.Fprintf(w, "\n### %d: %s\n\n| %s |\n|%s\n", last, r.scenario.name, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(r.cells(), " | "))
	}
}

// writeMachine says what was measured on.
func writeMachine(w io.Writer, b *bench) {
	fmt.Fprintf(w, "machine: %d CPUs, %s; %s/%s, %s\n", runtime.NumCPU(), machine.Processor(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(w, "colony: %s\n", firstLine(b.program, "--version"))
	if path, err := needMosquitto(); err == nil {
		fmt.Fprintf(w, "mosquitto: %s\n", firstLine(path, "-h"))
	}
	fmt.Fprintf(w, "autopaho: %s\n", moduleVersion("github.com/eclipse/paho.golang"))
	fmt.Fprintf(w, "load: %d messages of %d bytes, %d nodes, %d in flight each; %d per second where they flow during the fault\n",
		b.messages, len(report(1, 1<<20)), b.nodes, b.window, b.flow)
}

// firstLine runs a program and returns the first line of what it says.
func firstLine(args ...string) string {
	out, _ := exec.Command(args[0], args[1:]...).CombinedOutput() // mosquitto -h ends with an error
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
