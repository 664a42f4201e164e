package data

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
)

// childDir names the state directory of the process that is to be killed.
const childDir = "COLONY_DATA_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := runChild(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func killRules() []protocol.DataRule {
	hour := protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}
	return []protocol.DataRule{{Name: "all", Topics: []string{"all/#", "kept/#"}, QoS: 1}, {Name: "last", Topics: []string{"last/#"}, QoS: 1, Sample: hour}}
}

// runChild accepts messages of 6 clients without end and prints each that would be
// acknowledged: client, topic and payload, which counts.
func runChild(dir string) error {
	d, err := Open(Options{
		Site: "s1", Dir: dir, Gate: pace.New(pace.Options{}), Logger: slog.New(slog.DiscardHandler),
		Begin: func(context.Context, string, []byte) (func(context.Context) error, error) {
			return nil, protocol.Errorf(protocol.Unavailable, "no link")
		},
		Rules: func() ([]protocol.DataRule, bool) { return killRules(), true },
		Fail:  func(err error) { fmt.Fprintln(os.Stderr, err) },
	})
	if err != nil {
		return err
	}
	d.Reconcile(context.Background())
	first, err := strconv.Atoi(os.Getenv(childDir + "_FIRST"))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 6 {
		wg.Go(func() {
			for i := first; ; i++ {
				name := fmt.Sprintf("%s/%d", []string{"all", "kept", "last"}[i%3], c)
				m := client.Message{Topic: "colony/v1/s1/data/" + name, Payload: []byte(strconv.Itoa(i)), QoS: 1, Retain: i%3 == 1}
				if err := d.Accept(context.Background(), "", m); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				_, _ = fmt.Println(name, i, "end") // the parent sees what was written when it kills
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return nil
}

// killChild runs a child, kills it after some lines, and adds to acked what it
// acknowledged, by topic.
func killChild(t *testing.T, dir string, first, lines int, acked map[string][]int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childDir+"_FIRST="+strconv.Itoa(first))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	for n := 1; scanner.Scan(); n++ {
		if n == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		words := strings.Fields(scanner.Text())
		if len(words) != 3 || words[2] != "end" {
			continue // the kill cut the line
		}
		i, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		acked[words[0]] = append(acked[words[0]], i)
	}
	_ = cmd.Wait() // it was killed
}

// TestKill kills a process that accepts messages, many times on one
// directory: of all that was acknowledged nothing is missing, neither from the
// queues nor from what is retained, and each topic is in order.
func TestKill(t *testing.T) {
	t.Parallel()
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	first := 0
	acked := map[string][]int{}
	for round := range rounds {
		killChild(t, dir, first, 50+rand.IntN(1500), acked)
		if len(acked) == 0 {
			t.Fatal("the child acknowledged nothing")
		}
		d := newForwarder(t, dir, killRules()...)
		got := map[string][]int{}
		for _, rule := range []string{"all", "last"} {
			for _, e := range queued(t, d, rule) {
				m := body(t, e)
				i, err := strconv.Atoi(string(m.Payload))
				if err != nil {
					t.Fatal(err)
				}
				got[m.Topic] = append(got[m.Topic], i)
			}
		}
		for name, all := range acked {
			last := all[len(all)-1]
			checkTopic(t, name, got[name], all)
			if !strings.HasPrefix(name, "kept/") {
				continue
			}
			m, _ := d.Retained().Get("colony/v1/s1/data/" + name)
			if i, err := strconv.Atoi(string(m.Data.Payload)); err != nil || i < last {
				t.Errorf("%s: %q is retained, %d was acknowledged", name, m.Data.Payload, last)
			}
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		for name := range got {
			first = max(first, got[name][len(got[name])-1])
		}
		first = first/3*3 + 3
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkTopic checks what is queued of one topic against all that was acknowledged.
func checkTopic(t *testing.T, name string, got, acked []int) {
	t.Helper()
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Errorf("%s: %d comes after %d", name, got[i], got[i-1])
		}
	}
	if strings.HasPrefix(name, "last/") { // of which only the last of a period is kept
		acked = acked[len(acked)-1:]
		if len(got) == 0 || got[len(got)-1] < acked[0] {
			t.Errorf("%s: %v is queued, %d was acknowledged", name, got, acked[0])
		}
		return
	}
	for _, i := range acked {
		if _, ok := slices.BinarySearch(got, i); !ok {
			t.Errorf("%s: %d was acknowledged and is not queued", name, i)
		}
	}
}
