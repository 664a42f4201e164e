package journal

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
)

// childDir names the journal of the process that is to be killed.
const childDir = "COLONY_JOURNAL_TEST_DIR"

// runChild appends from several goroutines for ever and prints what was
// acknowledged, in the form "sequence body".
func runChild(dir string) {
	j, err := Open(dir, Options{SegmentBytes: 32 << 10})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(g)))
			for i := 0; ; i++ {
				body := fmt.Sprintf("%d-%d-%d-%s", os.Getpid(), g, i, strings.Repeat("x", rng.IntN(300)))
				e := Entry{Class: Event, Body: []byte(body)}
				if g < 3 {
					e.Class, e.Key = State, fmt.Sprint(g)
				}
				seq, err := j.Append(context.Background(), e)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				_, _ = fmt.Printf("%d %s\n", seq, body)
				mu.Unlock()
				if g == 7 && i%50 == 49 {
					_ = j.Trim(seq - min(seq, 2000))
				}
			}
		})
	}
	wg.Wait()
}

// TestKill really kills an appending process, again and again on one journal,
// and checks that every acknowledged record is there, once, at its position.
func TestKill(t *testing.T) {
	t.Parallel()
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	dir := filepath.Join(t.TempDir(), "journal")
	acked := map[uint64]string{}
	seen := map[string]uint64{}
	torn := 0
	for round := range rounds {
		killChild(t, dir, 200+rand.IntN(3000), acked)
		if _, err := os.Stat(filepath.Join(dir, ondisk.LockName)); err != nil {
			t.Fatal(err)
		}
		j, err := Open(dir, Options{SegmentBytes: 32 << 10})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		last := uint64(0)
		for seq := range acked {
			last = max(last, seq)
		}
		if j.Last() < last {
			t.Fatalf("round %d: last is %d, %d was acknowledged", round, j.Last(), last)
		}
		torn += int(j.Last() - last)
		clear(seen)
		for _, r := range all(t, j) {
			if want, ok := acked[r.Seq]; ok && !r.Superseded && string(r.Body) != want {
				t.Fatalf("round %d: record %d is %q, acknowledged was %q", round, r.Seq, r.Body, want)
			}
			if r.Superseded && r.Seq == j.Last() {
				t.Fatalf("round %d: the last record is superseded", round)
			}
			if was, ok := seen[string(r.Body)]; ok && !r.Superseded {
				t.Fatalf("round %d: %q is record %d and %d", round, r.Body, was, r.Seq)
			}
			seen[string(r.Body)] = r.Seq
		}
		for seq, body := range acked {
			if seq > j.Trimmed() && seen[body] == 0 && strings.Split(body, "-")[1] > "2" {
				t.Fatalf("round %d: acknowledged event %d is missing", round, seq)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged, %d more found on disk, %d kills", len(acked), torn, rounds)
}

// killChild starts a child and kills it when it has acknowledged n records.
func killChild(t *testing.T, dir string, n int, acked map[uint64]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for i := 0; ; i++ {
		if i == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line, err := r.ReadString('\n')
		if err == io.EOF {
			break // what it wrote before its end counts too
		}
		if err != nil {
			t.Fatal(err)
		}
		var seq uint64
		var body string
		if _, err := fmt.Sscan(line, &seq, &body); err != nil {
			t.Fatal(err)
		}
		acked[seq] = body
	}
	_ = cmd.Wait() // killed
	if stderr.Len() > 0 {
		t.Fatal(stderr.String())
	}
}
