// Command broker measures Colony's broker beside Mosquitto, each as a process of
// its own, with clients in a third one, and prints a table in Markdown. It never
// fails on a number.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A size says how much load each scenario puts on a broker.
type size struct {
	idle       int // connections
	watch      time.Duration
	publishers int
	rate       int // messages per second of all publishers
	steady     time.Duration
	burst      int // messages of each publisher, as fast as they go
	fanOut     int // subscribers
	rounds     int
	wills      int
	retained   []int
	sessions   int // that are away
	queued     int // messages that wait in them, all together
	faulty     int // messages of each fault
}

var full = size{
	idle: 10_000, watch: 30 * time.Second, publishers: 1000, rate: 10_000, steady: 10 * time.Second, burst: 200,
	fanOut: 8000, rounds: 5, wills: 8000, retained: []int{10_000, 100_000}, sessions: 10_000, queued: 1_000_000, faulty: 20_000,
}

var short = size{
	idle: 500, watch: 3 * time.Second, publishers: 50, rate: 1000, steady: 2 * time.Second, burst: 100,
	fanOut: 200, rounds: 2, wills: 200, retained: []int{2000}, sessions: 200, queued: 2000, faulty: 400,
}

func main() {
	serve := flag.String("serve", "", "be the broker under test, with its sessions in this directory: used by the program itself")
	quick := flag.Bool("short", false, "a few seconds with little load, to see that it runs")
	clients := flag.Int("clients", 0, "how many idle connections, plain and by TLS; default 10,000, and 500 with -short")
	only := flag.String("only", "", "run the scenarios whose name contains this")
	rounds := flag.Int("rounds", 1, "measure so often, the brokers in turn, and show the median")
	brokers := flag.String("brokers", "Colony,Mosquitto,Mosquitto tuned", "which brokers, by name")
	before := flag.String("before", "", "another build of this program, whose broker is measured beside")
	flag.Parse()
	signal.Ignore(syscall.SIGXFSZ) // of a write to a file that may not grow, here and in the brokers: the write fails
	if *serve != "" {
		if err := serveColony(*serve, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	load := full
	if *quick {
		load = short
	}
	if *clients > 0 {
		load.idle = *clients
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c := choice{only: *only, rounds: *rounds, brokers: strings.Split(*brokers, ","), before: *before}
	if err := run(ctx, load, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A choice says what is measured.
type choice struct {
	only    string // the scenarios whose name contains this
	rounds  int
	brokers []string
	before  string // path of another build; "": none
}

// servers are the chosen ones.
func (c choice) servers() []server {
	list := []server{{"Colony", startColony("")}, {"Mosquitto", startMosquitto(false)}, {"Mosquitto tuned", startMosquitto(true)}}
	list = slices.DeleteFunc(list, func(s server) bool { return !slices.Contains(c.brokers, s.name) })
	if c.before != "" {
		list = append(list, server{"Colony before", startColony(c.before)})
	}
	return list
}

// run measures the brokers, one after the other in each scenario, so that what else the machine does meets them alike, and
// writes the table.
func run(ctx context.Context, load size, c choice, table, progress io.Writer) error {
	t := &results{}
	chosen := c.servers()
	if len(chosen) == 0 {
		return fmt.Errorf("no broker of these names: %q", c.brokers)
	}
	list := slices.DeleteFunc(scenarios(load), func(sc scenario) bool { return !strings.Contains(sc.name, c.only) })
	if len(list) == 0 {
		return fmt.Errorf("no scenario has %q in its name", c.only)
	}
	for _, sc := range list {
		for range c.rounds {
			for _, s := range chosen {
				if err := ctx.Err(); err != nil {
					return err
				}
				begun := time.Now()
				if err := measure(ctx, s, sc, t); err != nil {
					return fmt.Errorf("%s, %s: %w", s.name, sc.name, err)
				}
				fmt.Fprintf(progress, "%s: %s (%s)\n", s.name, sc.name, time.Since(begun).Round(time.Millisecond))
			}
		}
	}
	fmt.Fprintf(table, "%d cores, %s, %s.\n\n%s", runtime.NumCPU(), runtime.Version(), mosquittoVersion(ctx), t.markdown())
	return nil
}

// measure runs one scenario on a fresh broker.
func measure(ctx context.Context, s server, sc scenario, t *results) error {
	p, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	bound, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	return sc.run(bound, p, func(what string, value float64, unit string) { t.add(s.name, what, value, unit) })
}

// results are the numbers of each broker, in the order in which they came.
type results struct {
	brokers []string
	rows    []string
	units   map[string]string       // by row
	values  map[[2]string][]float64 // by broker and row, of each round
}

func (r *results) add(broker, what string, value float64, unit string) {
	if r.values == nil {
		r.units, r.values = map[string]string{}, map[[2]string][]float64{}
	}
	if !slices.Contains(r.brokers, broker) {
		r.brokers = append(r.brokers, broker)
	}
	if !slices.Contains(r.rows, what) {
		r.rows = append(r.rows, what)
	}
	key := [2]string{broker, what}
	r.values[key] = append(r.values[key], value)
	r.units[what] = unit
}

// median is that of a row; false if the broker has none.
func (r *results) median(broker, row string) (float64, bool) {
	all := slices.Sorted(slices.Values(r.values[[2]string{broker, row}]))
	if len(all) == 0 {
		return 0, false
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2, true
}

// cell is the median of a row, with the lowest and the highest of several rounds.
func (r *results) cell(broker, row string) string {
	v, ok := r.median(broker, row)
	if !ok {
		return ""
	}
	out := strings.TrimSpace(number(v) + " " + r.units[row])
	if all := r.values[[2]string{broker, row}]; slices.Min(all) < slices.Max(all) {
		out += fmt.Sprintf(" (%s to %s)", number(slices.Min(all)), number(slices.Max(all)))
	}
	return out
}

func number(v float64) string {
	if v >= 100 || v == float64(int(v)) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// markdown is a table with a column for each broker, and of the first one's
// numbers divided by the others'.
func (r *results) markdown() string {
	var b strings.Builder
	b.WriteString("| what |")
	for _, name := range r.brokers {
		b.WriteString(" " + name + " |")
	}
	for _, name := range r.brokers[1:] {
		fmt.Fprintf(&b, " %s : %s |", r.brokers[0], name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", 2*len(r.brokers)-1) + "\n")
	for _, row := range r.rows {
		b.WriteString("| " + row + " |")
		for _, name := range r.brokers {
			b.WriteString(" " + r.cell(name, row) + " |")
		}
		first, _ := r.median(r.brokers[0], row)
		for _, name := range r.brokers[1:] {
			if v, _ := r.median(name, row); v > 0 && first > 0 {
				fmt.Fprintf(&b, " %.2f |", first/v)
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
